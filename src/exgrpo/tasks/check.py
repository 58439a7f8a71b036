"""Everything that can be wrong with questions, found before a model is loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from exgrpo.errors import ConfigError, DataError
from exgrpo.tasks.prompts import question_text
from exgrpo.tasks.questions import columns_of
from exgrpo.tasks.sources import Row
from exgrpo.verify.judge import Judge

# Of a kind of finding, this many are told apart; the rest are counted.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the data.

    Attributes:
        severity: an `error` stops a run, a `warning` does not.
        kind: `missing_id`, `duplicate_id`, `repeated_row`, `empty_question`, `empty_answer`, `unverifiable_answer`,
            `long_prompt` or `overlap`.
        num_rows: how many rows have it.
        message: what it is, with the first rows.
        dropped: whether these rows were left out, as `data_bad_rows=drop` asks.
    """

    severity: Literal["error", "warning"]
    kind: str
    num_rows: int
    message: str
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class DataReport:
    """What a check found.

    Attributes:
        source: where the questions come from.
        num_rows: rows read.
        num_questions: distinct ids among the rows that are kept.
        prompt_tokens: median, 95 % quantile and maximum.
        verifier: name and version of what the answers were tried with.
        findings: faults, errors first.
        example: the first prompt as the model gets it.
        example_answer: its gold answer.
    """

    source: str
    num_rows: int
    num_questions: int
    prompt_tokens: tuple[int, int, int]
    verifier: str
    findings: tuple[Finding, ...]
    example: str
    example_answer: str

    @property
    def errors(self) -> list[Finding]:
        """The findings that stop a run."""
        return [finding for finding in self.findings if finding.severity == "error"]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        return asdict(self)

    def require(self) -> None:
        """Raise a DataError where a finding stops a run."""
        if self.errors:
            raise DataError(
                self.source,
                expected="questions that can all be asked and judged",
                found="\n  ".join(["", *(f"{finding.kind}: {finding.message}" for finding in self.errors)]),
                hint="mend the rows, or leave unusable ones out with data_bad_rows=drop",
            )


@dataclass(frozen=True, slots=True)
class CheckedQuestions:
    """Questions that can be used, and what the check found.

    Attributes:
        questions: those that are kept.
        report: the findings.
    """

    questions: list[Row]
    report: DataReport


def check_questions(
    questions: Sequence[Row],
    *,
    source: str,
    judge: Judge,
    render: Callable[[Any], str],
    count_tokens: Callable[[Sequence[str]], list[int]],
    max_prompt_tokens: int,
    drop_bad: bool = False,
    others: Mapping[str, Sequence[Row]] | None = None,
) -> CheckedQuestions:
    """Return what is wrong with questions, and those that can be used.

    Args:
        questions: rows with id, prompt and answer.
        source: their name in messages.
        judge: tries each distinct gold answer.
        render: prompt -> the text that the model gets.
        count_tokens: texts -> their numbers of tokens.
        max_prompt_tokens: the most a prompt may have.
        drop_bad: whether rows that cannot be used are left out rather than an error.
        others: name -> questions with which these must not overlap. Overlaps are errors always.
    """
    if not questions:
        raise DataError(source, expected="at least one question", found="none", hint="check the source")
    texts = [render(question["prompt"]) if question["prompt"] else "" for question in questions]
    lengths = count_tokens(texts)
    bad: dict[str, dict[int, str]] = {
        "missing_id": {n: "no id" for n, question in enumerate(questions) if not question["id"]},
        "empty_question": {n: "no text" for n, q in enumerate(questions) if not question_text(q["prompt"]).strip()},
        "unverifiable_answer": _unverifiable(questions, judge),
        "long_prompt": {
            n: f"{length} tokens, more than data_max_prompt_tokens={max_prompt_tokens}"
            for n, length in enumerate(lengths)
            if length > max_prompt_tokens
        },
    }
    findings = [
        Finding("warning" if drop_bad else "error", kind, len(rows), _describe(rows), dropped=drop_bad)
        for kind, rows in bad.items()
        if rows
    ]
    unusable = set().union(*bad.values()) if drop_bad else set()
    kept = [question for n, question in enumerate(questions) if n not in unusable]
    findings += _identity_findings(questions)
    overlaps = [_overlap(kept, name, other) for name, other in (others or {}).items()]
    findings += [finding for finding in overlaps if finding is not None]
    order = sorted(findings, key=lambda finding: finding.severity != "error")
    kept_lengths = [length for n, length in enumerate(lengths) if n not in unusable] or [0]
    report = DataReport(
        source=source,
        num_rows=len(questions),
        num_questions=len({question["id"] for question in kept}),
        prompt_tokens=tuple(int(np.quantile(kept_lengths, q)) for q in (0.5, 0.95, 1.0)),  # type: ignore[arg-type]
        verifier=judge.id,
        findings=tuple(order),
        example=texts[0],
        example_answer=questions[0]["answer"],
    )
    return CheckedQuestions(kept, report)


