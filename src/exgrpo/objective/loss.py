"""The mixed-policy objective: fresh rows clipped, replayed rows shaped (arXiv 2510.02245, equation 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from exgrpo.errors import ConfigError, DataError
from exgrpo.objective.masking import masked_sum
from exgrpo.objective.weights import Shaping, clipped_surrogate, is_clipped, log_ratio, shaped_weight

LossType = Literal["dr_grpo", "grpo", "bnpo", "dapo"]


@dataclass(frozen=True, slots=True)
class ObjectiveSettings:
    """The settings of the loss. The defaults are those of arXiv 2510.02245, but for the entropy bonus (0.001 there).

    Attributes:
        max_response_length: tokens; `dr_grpo` divides by it.
        loss_type: how per-token losses are averaged, with TRL's names and meanings. `dr_grpo`: sum over rows x
            max_response_length; `grpo`: mean over rows of the mean over tokens; `bnpo`: mean over all tokens; `dapo`:
            sum over a number of tokens that the caller gives.
        clip_low, clip_high: epsilon below and above 1, for fresh rows and `shaping="clip"`.
        clip_fresh: whether fresh rows are clipped; without, their weight is the plain ratio.
        shaping: of replayed rows. `clip` clips them like fresh ones; the others do not clip.
        shaping_beta: beta of `shaping="ratio"`.
        entropy_coef: weight of the entropy bonus.

    Raises:
        ConfigError: for a value outside its range.
    """

    max_response_length: int
    loss_type: LossType = "dr_grpo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_fresh: bool = True
    shaping: Shaping = "ratio"
    shaping_beta: float = 0.1
    entropy_coef: float = 0.0

    def __post_init__(self) -> None:
        """Check every value."""
        for name, choices in (("loss_type", LossType), ("shaping", Shaping)):
            allowed = get_args(choices)
            self._require(name, getattr(self, name) in allowed, f"one of {', '.join(allowed)}")
        self._require("max_response_length", 1 <= self.max_response_length < math.inf, "at least 1 token")
        self._require("clip_low", 0 <= self.clip_low <= 1, "a number in [0, 1]")
        self._require("clip_high", 0 <= self.clip_high < math.inf, "a finite number of at least 0")
        self._require("shaping_beta", 0 < self.shaping_beta < math.inf, "a finite number above 0")
        self._require("entropy_coef", math.isfinite(self.entropy_coef), "a finite number")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            hint = "the paper uses dr_grpo, clips at 0.2, and shapes replayed rows by ratio with beta 0.1"
            raise ConfigError(name, expected=expected, found=getattr(self, name), hint=hint)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of a micro-batch and what it was made of.

    Attributes:
        loss: to be minimised, entropy bonus included.
        policy_loss: without the bonus, detached.
        entropy: weighted sum of token entropies, their mean with weights of this micro-batch, detached (nats).
        log_ratios: [B, T] log of pi / pi_behaviour, detached, 0 outside the response.
        clipped: [B, T] fresh response tokens whose clip binds.
    """

    loss: Float[Tensor, ""]
    policy_loss: Float[Tensor, ""]
    entropy: Float[Tensor, ""]
    log_ratios: Float[Tensor, "B T"]
    clipped: Bool[Tensor, "B T"]


@dataclass(frozen=True, slots=True)
class RowWeights:
    """By how much a token of each row counts, fixed before rows are dealt over micro-batches: how does not matter then.

    Attributes:
        policy: [B] factor of the row's token losses.
        entropy: [B] factor of the row's token entropies.
    """

    policy: Float[Tensor, B]
    entropy: Float[Tensor, B]


def row_weights(
    response_mask: Bool[Tensor, "B T"], settings: ObjectiveSettings, num_tokens: Float[Tensor, ""] | float | None = None
) -> RowWeights:
    """Return the weights that make the sums over a micro-batch what `settings.loss_type` says, and a mean of entropies.

    Args:
        response_mask: True at response tokens.
        settings: loss type and, for `dr_grpo`, the maximum response length.
        num_tokens: what `dapo` divides by: mean number of response tokens of a micro-batch, over all micro-batches and
            processes of the update.

    Raises:
        ConfigError: where `dapo` lacks `num_tokens`.
    """
    lengths = response_mask.sum(dim=1).clamp(min=1).float()
    num_rows, all_tokens = len(lengths), response_mask.sum().clamp(min=1)
    if settings.loss_type == "dr_grpo":
        policy = torch.full_like(lengths, 1 / (max(num_rows, 1) * settings.max_response_length))
    elif settings.loss_type == "grpo":
        policy = 1 / (num_rows * lengths)
    elif settings.loss_type == "bnpo":
        policy = torch.ones_like(lengths) / all_tokens
    elif num_tokens is None:
        raise ConfigError(
            "num_tokens", expected="the tokens of the update with loss_type=dapo", found=None, hint="pass num_tokens"
        )
    else:
        policy = torch.ones_like(lengths) / num_tokens
    return RowWeights(policy, torch.ones_like(lengths) / all_tokens)


