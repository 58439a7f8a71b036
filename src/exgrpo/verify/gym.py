"""reasoning-gym's own scorers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import reasoning_gym

from exgrpo.errors import ConfigError
from exgrpo.types import Judgement
from exgrpo.verify.extract import after_thinking, final_answer


class GymVerifier:
    """Right if the scorer of the question's reasoning-gym task gives at least `threshold`.

    The columns `gym_task` (its name) and `gym_metadata` (JSON) say which scorer and what it needs; the gym's question
    source writes them. The answer is the last box, the last `<answer>` tag or what follows "the answer is", after
    `</think>`; without any of these the whole text.

    Args:
        threshold: the least score that is right, in (0, 1]. Scorers give partial credit, some of them for any answer.
        require_think: whether a response without `</think>` is unparsed.
    """

    name = "gym"

    def __init__(self, *, threshold: float = 1.0, require_think: bool = False):
        if not 0 < threshold <= 1:
            raise ConfigError("threshold", expected="a number in (0, 1]", found=threshold, hint="1 wants a full score")
        self.version = f"1/reasoning-gym-{version('reasoning-gym')}"
        self._threshold = threshold
        self._require_think = require_think

    def judge(self, response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
        """Return the verdict (see `Verifier`)."""
        text = after_thinking(response, required=self._require_think)
        if text is None or not text.strip():
            return Judgement("unparsed", 0.0, None, "no answer")
        stated = final_answer(text)
        found = text.strip() if stated is None else stated
        entry = {"question": "", "answer": answer, "metadata": json.loads(columns["gym_metadata"])}
        score = float(_scorer(columns["gym_task"])(answer=found, entry=entry))
        return Judgement("correct" if score >= self._threshold else "wrong", score, found)

    def fault_of(self, answer: str, columns: Mapping[str, Any]) -> str | None:
        """Return why no response could be judged against this gold answer (see `Verifier`)."""
        if not {"gym_task", "gym_metadata"} <= set(columns):
            return "its row has no columns gym_task and gym_metadata; ask the gym source for the questions"
        score = self.judge(answer, answer, columns).score if answer else 1.0  # some tasks have no single answer
        return None if score >= self._threshold else f"its own scorer gives it {score:g}"


@lru_cache(maxsize=256)
def _scorer(task: str) -> Any:
    return reasoning_gym.get_score_answer_fn(task)