def chat_renderer(tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None) -> Callable[[Any], str]:
    """Return a function that renders a prompt as the model gets it, messages by the tokenizer's chat template.

    Raises (the function):
        ConfigError: for messages where the tokenizer has no chat template.
    """

    def render(prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        if tokenizer.chat_template is None:
            raise ConfigError(
                "data_template",
                expected="a template of text style (steps, plain): this tokenizer has no chat template",
                found="prompts that are messages",
                hint="use a model with a chat template, or plain questions with data_template steps or plain",
            )
        text: str = tokenizer.apply_chat_template(
            prompt, tokenize=False, add_generation_prompt=True, **(chat_template_kwargs or {})
        )
        return text

    return render


def _unverifiable(questions: Sequence[Row], judge: Judge) -> dict[int, str]:
    """Return row -> fault. Repeated answers are tried once, unless the verifier looks at other columns (the gym's)."""
    first: dict[tuple[str, str], int] = {}
    for n, question in enumerate(questions):
        first.setdefault((question["answer"], str(question.get("gym_metadata", ""))), n)
    rows = list(first.values())
    said = judge.faults_of([questions[n]["answer"] for n in rows], [columns_of(questions[n]) for n in rows])
    faults = dict(zip(first, said, strict=True))
    found: dict[int, str] = {}
    for n, question in enumerate(questions):
        fault = faults[question["answer"], str(question.get("gym_metadata", ""))]
        if fault is not None:
            found[n] = f"answer {question['answer'][:60]!r}: {fault}" if question["answer"] else "no answer"
    return found


def _describe(rows: Mapping[int, str]) -> str:
    shown = "; ".join(f"row {n}: {fault}" for n, fault in list(rows.items())[:_SHOWN])
    return shown if len(rows) <= _SHOWN else f"{shown}; and {len(rows) - _SHOWN} more"


def _identity_findings(questions: Sequence[Row]) -> list[Finding]:
    """Return what is wrong with ids: one id for two questions is an error, a repeated row is worth a word."""
    first: dict[str, int] = {}
    clashes: dict[int, str] = {}
    repeats: dict[int, str] = {}
    for n, question in enumerate(questions):
        before = first.setdefault(question["id"], n)
        if before == n or not question["id"]:
            continue
        same = all(questions[before][name] == question[name] for name in ("prompt", "answer"))
        (repeats if same else clashes)[n] = f"id {question['id']!r} is that of row {before}"
    found = []
    if clashes:
        found.append(Finding("error", "duplicate_id", len(clashes), _describe(clashes)))
    if repeats:
        message = f"{_describe(repeats)}. A repeated question counts once."
        found.append(Finding("warning", "repeated_row", len(repeats), message))
    return found


def _overlap(questions: Sequence[Row], name: str, others: Sequence[Row]) -> Finding | None:
    """Return the finding that questions stand in `others` too, None where none does. Case and spaces do not count."""
    theirs = {_normal(question) for question in others}
    shared: dict[str, list[int]] = defaultdict(list)
    for n, question in enumerate(questions):
        if (text := _normal(question)) in theirs:
            shared[text].append(n)
    if not shared:
        return None
    rows = {rows[0]: repr(question_text(questions[rows[0]]["prompt"])[:60]) for rows in shared.values()}
    message = f"{len(shared)} distinct questions also stand in {name}: {_describe(rows)}"
    return Finding("error", "overlap", sum(map(len, shared.values())), message)


def _normal(question: Row) -> str:
    return " ".join(question_text(question["prompt"]).casefold().split())
