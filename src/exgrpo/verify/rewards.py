"""Verdicts as rewards, in the form that TRL calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exgrpo.errors import DataError
from exgrpo.types import Judgement
from exgrpo.verify.extract import THINK_END, after_thinking, last_boxed
from exgrpo.verify.judge import Judge
from exgrpo.verify.settings import VerifySettings

Completion = str | Sequence[Mapping[str, str]]

# What TRL passes to reward functions besides the data set's columns.
_NOT_COLUMNS = {"trainer_state", "log_extra", "log_metric", "environments", "completion_ids", "prompts", "completions"}


class AnswerReward:
    """Rewards right answers; a TRL reward function as it is.

    Verdicts and extracted answers go to TRL's completions table through `log_extra`, where `ExGRPOTrainer` reads them:
    a rollout is a success where its verdict is `correct`, whatever other rewards add.

    Args:
        judge: judges the answers.
        settings: what each verdict is worth.
        answer_column: the data set's column of gold answers.
    """

    __name__ = "answer_reward"

    def __init__(self, judge: Judge, settings: VerifySettings, *, answer_column: str = "answer"):
        self._judge = judge
        self.verifier = judge.id
        self._settings = settings
        self._answer_column = answer_column

    def __call__(
        self,
        *,
        completions: Sequence[Completion],
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Return a reward for each completion [N].

        Raises:
            DataError: where the data set has no column of gold answers.
        """
        judgements = self.judge(completions, columns)
        if log_extra is not None:
            log_extra("verdict", [judgement.verdict for judgement in judgements])
            log_extra("extracted", [judgement.extracted or "" for judgement in judgements])
        return [self._settings.reward(judgement.verdict) for judgement in judgements]

    def judge(self, completions: Sequence[Completion], columns: Mapping[str, Any]) -> list[Judgement]:
        """Return a judgement for each completion [N]; `columns` maps a name to N values."""
        answers = columns.get(self._answer_column)
        if answers is None:
            raise DataError(
                "train_dataset",
                expected=f"a column {self._answer_column!r} with the gold answers",
                found=sorted(set(columns) - _NOT_COLUMNS),
                hint="name the column that holds them as answer_column",
            )
        others = {
            name: values
            for name, values in columns.items()
            if name not in _NOT_COLUMNS and isinstance(values, Sequence) and len(values) == len(completions)
        }
        others.pop(self._answer_column, None)
        rows = [{name: values[row] for name, values in others.items()} for row in range(len(completions))]
        return self._judge.judge([text_of(completion) for completion in completions], [str(a) for a in answers], rows)


def text_of(completion: Completion) -> str:
    """Return the text of a completion: a string, or the last message of a chat."""
    if isinstance(completion, str):
        return completion
    message = completion[-1]
    # Where a tokenizer's response schema splits off the reasoning, the rest is what follows it.
    thought = message.get("reasoning_content") or message.get("thinking")
    content = message.get("content") or ""
    return f"{thought}{THINK_END}{content}" if thought else content


def format_reward(*, thinks: bool, boxed: bool) -> Callable[..., list[float]]:
    """Return a TRL reward function: 1 for a response in the template's form, else 0.

    Args:
        thinks: whether the form has one `</think>` with text before and after it.
        boxed: whether it has a balanced box in the part where the answer counts.
    """

    def format_reward(*, completions: Sequence[Completion], **_: Any) -> list[float]:
        return [float(_has_form(text_of(completion))) for completion in completions]

    def _has_form(text: str) -> bool:
        rest = after_thinking(text, required=thinks)
        if rest is None or not rest.strip():
            return False
        thought = text.partition(THINK_END)[0].replace("<think>", "").strip()
        one_thought = not thinks or (text.count(THINK_END) == 1 and bool(thought))
        return one_thought and (not boxed or bool(last_boxed(rest)))

    return format_reward


def length_penalty(*, max_tokens: int, buffer: int) -> Callable[..., list[float]]:
    """Return a TRL reward function: 0 up to `max_tokens - buffer` tokens, then falling in a line to -1 at `max_tokens`.

    DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).
    """

    def length_penalty(*, completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        over = [len(ids) - (max_tokens - buffer) for ids in completion_ids]
        return [-min(max(tokens / buffer, 0.0), 1.0) for tokens in over]

    return length_penalty


def reward_functions(
    judge: Judge,
    settings: VerifySettings,
    *,
    max_tokens: int,
    thinks: bool = False,
    boxed: bool = False,
    answer_column: str = "answer",
) -> tuple[list[Callable[..., list[float]]], list[float]]:
    """Return TRL's `reward_funcs` and `reward_weights` for these settings: the answer's first, with weight 1."""
    functions: list[Callable[..., list[float]]] = [AnswerReward(judge, settings, answer_column=answer_column)]
    weights = [1.0]
    if settings.reward_format_weight:
        functions.append(format_reward(thinks=thinks, boxed=boxed))
        weights.append(settings.reward_format_weight)
    if settings.reward_length_weight:
        functions.append(length_penalty(max_tokens=max_tokens, buffer=settings.reward_length_buffer))
        weights.append(settings.reward_length_weight)
    return functions, weights
