"""Where in a response the answer stands. Linear in its length, whatever it holds; compares nothing."""

from __future__ import annotations

import re

THINK_END = "</think>"

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}\\]|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$.,;]+)")
# What may stand between two boxes that together give one answer: \boxed{1} and \boxed{2}.
_BETWEEN_BOXES = re.compile(r"[\s$,;&\\()\[\]]*(?:\b(?:and|or)\b|\\text\{\s*(?:and|or)\s*\})?[\s$,;&\\()\[\]]*")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_PHRASE = re.compile(
    r"\b(?:final\s+answer|answer|solution|result)\b\s*(?:\*\*)?\s*(?:is|are|=|:)(?:\s*:)?\s*(?:\*\*)?\s*([^\n]+)",
    re.IGNORECASE,
)
_TRIMMED = " \t\r\n*_`\"'"


def after_thinking(response: str, *, required: bool = False) -> str | None:
    """Return the part of a response in which the answer counts: what follows the last `</think>`.

    Args:
        response: the text.
        required: whether a response without `</think>` has no such part (None), or is that part as a whole.
    """
    _, found, rest = response.rpartition(THINK_END)
    return rest if found or not required else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last box whose braces are balanced, None where there is none.

    Boxes that stand together, with nothing but `and`, `or` or a comma between them, are one answer: their contents are
    joined by commas. `\fbox` counts, and `\boxed 5` without braces where no box has any.
    """
    boxes = _outer_boxes(text)
    if not boxes:
        bare = _BARE_BOX.findall(text)
        return bare[-1] if bare else None
    joined = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not _BETWEEN_BOXES.fullmatch(text, box.end + 1, joined[0].start):
            break
        joined.insert(0, box)
    contents = dict.fromkeys(text[box.content : box.end].strip() for box in joined)
    return ", ".join(content for content in contents if content)


def last_tag(text: str) -> str | None:
    """Return the content of the last `<answer>` tag, None where there is none."""
    tags = _TAG.findall(text)
    return str(tags[-1]).strip() if tags else None


def final_answer(text: str) -> str | None:
    """Return the answer that a text states: the last box, the last `<answer>` tag, or what follows "the answer is".

    None where it states none. An empty box is an empty answer, and no reason to look elsewhere.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    tag = last_tag(text)
    if tag is not None:
        return tag
    phrases = _PHRASE.findall(text)
    if not phrases:
        return None
    answer = str(phrases[-1]).strip(_TRIMMED)
    return answer[:-1].rstrip(_TRIMMED) if answer.endswith(".") else answer


class _Box:
    __slots__ = ("content", "end", "start")

    def __init__(self, start: int, content: int, end: int):
        self.start, self.content, self.end = start, content, end


def _outer_boxes(text: str) -> list[_Box]:
    """Return the balanced boxes that lie in no other balanced box, in order. One pass over the braces."""
    opened: list[tuple[int, int] | None] = []  # (start, content) of a box, None for another brace
    boxes: list[_Box] = []
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            # A brace too many closes nothing, and one too few keeps what follows from being inside.
            box = opened.pop() if opened else None
            if box is not None:
                while boxes and boxes[-1].start > box[0]:
                    boxes.pop()
                boxes.append(_Box(box[0], box[1], match.start()))
        elif token == "{":
            opened.append(None)
        elif token not in ("\\{", "\\}", "\\\\"):
            opened.append((match.start(), match.end()))
    return boxes