def mixed_policy_loss(
    *,
    log_probs: Float[Tensor, "B T"],
    entropies: Float[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, B],
    replayed: Bool[Tensor, B],
    behaviour_log_probs: Float[Tensor, "B T"],
    behaviour_known: Bool[Tensor, B],
    settings: ObjectiveSettings,
    weights: RowWeights,
) -> PolicyLoss:
    """Return the loss of a micro-batch, not yet divided by the number of accumulated micro-batches.

    Fresh rows: -min(w A, clip(w) A) with w = pi / pi_old. Replayed rows: -f(w*) A with w* = pi / pi_past, no clip.

    Args:
        log_probs: of the response tokens under the current policy, with gradient (nats).
        entropies: of the same forward, with gradient where there is a bonus (nats).
        response_mask: True at response tokens; nothing else is looked at.
        advantages: of each row, over its whole group.
        replayed: True for rows that a past policy wrote.
        behaviour_log_probs: under the policy that wrote the row; looked at where `behaviour_known`.
        behaviour_known: False for fresh rows whose policy has not moved since: their own log-probs, detached, stand in,
            so that w is 1 and the gradient that of the log-prob. Replayed rows must be known.
        settings: the rest.
        weights: by how much each row counts, from `row_weights`.

    Raises:
        DataError: for a replayed row whose `behaviour_known` is False.
    """
    _require_known(replayed, behaviour_known)
    behaviour = torch.where(behaviour_known.unsqueeze(1), behaviour_log_probs, log_probs.detach())
    log_ratios = log_ratio(log_probs, behaviour, response_mask)
    advantage = advantages.unsqueeze(1)
    token_losses = -torch.where(
        replayed.unsqueeze(1),
        _replayed_surrogate(log_ratios, advantage, settings),
        _fresh_surrogate(log_ratios, advantage, settings),
    )
    policy_loss = masked_sum(token_losses * weights.policy.unsqueeze(1), response_mask)
    entropy = masked_sum(entropies * weights.entropy.unsqueeze(1), response_mask)
    # Without a bonus the entropies stay out of the graph: their gradient would be computed and thrown away.
    loss = policy_loss - settings.entropy_coef * entropy if settings.entropy_coef else policy_loss
    binds = is_clipped(log_ratios.detach(), advantage, settings.clip_low, settings.clip_high)
    fresh = response_mask & ~replayed.unsqueeze(1)
    clipped = binds & fresh if settings.clip_fresh else torch.zeros_like(fresh)
    return PolicyLoss(loss, policy_loss.detach(), entropy.detach(), log_ratios.detach(), clipped)


def _require_known(replayed: Bool[Tensor, B], behaviour_known: Bool[Tensor, B]) -> None:
    unknown = replayed & ~behaviour_known
    if unknown.any():
        raise DataError(
            f"row {int(unknown.nonzero()[0])}",
            expected="log-probs of the past policy for a replayed row",
            found="behaviour_known=False",
            hint="pass the recorded log-probs in behaviour_log_probs, and behaviour_known=True",
        )


def _fresh_surrogate(log_ratios: Tensor, advantages: Tensor, settings: ObjectiveSettings) -> Tensor:
    if settings.clip_fresh:
        return clipped_surrogate(log_ratios, advantages, settings.clip_low, settings.clip_high)
    return log_ratios.exp() * advantages


def _replayed_surrogate(log_ratios: Tensor, advantages: Tensor, settings: ObjectiveSettings) -> Tensor:
    if settings.shaping == "clip":
        return clipped_surrogate(log_ratios, advantages, settings.clip_low, settings.clip_high)
    return shaped_weight(log_ratios, settings.shaping, settings.shaping_beta) * advantages
