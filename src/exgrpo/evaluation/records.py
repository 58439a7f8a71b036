"""Responses of an evaluation on disk: written as they come, so that a stopped evaluation goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exgrpo.errors import ConfigError, DataError

SCHEMA_VERSION = 1
HEADER = "evaluation.json"


@dataclass(frozen=True, slots=True)
class Record:
    """One judged response.

    Attributes:
        question_id: its question.
        sample: its number among the samples of the question, from 0.
        answer: the gold answer.
        response: what the model wrote.
        num_tokens: of the response, end token included.
        truncated: whether it stopped at the length limit.
        verdict: see `exgrpo.types.Judgement`.
        extracted: the answer found in the response, None where there is none.
        detail: what else the verifier says.
    """

    question_id: str
    sample: int
    answer: str
    response: str
    num_tokens: int
    truncated: bool
    verdict: str
    extracted: str | None
    detail: str

    @property
    def correct(self) -> bool:
        """Whether the answer is right."""
        return self.verdict == "correct"


def records_path(directory: Path, benchmark: str) -> Path:
    """Return the file that holds the records of a benchmark."""
    return directory / "records" / f"{benchmark}.jsonl"


def read_records(directory: Path, benchmark: str) -> list[Record]:
    """Return what an evaluation has written so far; a line that a crash has cut at the end is left out.

    Raises:
        DataError: for a line that is no record, other than the last.
    """
    path = records_path(directory, benchmark)
    return [record for _, record in _whole_records(path)] if path.exists() else []


def append_records(directory: Path, benchmark: str, records: Sequence[Record]) -> None:
    """Add records to the file of a benchmark; they are on the disk when this returns."""
    path = records_path(directory, benchmark)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
        stream.flush()
        os.fsync(stream.fileno())


def cut_to(directory: Path, benchmark: str, num_records: int) -> None:
    """Keep the first `num_records` records of a benchmark's file."""
    path = records_path(directory, benchmark)
    if not path.exists():
        return
    end = 0
    for number, (position, _) in enumerate(_whole_records(path), 1):
        if number <= num_records:
            end = position
    with path.open("r+b") as stream:
        stream.truncate(end)


def open_directory(directory: Path, settings: dict[str, Any]) -> None:
    """Make an evaluation's directory, or see that it belongs to the same evaluation.

    Raises:
        ConfigError: where it holds another evaluation.
    """
    header = directory / HEADER
    values = {"schema_version": SCHEMA_VERSION, **settings}
    if header.exists():
        found = json.loads(header.read_text(encoding="utf-8"))
        different = sorted(name for name in values if found.get(name) != json.loads(json.dumps(values[name])))
        if different:
            raise ConfigError(
                str(directory),
                expected="no evaluation, or this one to go on with",
                found=f"one with another {', '.join(different)}",
                hint="name another output_dir",
            )
        return
    directory.mkdir(parents=True, exist_ok=True)
    temporary = header.with_suffix(".tmp")
    temporary.write_text(json.dumps(values, indent=2), encoding="utf-8")
    temporary.replace(header)


def _whole_records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield (position after it, record) for each whole line."""
    position = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        try:
            record = Record(**json.loads(line))
        except (json.JSONDecodeError, TypeError) as error:
            raise DataError(
                f"{path}, line {number}", expected="a record", found=str(error), hint="evaluate again elsewhere"
            ) from error
        position += len(line)
        yield position, record
