"""How answers are judged, and what a verdict is worth."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from exgrpo.errors import ConfigError
from exgrpo.types import Verdict


@dataclass(frozen=True)
class VerifySettings:
    """Which verifier, under which limits, and the reward for each verdict.

    Raises:
        ConfigError: for a value that cannot work.
    """

    verify_with: str | None = field(
        default=None,
        metadata={
            "help": "Verifier: math, choice, exact, numeric, gym, chain, or a function of yours as module:function. "
            "Default: that of the questions' source, else math."
        },
    )
    verify_options: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Options of the verifier, a mapping (JSON on the command line); docs/verifiers.md has them."},
    )
    verify_timeout_s: float = field(default=10.0, metadata={"help": "Seconds after which judging an answer is killed."})
    verify_workers: int = field(default=2, metadata={"help": "Worker processes that judge answers."})
    verify_memory_mb: int = field(
        default=2048, metadata={"help": "MiB that a worker may take while it judges, 0 for no limit. Linux only."}
    )
    reward_correct: float = field(default=1.0, metadata={"help": "Reward of a right answer."})
    reward_wrong: float = field(default=0.0, metadata={"help": "Reward of a wrong answer."})
    reward_unparsed: float = field(default=0.0, metadata={"help": "Reward of a response without an answer."})
    reward_timed_out: float = field(
        default=0.0, metadata={"help": "Reward where judging took too long; nan leaves the response out of its group."}
    )
    reward_crashed: float = field(
        default=0.0, metadata={"help": "Reward where judging failed; nan leaves the response out of its group."}
    )
    reward_format_weight: float = field(
        default=0.0, metadata={"help": "Weight of a second reward: 1 for a response in the template's form, else 0."}
    )
    reward_length_weight: float = field(
        default=0.0,
        metadata={"help": "Weight of a penalty that grows from 0 to -1 over the last reward_length_buffer tokens."},
    )
    reward_length_buffer: int = field(
        default=512, metadata={"help": "Tokens before max_completion_length at which the length penalty begins."}
    )

    def __post_init__(self) -> None:
        """Check each value."""
        if isinstance(self.verify_options, str):
            object.__setattr__(self, "verify_options", _mapping(self.verify_options))
        self._require("verify_timeout_s", 0 < self.verify_timeout_s < math.inf, "a finite number of seconds above 0")
        self._require("verify_workers", self.verify_workers >= 1, "at least 1 process")
        self._require("verify_memory_mb", self.verify_memory_mb >= 0, "MiB, 0 for no limit")
        self._require("reward_length_buffer", self.reward_length_buffer >= 1, "at least 1 token")
        for name in ("reward_correct", "reward_wrong", "reward_unparsed"):
            self._require(name, math.isfinite(getattr(self, name)), "a finite number")
        for name in ("reward_timed_out", "reward_crashed"):
            self._require(name, not math.isinf(getattr(self, name)), "a number, or nan")
        for name in ("reward_format_weight", "reward_length_weight"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "a finite number of at least 0")

    @property
    def options(self) -> dict[str, Any]:
        """Options of the verifier, empty where none are given."""
        return dict(self.verify_options) if isinstance(self.verify_options, dict) else {}

    def reward(self, verdict: Verdict) -> float:
        """Return what a verdict is worth."""
        return float(getattr(self, f"reward_{verdict}"))

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(name, expected=expected, found=getattr(self, name), hint="see docs/settings.md")


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(
            "verify_options", expected="a mapping, as JSON", found=text, hint="for example '{\"threshold\": 0.9}'"
        )
    return value
