"""Importance ratios and what becomes of them: the clip of fresh rows, the shape of replayed ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Shaping = Literal["ratio", "none", "clip", "sqrt"]

# exp overflows float32 at 88. A ratio of e^20 = 5e8 is far beyond anything that still means something, and its token
# gets gradient 0 instead of infinity.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class RatioStatistics:
    """How far the policy has moved from the past ones, over replayed tokens. NaN where there are none.

    Attributes:
        mean, q05, q50, q95, max: of the importance ratio w.
        effective_sample_size: (sum w)^2 / (n sum w^2), in (0, 1]; 1 where all ratios are equal.
        outside: share of tokens with w outside [1/2, 2].
    """

    mean: float
    q05: float
    q50: float
    q95: float
    max: float
    effective_sample_size: float
    outside: float


def log_ratio(
    log_probs: Float[Tensor, "B T"], behaviour_log_probs: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return log(pi / pi_behaviour) of each token, clamped to +-20; 0 where `mask` is False."""
    difference = torch.where(mask, log_probs - behaviour_log_probs, 0.0)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def shaped_weight(log_ratios: Float[Tensor, "B T"], shaping: Shaping, beta: float) -> Float[Tensor, "B T"]:
    """Return f(w) of the importance ratio w = exp(log_ratios).

    Args:
        log_ratios: log w.
        shaping: `ratio`, w / (w + beta) (arXiv 2510.02245, equation 4), computed as sigmoid(log w - log beta), which
            never overflows; `sqrt`, the root of w; `none` and `clip`, w itself.
        beta: of `ratio`, above 0. The gradient factor w f'(w) = beta w / (w + beta)^2 peaks at w = beta, so that tokens
            which the policy finds unlikely move it most.
    """
    if shaping == "ratio":
        return torch.sigmoid(log_ratios - math.log(beta))
    return (0.5 * log_ratios if shaping == "sqrt" else log_ratios).exp()


def clipped_surrogate(
    log_ratios: Float[Tensor, "B T"], advantages: Float[Tensor, "B 1"], clip_low: float, clip_high: float
) -> Float[Tensor, "B T"]:
    """Return min(w A, clip(w, 1 - clip_low, 1 + clip_high) A), to be maximised (PPO; GRPO)."""
    ratios = log_ratios.exp()
    return torch.minimum(ratios * advantages, ratios.clamp(1 - clip_low, 1 + clip_high) * advantages)


def is_clipped(
    log_ratios: Float[Tensor, "B T"], advantages: Float[Tensor, "B 1"], clip_low: float, clip_high: float
) -> Bool[Tensor, "B T"]:
    """Return where the clip binds, so that the token has no gradient."""
    ratios = log_ratios.exp()
    return ((ratios < 1 - clip_low) & (advantages < 0)) | ((ratios > 1 + clip_high) & (advantages > 0))


def ratio_statistics(log_ratios: Float[Tensor, N]) -> RatioStatistics:
    """Return the statistics of the importance ratios of N tokens."""
    if not len(log_ratios):
        return RatioStatistics(*[math.nan] * 7)
    ratios = log_ratios.double().exp()
    q05, q50, q95 = ratios.quantile(ratios.new_tensor([0.05, 0.5, 0.95])).tolist()
    # Equal ratios round to a little above 1.
    size = (ratios.sum().square() / (len(ratios) * ratios.square().sum())).clamp(max=1)
    outside = ((ratios < 0.5) | (ratios > 2)).double().mean()
    return RatioStatistics(ratios.mean().item(), q05, q50, q95, ratios.max().item(), size.item(), outside.item())
