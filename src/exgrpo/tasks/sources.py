"""Rows of questions from wherever they lie; nothing is interpreted yet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from exgrpo.errors import ConfigError, DataError
from exgrpo.seeding import derive_rng
from exgrpo.tasks.chain import ChainSettings, make_questions
from exgrpo.tasks.settings import DataSettings
from exgrpo.verify.registry import import_object

Split = Literal["train", "held_out"]
Row = dict[str, Any]


def read_rows(
    source: str, settings: DataSettings, *, split: Split, seed: int, chain: ChainSettings | None = None
) -> list[Row]:
    """Return the rows of a source as it has them.

    Args:
        source: what `DataSettings` describes.
        settings: splits, revision and gym tasks.
        split: which side of a source that has two (a data set id, chain, gym, a function).
        seed: of questions that are generated.
        chain: which chains.

    Raises:
        DataError: for a source that cannot be read, with the line where that is known.
        ConfigError: for a source that does not exist.
    """
    if source == "chain":
        questions = make_questions(chain or ChainSettings(), seed=seed, split=split)
        return [{"id": q.id, "prompt": q.prompt, "answer": q.answer, "num_terms": q.num_terms} for q in questions]
    if source == "gym":
        return _gym_rows(settings, split, seed)
    path = Path(source)
    if path.suffix in _READERS:
        if not path.is_file():
            raise ConfigError("data source", expected="a file", found=source, hint="check the path")
        return _READERS[path.suffix](path)
    if ":" in source:
        return _function_rows(source, split, seed)
    return _data_set_rows(source, settings, split)


def _parquet_rows(path: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(str(path), expected="a parquet file", found=str(error), hint="write it again") from error
    return rows


def _jsonl_rows(path: Path) -> list[Row]:
    rows = []
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                row = error.msg
            if not isinstance(row, dict):
                raise DataError(
                    f"{path}, line {number}", expected="a JSON object", found=str(row)[:60], hint="one object a line"
                )
            rows.append(row)
    return rows


def _csv_rows(path: Path) -> list[Row]:
    # Not pandas: an answer 007 or 1.50 is a text, and stays one.
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise DataError(
                f"{path}, row {number}",
                expected=f"{len(reader.fieldnames or [])} fields, as the header has",
                found="more or fewer",
                hint="put quotes around texts with commas or line ends",
            )
    return rows


_READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".parquet": _parquet_rows,
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
}


def _data_set_rows(source: str, settings: DataSettings, split: Split) -> list[Row]:
    from datasets import load_dataset

    side = settings.data_split if split == "train" else settings.data_validation_split
    try:
        data = load_dataset(source, settings.data_name, split=side, revision=settings.data_revision)
    except (OSError, ValueError) as error:  # its own errors, connection errors among them, derive from these
        raise DataError(
            f"data set {source}",
            expected=f"a data set that can be loaded, with a split {side!r}",
            found=str(error).splitlines()[0],
            hint="check the id, data_name and the split; a file needs the ending .parquet, .jsonl or .csv",
        ) from error
    rows: list[Row] = data.to_list()
    return rows


def _function_rows(source: str, split: Split, seed: int) -> list[Row]:
    made = import_object(source, "data source")(split=split, seed=seed)
    if not isinstance(made, Iterable):
        raise DataError(source, expected="rows, each a mapping", found=type(made).__name__, hint="return a list")
    return [dict(row) for row in made]


def _gym_rows(settings: DataSettings, split: Split, seed: int) -> list[Row]:
    try:
        import reasoning_gym
        from reasoning_gym.composite import DatasetSpec
    except ImportError as error:
        raise ConfigError(
            "data source", expected="reasoning-gym", found="not installed", hint="pip install 'exgrpo[gym]'"
        ) from error
    size = settings.data_num_questions if split == "train" else settings.data_num_held_out
    try:
        specs = [
            DatasetSpec(name=spec["name"], weight=spec.get("weight", 1.0), config=spec.get("config", {}))
            for spec in settings.gym_tasks
        ]
        # The two sides draw from one procedural source; what both happen to draw is found by the overlap check.
        number = int(derive_rng(seed, "gym", split).integers(2**31))
        entries = list(reasoning_gym.create_dataset("composite", size=size, seed=number, datasets=specs))
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            "data_gym",
            expected="a list of {name, weight, config} with names and parameters that reasoning-gym has",
            found=f"{type(error).__name__}: {error}",
            hint="reasoning_gym.factory.DATASETS lists the names",
        ) from error
    return [
        {
            "question": entry["question"],
            "answer": "" if entry["answer"] is None else str(entry["answer"]),
            "gym_task": entry["metadata"]["source_dataset"],
            "gym_metadata": json.dumps(entry["metadata"], default=str),
        }
        for entry in entries
    ]
