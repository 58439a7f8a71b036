"""Answers that are compared as text, or as numbers within a tolerance."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from exgrpo.errors import ConfigError
from exgrpo.types import Judgement
from exgrpo.verify.extract import after_thinking, final_answer

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_MAX_DIGITS = 400


class ExactVerifier:
    """Right if the answer, spaces at the ends and repeated ones apart, is the gold text.

    The answer is the last box, the last `<answer>` tag or what follows "the answer is", after `</think>`; without any
    of these the whole text.

    Args:
        ignore_case: whether capital letters make no difference.
        require_think: whether a response without `</think>` is unparsed.
    """

    name = "exact"
    version = "1"

    def __init__(self, *, ignore_case: bool = False, require_think: bool = False):
        self._ignore_case = ignore_case
        self._require_think = require_think

    def judge(self, response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
        """Return the verdict (see `Verifier`)."""
        text = after_thinking(response, required=self._require_think)
        found = None if text is None else _stated(text)
        if not found:
            return Judgement("unparsed", 0.0, found, "no answer")
        right = self._plain(found) == self._plain(answer)
        return Judgement("correct" if right else "wrong", float(right), found)

    def fault_of(self, answer: str, columns: Mapping[str, Any]) -> str | None:
        """Return why no response could be judged against this gold answer (see `Verifier`)."""
        return None if answer.strip() else "it is empty"

    def _plain(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self._ignore_case else text


class NumericVerifier:
    r"""Right if the answer is a number within a tolerance of the gold one: |a - g| <= max(relative |g|, absolute).

    Numbers may have thousands separators, an exponent, a percent sign (a hundredth), a leading currency sign, or be
    fractions (`3/4`, `\frac{3}{4}`). A unit after the number is left out.

    Args:
        relative_tolerance: share of the gold number, at least 0.
        absolute_tolerance: at least 0.
        require_think: whether a response without `</think>` is unparsed.
    """

    name = "numeric"
    version = "1"

    def __init__(
        self, *, relative_tolerance: float = 1e-6, absolute_tolerance: float = 0.0, require_think: bool = False
    ):
        for name, value in (("relative_tolerance", relative_tolerance), ("absolute_tolerance", absolute_tolerance)):
            if not 0 <= value < math.inf:
                raise ConfigError(name, expected="a finite number of at least 0", found=value, hint="leave it out")
        self._relative = Fraction(relative_tolerance)
        self._absolute = Fraction(absolute_tolerance)
        self._require_think = require_think

    def judge(self, response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
        """Return the verdict (see `Verifier`)."""
        text = after_thinking(response, required=self._require_think)
        found = None if text is None else _stated(text)
        number = None if found is None else to_number(found)
        if number is None:
            return Judgement("unparsed", 0.0, found[:100] if found else None, "no number")
        gold = to_number(answer)
        right = gold is not None and abs(number - gold) <= max(self._relative * abs(gold), self._absolute)
        return Judgement("correct" if right else "wrong", float(right), found)

    def fault_of(self, answer: str, columns: Mapping[str, Any]) -> str | None:
        """Return why no response could be judged against this gold answer (see `Verifier`)."""
        return None if to_number(answer) is not None else "it is no number"


def to_number(text: str) -> Fraction | None:
    """Return the number with which a text begins, exactly, None where it begins with none."""
    text = text.replace("\\!", "").replace("\\,", "").replace("−", "-").strip(" \t\n$€£*`\"'=≈~")
    negative = text.startswith("-\\")
    fraction = _FRACTION.match(text.lstrip("-"))
    if fraction:
        top, bottom = (to_number(part) for part in fraction.groups())
        value = None if top is None or not bottom else top / bottom
        return -value if value is not None and negative else value
    match = _NUMBER.match(text)
    digits = match.group() if match else ""
    if not any(character.isdigit() for character in digits) or len(digits) > _MAX_DIGITS:
        return None
    number, rest = Fraction(digits.replace(",", "")), text[len(digits) :].lstrip()
    if rest.startswith("/"):
        bottom = to_number(rest[1:])
        return number / bottom if bottom else None
    return number / 100 if rest.startswith(("%", "\\%")) else number


def _stated(text: str) -> str:
    answer = final_answer(text)
    return text.strip() if answer is None else answer
