"""A function of the user's as a verifier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from exgrpo.errors import ConfigError
from exgrpo.types import Judgement
from exgrpo.verify.extract import after_thinking


class CustomVerifier:
    """Judges by a function `f(response, answer, **columns)`.

    The function may return a bool; a number, which is right where it reaches `threshold`; None where it finds no
    answer; or a whole `Judgement`. What it raises is a crash of that response and of no other. It runs in a worker
    process. An attribute `version` of the function goes into the record; change it when the function changes.

    Args:
        name: `module:function`.
        function: the function.
        threshold: the least score that is right, in (0, 1].
        after_think: whether the function gets only what follows the last `</think>`.
    """

    def __init__(self, name: str, function: Callable[..., Any], *, threshold: float = 1.0, after_think: bool = False):
        if not 0 < threshold <= 1:
            raise ConfigError("threshold", expected="a number in (0, 1]", found=threshold, hint="1 wants a full score")
        self.name = name
        self.version = str(getattr(function, "version", "1"))
        self._function = function
        self._threshold = threshold
        self._after_think = after_think

    def judge(self, response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
        """Return the verdict (see `Verifier`)."""
        text = after_thinking(response) if self._after_think else response
        said = self._function(text, answer, **columns)
        if isinstance(said, Judgement):
            return said
        if said is None:
            return Judgement("unparsed", 0.0, None)
        score = float(said)
        if math.isnan(score):
            return Judgement("crashed", 0.0, None, f"{self.name} returned NaN")
        return Judgement("correct" if score >= self._threshold else "wrong", score, None)

    def fault_of(self, answer: str, columns: Mapping[str, Any]) -> str | None:
        """Return why no response could be judged against this gold answer (see `Verifier`)."""
        if not answer.strip():
            return "it is empty"
        self._function(answer, answer, **columns)  # what it cannot read it raises for
        return None
