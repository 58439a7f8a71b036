"""Multiple choice: the answer is a letter, or in some questions a number that stands for an option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exgrpo.errors import ConfigError
from exgrpo.types import Judgement
from exgrpo.verify.extract import after_thinking, last_boxed, last_tag

_WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textit|mathit|rm|bf)\b|[{}$*_`\"']")


class ChoiceVerifier:
    r"""Right if the option that a response chooses is the gold one, however it is dressed.

    Looked for, in this order, after `</think>`: the last box (`\boxed{\text{C}}`, `\boxed{C. 12}`), the last `<answer>`
    tag, the last "answer is C", "Answer: (C)" or "option C", a line that holds the letter alone. Where the gold answer
    is a digit, as in a few questions of ARC, digits are the labels.

    Args:
        letters: those that can be chosen.
        require_think: whether a response without `</think>` is unparsed.
    """

    name = "choice"
    version = "1"

    def __init__(self, *, letters: str = "ABCDEFGHIJ", require_think: bool = False):
        if not letters.isalpha() or len(set(letters.upper())) != len(letters):
            raise ConfigError("letters", expected="distinct letters, such as ABCD", found=letters, hint="leave it out")
        self._require_think = require_think
        self._letters = _Labels(letters.upper())
        self._digits = _Labels("123456789")

    def judge(self, response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
        """Return the verdict (see `Verifier`)."""
        text = after_thinking(response, required=self._require_think)
        if text is None:
            return Judgement("unparsed", 0.0, None, "no </think>")
        labels = self._digits if self._digits.first(answer) else self._letters
        chosen = labels.chosen(text)
        if chosen is None:
            return Judgement("unparsed", 0.0, None, "no option")
        right = chosen == labels.first(answer)
        return Judgement("correct" if right else "wrong", float(right), chosen)

    def fault_of(self, answer: str, columns: Mapping[str, Any]) -> str | None:
        """Return why no response could be judged against this gold answer (see `Verifier`)."""
        known = self._letters.first(answer) or self._digits.first(answer)
        return None if known else f"it is none of the letters {self._letters.all}"


class _Labels:
    """Finds the option that a text chooses among labels of one character."""

    def __init__(self, labels: str):
        self.all = labels
        one = f"[{labels}{labels.lower()}]"
        # Brackets, dots and colons may follow; another word may not, so that "A" the article is no answer.
        self._leading = re.compile(rf"\s*[(\[]?\s*({one})\s*(?:[)\].:,;]|$|\s*-\s|\s+(?=[^a-z\s]))")
        self._phrase = re.compile(
            rf"\b(?:answer|option|choice)\b[\s*]*(?:is|are|:|=)?[\s*:]*(?:option|choice|letter)?\s*"
            # Looked at and not consumed: a line may hold several. Few characters: what follows them does not matter.
            rf"(?=([(\[]?\s*(?:[{labels}]\b|[(\[]\s*{one}\s*[)\]]).{{0,20}}))",
            re.IGNORECASE,
        )
        self._line = re.compile(rf"^\s*[(\[]?\s*([{labels}])\s*[)\].:]*\s*$", re.MULTILINE)

    def chosen(self, text: str) -> str | None:
        """Return the label that a response chooses, None where it chooses none."""
        boxed = last_boxed(text)
        if boxed is not None:
            return self.first(boxed)
        tag = last_tag(text)
        if tag is not None:
            return self.first(tag)
        plain = _WRAPPERS.sub("", text)
        for phrase in reversed(self._phrase.findall(plain)):
            if label := self.first(phrase):
                return label
        lines = self._line.findall(plain)
        return str(lines[-1]).upper() if lines else None

    def first(self, text: str) -> str | None:
        """Return the label with which a text begins, None where it begins with none."""
        match = self._leading.match(_WRAPPERS.sub("", text).strip())
        return match.group(1).upper() if match else None
