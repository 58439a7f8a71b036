"""Mathematical answers, compared by Math-Verify."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from math_verify import parse, verify

from exgrpo.types import Judgement
from exgrpo.verify.extract import after_thinking, last_boxed

MAX_ANSWER_CHARACTERS = 2000
_DOLLAR = re.compile(r"(?<!\\)\$")

# It warns, once, that its own time-outs are off. They are signals, which fail outside the main thread and do not stop
# every expression (Math-Verify issues 50, 55 and 65); the pool kills the process instead.
logging.getLogger("math_verify.parser").setLevel(logging.ERROR)
logging.getLogger("math_verify.grader").setLevel(logging.ERROR)


class MathVerifier:
    r"""Right if Math-Verify finds the answer equal to the gold one.

    The answer is the last balanced `\boxed{}` after `</think>`; without a box it is what Math-Verify finds there. An
    answer of several parts needs all of them.

    Args:
        require_think: whether a response without `</think>` is unparsed: one that was cut while it was thinking.
        require_box: whether a response without a box is unparsed.
    """

    name = "math"
    version = f"1/math-verify-{version('math-verify')}"

    def __init__(self, *, require_think: bool = False, require_box: bool = False):
        self._require_think = require_think
        self._require_box = require_box

    def judge(self, response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
        """Return the verdict (see `Verifier`)."""
        text = after_thinking(response, required=self._require_think)
        if text is None:
            return Judgement("unparsed", 0.0, None, "no </think>")
        boxed = last_boxed(text)
        if boxed is None and self._require_box:
            return Judgement("unparsed", 0.0, None, "no balanced box")
        if boxed == "":
            return Judgement("unparsed", 0.0, "", "empty box")
        if boxed is not None and len(boxed) > max(MAX_ANSWER_CHARACTERS, 2 * len(answer)):
            return Judgement("unparsed", 0.0, f"{boxed[:100]}...", f"an answer of {len(boxed)} characters")
        return _compare(text if boxed is None else "", boxed, answer)

    def fault_of(self, answer: str, columns: Mapping[str, Any]) -> str | None:
        """Return why no response could be judged against this gold answer (see `Verifier`)."""
        if all(isinstance(item, str) for item in _parsed_gold(answer)):
            return "Math-Verify reads no expression in it"
        if _compare("", _gold_text(answer), answer).verdict != "correct":
            return "Math-Verify does not find it equal to itself"
        return None


# The K responses of a group often end in the same answer, and share their gold one.
@lru_cache(maxsize=4096)
def _compare(text: str, boxed: str | None, answer: str) -> Judgement:
    found = _parse(text) if boxed is None else _parse(f"\\boxed{{{_clean(boxed)}}}")
    extracted = boxed if boxed is not None else next((item for item in found if isinstance(item, str)), None)
    if not found:
        return Judgement("unparsed", 0.0, extracted, "Math-Verify finds no expression in it")
    gold = _parsed_gold(answer)
    # Equal strings decide without algebra.
    pairs = sorted(((g, a) for g in gold for a in found), key=lambda pair: not all(isinstance(x, str) for x in pair))
    failure: Exception | None = None
    for pair in pairs:
        try:
            if verify(*pair, timeout_seconds=None, raise_on_error=True):
                return Judgement("correct", 1.0, extracted)
        except (MemoryError, RecursionError) as error:
            failure = error
        except Exception:
            continue
    if failure is not None:
        return Judgement("crashed", 0.0, extracted, type(failure).__name__)
    return Judgement("wrong", 0.0, extracted)


def _parsed_gold(answer: str) -> list[Any]:
    return _parse(f"\\boxed{{{_gold_text(answer)}}}")


def _gold_text(answer: str) -> str:
    """Return a gold answer without the box or the dollars that some data sets leave around it."""
    boxed = last_boxed(answer)
    return _clean(answer if boxed is None else boxed)


def _clean(text: str) -> str:
    # Dollars in a box end the mathematics: of \boxed{$(1,2)$+1} Math-Verify would read (1,2) alone.
    return _DOLLAR.sub("", text).strip().rstrip(".").rstrip()


# Parsing takes most of the time, and golds come again with each response.
@lru_cache(maxsize=1024)
def _parse(text: str) -> list[Any]:
    found: list[Any] = parse(text, parsing_timeout=None)
    return found
