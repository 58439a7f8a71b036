"""One generation batch on its way from the plan to the commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from exgrpo.objective import PolicyLoss, useless_groups
from exgrpo.train.compat import GeneratedRows, RecordedRow
from exgrpo.types import Group, Replay, ReplayPlan, Rollout, Verdict


@dataclass
class StepBatch:
    """The rows of a step: fresh groups first, then replayed groups, whose last row is the recorded one.

    Attributes:
        plan: what is replayed.
        fresh_ids: ids of the fresh questions, in order.
        group_size: K.
        num_candidates: stored trajectories that the replayed ones were chosen from.
        generated: rows as written and judged, None before generation.
        log_probs: float32 [B, T] on the CPU, log-probs under the policy that wrote the rows.
        mean_entropies: float32 [B] on the CPU, mean token entropies under that policy (nats).
        measured: bool [B], rows that a forward has been spent on.
        replayed_log_ratios: log of pi / pi_past at each replayed token, one vector per micro-batch of the step.
        clipped, clippable: number of fresh tokens whose ratio was clipped, and of all fresh tokens.
    """

    plan: ReplayPlan
    fresh_ids: list[str]
    group_size: int
    num_candidates: int
    generated: GeneratedRows | None = None
    log_probs: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0))
    mean_entropies: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    measured: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    replayed_log_ratios: list[torch.Tensor] = field(default_factory=list)
    clipped: int = 0
    clippable: int = 0

    @property
    def question_ids(self) -> list[str]:
        """Ids of all questions of the batch [Q], in the order of their groups."""
        return self.fresh_ids + [replay.experience.question_id for replay in self.plan.replays]

    @property
    def recorded_rows(self) -> dict[int, Replay]:
        """Position in the batch -> the replay whose recorded trajectory stands there."""
        first = len(self.fresh_ids)
        return {(first + n + 1) * self.group_size - 1: replay for n, replay in enumerate(self.plan.replays)}

    def recorded(self) -> dict[int, RecordedRow]:
        """Return what TRL needs of the rows that are not generated, by position."""
        return {
            row: RecordedRow(
                prompt_ids=replay.experience.prompt_ids.tolist(),
                response_ids=replay.experience.response_ids.tolist(),
                log_probs=replay.experience.behaviour_log_probs,
                reward=replay.experience.reward,
            )
            for row, replay in self.recorded_rows.items()
        }

    def set_generated(self, rows: GeneratedRows) -> None:
        """Take the written and judged rows; room for their measurements is made unless there is some."""
        self.generated = rows
        if not len(self.measured):
            self._make_room(len(rows.response_ids), max(map(len, rows.response_ids)))

    def capture(self, rows: torch.Tensor, log_probs: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor) -> None:
        """Note what a forward said of `rows` [b], if nothing has yet: log-probs, entropies and mask are [b, T]."""
        if not len(self.measured):
            self._make_room(*log_probs.shape)
        rows = rows.cpu()
        new = ~self.measured[rows]
        lengths = mask.sum(dim=1).clamp(min=1)
        means = torch.where(mask, entropies, 0.0).sum(dim=1) / lengths
        self.log_probs[rows[new], : log_probs.size(1)] = log_probs.detach().float().cpu()[new]
        self.mean_entropies[rows[new]] = means.detach().float().cpu()[new]
        self.measured[rows] = True

    def note_ratios(self, loss: PolicyLoss, replayed: torch.Tensor, mask: torch.Tensor) -> None:
        """Note how far the policy is from the past ones in a micro-batch: `replayed` [b], `mask` [b, T]."""
        of_replays = mask & replayed.unsqueeze(1)
        self.replayed_log_ratios.append(loss.log_ratios[of_replays].cpu())
        self.clipped += int(loss.clipped.sum())
        self.clippable += int((mask & ~of_replays).sum())

    def replayed_entropies(self) -> dict[str, float]:
        """Return experience id -> mean token entropy of the replayed rows under the policy of this step (nats)."""
        entropies = {
            replay.experience.id: float(self.mean_entropies[row]) for row, replay in self.recorded_rows.items()
        }
        return {key: entropy for key, entropy in entropies.items() if math.isfinite(entropy)}

    def useful_groups(self) -> list[bool]:
        """Return for each group [Q] whether its rewards differ, so that it teaches something."""
        assert self.generated is not None
        return (~useless_groups(self.generated.rewards, self.group_size)).tolist()

    def needed_groups(self, success_reward: float) -> list[bool]:
        """Return for each group [Q] whether a forward is spent on it: it teaches, or holds successes worth keeping.

        Without rewards for some of its rows, or with other rewards beside the answer's, a partly solved group may have
        equal rewards: it teaches nothing, but its successes are stored with their log-probs.

        Args:
            success_reward: as in `groups`.
        """
        num_rows = len(self.question_ids) * self.group_size
        right = np.array([self._verdict(row, success_reward) == "correct" for row in range(num_rows)])
        right[list(self.recorded_rows)] = True
        num_correct = right.reshape(-1, self.group_size).sum(axis=1)
        partly_solved = (num_correct > 0) & (num_correct < self.group_size)
        return (partly_solved | np.array(self.useful_groups())).tolist()

    def groups(self, *, success_reward: float, is_truncated: Callable[[Sequence[int]], bool]) -> list[Group]:
        """Return the batch as groups for the commit.

        Args:
            success_reward: where no verdicts were logged, a rollout whose reward is at least this is correct, and a NaN
                reward is `unparsed`.
            is_truncated: tells whether response ids stopped at the length limit.
        """
        assert self.generated is not None  # the trainer commits what it has generated
        recorded = self.recorded_rows
        groups = []
        for number, question_id in enumerate(self.question_ids):
            rows = range(number * self.group_size, (number + 1) * self.group_size)
            groups.append(
                Group(
                    question_id=question_id,
                    prompt_ids=np.asarray(self.generated.prompt_ids[rows[0]], dtype=np.int32),
                    rollouts=tuple(
                        self._rollout(row, success_reward, is_truncated) for row in rows if row not in recorded
                    ),
                    replayed_id=recorded[rows[-1]].experience.id if rows[-1] in recorded else None,
                )
            )
        return groups

    def _rollout(self, row: int, success_reward: float, is_truncated: Callable[[Sequence[int]], bool]) -> Rollout:
        assert self.generated is not None
        response_ids = self.generated.response_ids[row]
        reward = float(self.generated.rewards[row])
        log_probs = self.log_probs[row, : len(response_ids)]
        measured = bool(self.measured[row])
        broken = measured and not (torch.isfinite(log_probs).all() and torch.isfinite(self.mean_entropies[row]))
        verdict = self._verdict(row, success_reward)
        if broken:  # whatever it is worth, it could not be replayed
            verdict, measured = "crashed", False
        return Rollout(
            response_ids=np.asarray(response_ids, dtype=np.int32),
            behaviour_log_probs=log_probs.numpy().copy() if measured else None,
            reward=reward,
            correct=verdict == "correct",
            verdict=verdict,
            mean_entropy=float(self.mean_entropies[row]) if measured else None,
            truncated=is_truncated(response_ids),
        )

    def _verdict(self, row: int, success_reward: float) -> Verdict:
        assert self.generated is not None
        logged = self.generated.verdicts[row] if self.generated.verdicts else None
        if logged is not None:
            return logged
        reward = float(self.generated.rewards[row])
        return "unparsed" if np.isnan(reward) else "correct" if reward >= success_reward else "wrong"

    def _make_room(self, num_rows: int, num_tokens: int) -> None:
        self.log_probs = torch.zeros(num_rows, num_tokens)
        self.mean_entropies = torch.zeros(num_rows)
        self.measured = torch.zeros(num_rows, dtype=torch.bool)
