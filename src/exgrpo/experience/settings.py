"""The rules of replay: which questions, which trajectory, from when on, how long."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, get_args

from exgrpo.errors import ConfigError

QuestionSampling = Literal["gaussian", "uniform"]
SigmaUnit = Literal["count", "rate"]
TrajectorySelection = Literal["lowest_entropy", "highest_entropy", "random", "latest"]
StartRule = Literal["threshold", "window", "immediate"]
Collect = Literal["after_start", "from_first_step"]
Retirement = Literal["solved", "never"]

_CHOICES = {
    "question_sampling": QuestionSampling,
    "bucket_sigma_unit": SigmaUnit,
    "trajectory_selection": TrajectorySelection,
    "start_rule": StartRule,
    "collect": Collect,
    "retirement": Retirement,
}


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How experience is kept and replayed. The defaults are those of arXiv 2510.02245.

    Attributes:
        num_rollouts: K, rollouts of a group, the replayed one included.
        replay_ratio: rho, share of a batch's questions that are replayed, in [0, 1).
        question_sampling: `gaussian` draws by difficulty bucket, `uniform` all questions alike.
        bucket_mean: correctness rate at which the Gaussian peaks, in [0, 1].
        bucket_sigma: its width, above 0, in `bucket_sigma_unit`.
        bucket_sigma_unit: `count`, one right answer of the group (what the released code does), or `rate`, correctness
            rate (what the paper's text says; with sigma 1 nearly uniform).
        trajectory_selection: which stored trajectory of a drawn question is replayed.
        start_rule: `threshold` starts for good once one batch is above, `window` looks at a mean of batches and may
            stop again, `immediate` starts at once.
        start_threshold: Pass@1 of fresh rollouts that must be exceeded, in [0, 1].
        start_window: batches averaged by `window`; 1 with the other rules.
        stop_threshold: with `window`, mean Pass@1 below which replay pauses; None never pauses.
        collect: whether successes are stored from the start on, or from the first step.
        retirement: whether a question that all K rollouts solve leaves.
        max_age_steps: age in steps beyond which a trajectory is not replayed.
        max_uses: replays after which a trajectory is not replayed.
        max_trajectories_per_question: how many a question keeps; the oldest leave.
        max_trajectories: how many are kept altogether; the oldest leave.

    Raises:
        ConfigError: for a value outside its range, of another type, or without effect under the other settings.
    """

    num_rollouts: int
    replay_ratio: float = 0.5
    question_sampling: QuestionSampling = "gaussian"
    bucket_mean: float = 0.5
    bucket_sigma: float = 1.0
    bucket_sigma_unit: SigmaUnit = "count"
    trajectory_selection: TrajectorySelection = "lowest_entropy"
    start_rule: StartRule = "threshold"
    start_threshold: float = 0.35
    start_window: int = 1
    stop_threshold: float | None = None
    collect: Collect = "after_start"
    retirement: Retirement = "solved"
    max_age_steps: int | None = None
    max_uses: int | None = None
    max_trajectories_per_question: int | None = None
    max_trajectories: int | None = None

    def __post_init__(self) -> None:
        """Check every value; comparisons are written so that NaN fails them."""
        defaults = {field.name: field.default for field in fields(self)}
        for name, choices in _CHOICES.items():
            allowed = get_args(choices)
            self._require(
                name, getattr(self, name) in allowed, f"one of {', '.join(allowed)}", f"the default is {defaults[name]}"
            )
        self._require_whole("num_rollouts", 2, "the paper uses 8")
        self._require_number(
            "replay_ratio", lambda ratio: 0 <= ratio < 1, "a share in [0, 1)", "the paper uses 0.5; 0 is GRPO"
        )
        self._require_rate("bucket_mean", "0.5 prefers medium difficulty")
        self._require_number(
            "bucket_sigma",
            lambda sigma: 0 < sigma < math.inf,
            "a finite width above 0",
            "leave it out for 1, or set question_sampling=uniform, which has no width",
        )
        self._require_rate("start_threshold", "the paper uses 0.35")
        self._check_window()
        for name in ("max_age_steps", "max_uses", "max_trajectories_per_question", "max_trajectories"):
            if getattr(self, name) is not None:
                self._require_whole(name, 1, "leave it out for no limit")

    def _check_window(self) -> None:
        window, hint = self.start_rule == "window", "set start_rule=window, or leave it out"
        self._require_whole("start_window", 1, "leave it out to look at single batches")
        # A setting that would have no effect is refused, not ignored.
        self._require("start_window", window or self.start_window == 1, "1 without start_rule=window", hint)
        if self.stop_threshold is not None:
            self._require("stop_threshold", window, "nothing without start_rule=window", hint)
            self._require_number(
                "stop_threshold",
                lambda rate: 0 <= rate < self.start_threshold,
                f"a rate of at least 0 below start_threshold, {self.start_threshold}",
                "leave it out to never pause",
            )

    def _require_rate(self, name: str, hint: str) -> None:
        self._require_number(name, lambda rate: 0 <= rate <= 1, "a rate in [0, 1]", hint)

    def _require_whole(self, name: str, least: int, hint: str) -> None:
        expected = f"a whole number of at least {least}"
        self._require(name, isinstance(getattr(self, name), int), expected, hint)
        self._require_number(name, lambda number: number >= least, expected, hint)

    def _require_number(self, name: str, works: Callable[[float], bool], expected: str, hint: str) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        self._require(name, number and works(value), expected, hint)

    def _require(self, name: str, holds: bool, expected: str, hint: str) -> None:
        if not holds:
            raise ConfigError(name, expected=expected, found=repr(getattr(self, name)), hint=hint)
