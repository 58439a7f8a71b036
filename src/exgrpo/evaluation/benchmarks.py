"""What is asked in an evaluation: benchmarks, and suites of them in data files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from exgrpo.assets import paper_suite
from exgrpo.errors import ConfigError, DataError
from exgrpo.tasks.chain import ChainSettings
from exgrpo.tasks.questions import load_questions
from exgrpo.tasks.settings import DataSettings
from exgrpo.tasks.sources import Row
from exgrpo.verify import VerifySettings

SCHEMA_VERSION = 1
_DATA_FILES = (".parquet", ".jsonl", ".csv")


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: its questions, and how they are asked and judged.

    Attributes:
        name: what it is called in tables and file names.
        source: where questions come from (see `DataSettings`).
        data: columns, split, revision, template.
        verify: verifier and limits.
        chain: which chains, where the source is the chain task.
        num_samples: responses per question.
        max_new_tokens: length limit of a response.
        temperature: of the samples; 0 is greedy.
        top_p: nucleus of the samples, in (0, 1].
        seed: of the samples, and of the questions where they are generated.
        only: column -> value that a question's row must have.
    """

    name: str
    source: str
    data: DataSettings = field(default_factory=DataSettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    chain: ChainSettings = field(default_factory=ChainSettings)
    num_samples: int = 1
    max_new_tokens: int = 8192
    temperature: float = 0.6
    top_p: float = 1.0
    seed: int = 0
    only: Mapping[str, str] = field(default_factory=dict)

    def questions(self) -> list[Row]:
        """Return the distinct questions in the order of their source.

        Raises:
            DataError: where the source cannot be read or no row is left.
            ConfigError: for a source, column or template that does not exist.
        """
        data = dataclasses.replace(
            self.data, data_extra_columns=sorted({*(self.data.data_extra_columns or []), *self.only})
        )
        rows = load_questions(self.source, data, split="held_out", seed=self.seed, chain=self.chain)
        rows = [row for row in rows if all(str(row[column]) == str(value) for column, value in self.only.items())]
        if not rows:
            raise DataError(
                f"benchmark {self.name}",
                expected=f"rows with {dict(self.only)}",
                found="none",
                hint="check the suite's `only`",
            )
        # Some files repeat a question as often as it is to be sampled; here num_samples says that.
        return list({row["id"]: row for row in rows}.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the benchmark as a suite file has it."""
        values = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name not in ("name", "data", "verify", "chain", "only")
        }
        for part in (self.data, self.verify, self.chain):
            for item in dataclasses.fields(part):
                if getattr(part, item.name) != item.default:
                    values[item.name] = getattr(part, item.name)
        return values | ({"only": dict(self.only)} if self.only else {})


@dataclass(frozen=True)
class Suite:
    """Benchmarks that are run together.

    Attributes:
        name: what it is called.
        version: of its content; scores of two versions are not comparable.
        benchmarks: in the order of the table.
        groups: name -> benchmarks whose mean is reported.
    """

    name: str
    version: str
    benchmarks: tuple[Benchmark, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the suite as a file that `load_suite` reads."""
        values = {
            "schema_version": SCHEMA_VERSION,
            "version": self.version,
            "benchmarks": {benchmark.name: benchmark.as_dict() for benchmark in self.benchmarks},
            "groups": {name: list(members) for name, members in self.groups.items()},
        }
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


def load_suite(name: str, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Return a suite.

    Args:
        name: `math`, `general` or `all` of the paper's benchmarks; a suite file (.yaml); or a data file, which is then
            a suite of one benchmark.
        overrides: values that win over the suite's, for each of its benchmarks: fields of `Benchmark` such as
            num_samples, and of `DataSettings` and `VerifySettings`.

    Raises:
        ConfigError: for a suite that does not exist or is not of the right form.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    path = Path(name)
    if path.suffix in _DATA_FILES:
        return Suite(path.stem, "1", (_benchmark(name, path.stem, {"source": name, **given}),))
    if name in ("math", "general", "all"):
        return _select(_read(paper_suite(), given), name)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        raise ConfigError(
            "suite",
            expected="math, general, all, a suite file (.yaml) or a data file (.parquet, .jsonl, .csv)",
            found=name,
            hint="docs/evaluation.md shows a suite file",
        )
    return _read(path, given)


def _read(path: Path, given: Mapping[str, Any]) -> Suite:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), expected="a YAML file", found=str(error), hint="mend it") from error
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION or not values.get("benchmarks"):
        raise ConfigError(
            str(path),
            expected=f"schema_version: {SCHEMA_VERSION}, version, and benchmarks",
            found=sorted(values) if isinstance(values, dict) else type(values).__name__,
            hint="docs/evaluation.md shows a suite file",
        )
    defaults = values.get("defaults", {})
    benchmarks = tuple(
        _benchmark(str(path), name, {**defaults, **entry, **given}) for name, entry in values["benchmarks"].items()
    )
    groups = {name: tuple(members) for name, members in values.get("groups", {}).items()}
    unknown = {member for members in groups.values() for member in members} - set(values["benchmarks"])
    if unknown:
        raise ConfigError(str(path), expected="groups of its benchmarks", found=sorted(unknown), hint="spell as above")
    return Suite(path.stem, str(values.get("version", "1")), benchmarks, groups)


def _select(suite: Suite, group: str) -> Suite:
    if group == "all":
        return dataclasses.replace(suite, name="all")
    members = suite.groups[group]
    chosen = tuple(benchmark for benchmark in suite.benchmarks if benchmark.name in members)
    return Suite(group, suite.version, chosen, {group: members})


def _benchmark(where: str, name: str, values: Mapping[str, Any]) -> Benchmark:
    """Return a benchmark from one flat mapping; which part a value belongs to follows from its name."""
    rest = dict(values)
    parts: dict[str, Any] = {}
    for part, cls in (("data", DataSettings), ("verify", VerifySettings), ("chain", ChainSettings)):
        names = {item.name for item in dataclasses.fields(cls)}
        own = {key: rest.pop(key) for key in list(rest) if key in names}
        parts[part] = cls(**own)
    known = {item.name for item in dataclasses.fields(Benchmark)} - {"name", *parts}
    unknown = sorted(set(rest) - known)
    if unknown or "source" not in rest:
        raise ConfigError(
            f"{where}, benchmark {name}",
            expected=f"source, and any of {', '.join(sorted(known))}, data_*, verify_*, chain_*",
            found=", ".join(unknown) or "no source",
            hint="docs/evaluation.md shows a suite file",
        )
    return _checked(Benchmark(name=name, **rest, **parts), where)


def _checked(benchmark: Benchmark, where: str) -> Benchmark:
    limits: Sequence[tuple[str, bool, str]] = (
        ("num_samples", benchmark.num_samples >= 1, "at least 1"),
        ("max_new_tokens", benchmark.max_new_tokens >= 1, "at least 1"),
        ("temperature", benchmark.temperature >= 0, "0 or more"),
        ("top_p", 0 < benchmark.top_p <= 1, "a share in (0, 1]"),
    )
    for name, holds, expected in limits:
        if not holds:
            raise ConfigError(
                f"{where}, benchmark {benchmark.name}, {name}",
                expected=expected,
                found=getattr(benchmark, name),
                hint="mend that value",
            )
    return benchmark
