"""Rows of a source as questions: one form, whatever the columns were called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from exgrpo.errors import DataError
from exgrpo.experience import question_id
from exgrpo.tasks.chain import ChainSettings
from exgrpo.tasks.prompts import PromptTemplate, find_template, lettered
from exgrpo.tasks.settings import DataSettings
from exgrpo.tasks.sources import Row, Split, read_rows

if TYPE_CHECKING:
    from datasets import Dataset

_QUESTION_COLUMNS = ("prompt", "question", "problem")
_ANSWER_COLUMNS = ("answer", "reward_model.ground_truth")
_KEPT = ("data_source", "num_terms", "gym_task", "gym_metadata")  # passed on where a source has them


def load_questions(
    source: str, settings: DataSettings, *, split: Split, seed: int, chain: ChainSettings | None = None
) -> list[Row]:
    """Return questions with id, prompt (a text, or messages), answer, and the columns that are passed on.

    Args:
        source: what `DataSettings` describes.
        settings: columns and template.
        split: which side of a source that has two.
        seed: of questions that are generated.
        chain: which chains.

    Raises:
        DataError: for a source that cannot be read, or lacks a column.
        ConfigError: for a source, a column or a template that does not exist.
    """
    rows = read_rows(source, settings, split=split, seed=seed, chain=chain)
    if not rows:
        raise DataError(source, expected="at least one row", found="none", hint="check the file, or the split")
    template = find_template(settings.data_template) if settings.data_template else None
    question_column = _column(rows[0], settings.data_question_column, _QUESTION_COLUMNS, "data_question_column", source)
    answer_column = _column(rows[0], settings.data_answer_column, _ANSWER_COLUMNS, "data_answer_column", source)
    asked = [settings.data_id_column, settings.data_system_column, settings.data_options_column]
    for column in (*asked, *(settings.data_extra_columns or [])):
        if column is not None and not _has(rows[0], column):
            raise _missing_column(column, rows[0], source)
    id_column = settings.data_id_column or ("id" if source == "chain" else None)
    questions = []
    for row in rows:
        prompt, answer = _prompt_and_answer(row, question_column, answer_column, settings, template)
        own_id = _reach(row, id_column) if id_column else question_id(prompt, answer)
        extra = {name: row[name] for name in _KEPT if name in row}
        extra |= {name: _reach(row, name) for name in settings.data_extra_columns or []}
        questions.append({"id": "" if own_id is None else str(own_id), "prompt": prompt, "answer": answer, **extra})
    return questions


def to_dataset(questions: Sequence[Row]) -> Dataset:
    """Return questions as a data set for a trainer."""
    from datasets import Dataset

    return Dataset.from_list(list(questions))


def columns_of(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a verifier gets besides response and answer."""
    return {name: value for name, value in question.items() if name not in ("prompt", "answer")}


def _prompt_and_answer(
    row: Row, question_column: str, answer_column: str, settings: DataSettings, template: PromptTemplate | None
) -> tuple[Any, str]:
    asked = _reach(row, question_column)
    answer = _reach(row, answer_column)
    if isinstance(answer, list):  # several parts, as OlympiadBench has them
        answer = ", ".join(str(part) for part in answer)
    answer = "" if answer is None else str(answer)
    if settings.data_answer_after is not None:
        answer = answer.rpartition(settings.data_answer_after)[2]
    answer = answer.strip()
    if settings.data_options_column:
        options, labels = _options(_reach(row, settings.data_options_column))
        asked = f"{asked}\n\n{lettered(options)}"
        if answer in labels:
            answer = "ABCDEFGHIJ"[labels.index(answer)]
    system = _reach(row, settings.data_system_column) if settings.data_system_column else None
    if not isinstance(asked, str):
        if template is not None or system:
            raise DataError(
                f"column {question_column!r}",
                expected="a text, since data_template or data_system_column is set",
                found="messages, which are a prompt already",
                hint="leave data_template and data_system_column out: the data's own prompts are kept",
            )
        return ([{"role": m["role"], "content": m["content"]} for m in asked] if asked else ""), answer
    if template is None and system:
        template = find_template("chat")
    return (asked if template is None else template.render(asked, system=system)), answer


def _options(value: Any) -> tuple[list[str], list[str]]:
    """Return options and their labels: a list of texts, or texts and labels in parallel (as ARC has them)."""
    if isinstance(value, Mapping):
        return [str(text) for text in value["text"]], [str(label) for label in value["label"]]
    options = [str(text) for text in value or []]
    return options, [str(number) for number in range(len(options))]


def _column(row: Row, named: str | None, usual: Sequence[str], setting: str, source: str) -> str:
    if named is not None:
        if not _has(row, named):
            raise _missing_column(named, row, source)
        return named
    for name in usual:
        if _has(row, name):
            return name
    raise DataError(
        source, expected=f"a column {' or '.join(usual)}", found=sorted(row), hint=f"name the column as {setting}"
    )


def _missing_column(column: str, row: Row, source: str) -> DataError:
    return DataError(source, expected=f"a column {column!r}", found=sorted(row), hint="check the spelling")


def _has(row: Mapping[str, Any], path: str) -> bool:
    if path in row:
        return True
    first, _, rest = path.partition(".")
    return bool(rest) and isinstance(row.get(first), Mapping) and _has(row[first], rest)


def _reach(row: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, or of a field inside one: `reward_model.ground_truth`."""
    if path in row:
        return row[path]
    first, _, rest = path.partition(".")
    inner = row.get(first)
    return _reach(inner, rest) if rest and isinstance(inner, Mapping) else None
