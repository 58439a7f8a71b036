"""Records as scores, and scores as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo.evaluation.benchmarks import Benchmark, Suite
from exgrpo.evaluation.records import Record
from exgrpo.evaluation.scores import (
    Estimate,
    bootstrap_mean,
    bootstrap_rounds,
    interval,
    majority_vote,
    pass_at_k,
)
from exgrpo.seeding import derive_rng


@dataclass(frozen=True, slots=True)
class BenchmarkScores:
    """What a model scores on a benchmark.

    Attributes:
        name: the benchmark.
        num_samples: k, responses per question.
        avg_at_k: Pass@1 estimated from all k samples.
        pass_at_k: k' -> unbiased pass@k', for k' = 1, 2, 4, ... and k.
        majority: share of questions whose most frequent answer is right, NaN for one sample a question.
        truncated: share of responses cut at the length limit.
        unparsed: share of responses in which no answer was found.
        failed: share of responses that could not be judged: timed out or crashed.
        mean_tokens: mean response length.
        verifier: name and version of what judged.
    """

    name: str
    num_samples: int
    avg_at_k: Estimate
    pass_at_k: dict[int, float]
    majority: float
    truncated: float
    unparsed: float
    failed: float
    mean_tokens: float
    verifier: str


@dataclass(frozen=True, slots=True)
class SuiteScores:
    """What a model scores on a suite.

    Attributes:
        model: what the model is called.
        suite: name and version of the suite.
        benchmarks: scores of each.
        means: group -> mean of its benchmarks' avg@k.
    """

    model: str
    suite: str
    benchmarks: tuple[BenchmarkScores, ...]
    means: dict[str, Estimate]

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as plain values; what is undefined is null."""
        plain: dict[str, Any] = _without_nan(asdict(self))
        return plain

    def rows(self) -> list[list[str]]:
        """Return the table: a header, and a row for each benchmark and group."""
        header = ["benchmark", "n", "k", "avg@k", "pass@k", "vote", "cut", "unparsed", "failed", "tokens"]
        means = [[f"mean of {name}", str(mean.n), "", str(mean), *[""] * 6] for name, mean in self.means.items()]
        return [header, *map(_row, self.benchmarks), *means]

    def as_markdown(self) -> str:
        """Return the table as Markdown, with what was measured below it."""
        header, *rows = self.rows()
        lines = [header, ["---"] * len(header), *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{self.model} on {self.suite}. 95 % intervals over questions and samples.\n"

    def write(self, directory: Path) -> None:
        """Write scores.json and scores.md."""
        (directory / "scores.json").write_text(json.dumps(self.as_dict(), indent=2), encoding="utf-8")
        (directory / "scores.md").write_text(self.as_markdown(), encoding="utf-8")


def correct_matrix(records: Sequence[Record], num_samples: int) -> tuple[list[str], np.ndarray]:
    """Return question ids [Q] and bool [Q, k]: which samples are right. Records of a question stand together."""
    ids = list(dict.fromkeys(record.question_id for record in records))
    return ids, np.array([record.correct for record in records], dtype=bool).reshape(len(ids), num_samples)


def score_benchmark(benchmark: Benchmark, records: Sequence[Record], *, verifier: str) -> BenchmarkScores:
    """Return the scores of a benchmark from its records, all samples of a question together."""
    k = benchmark.num_samples
    _, correct = correct_matrix(records, k)
    answers = [[record.extracted for record in records[start : start + k]] for start in range(0, len(records), k)]
    rng = derive_rng(benchmark.seed, "bootstrap", benchmark.name)
    return BenchmarkScores(
        name=benchmark.name,
        num_samples=k,
        avg_at_k=bootstrap_mean(correct.astype(float), np.ones(correct.shape), rng),
        pass_at_k={size: pass_at_k(correct, size) for size in sorted({*_powers_of_two(k), k})},
        majority=majority_vote(answers, correct) if k > 1 else math.nan,
        truncated=float(np.mean([record.truncated for record in records])),
        unparsed=float(np.mean([record.verdict == "unparsed" for record in records])),
        failed=float(np.mean([record.verdict in ("timed_out", "crashed") for record in records])),
        mean_tokens=float(np.mean([record.num_tokens for record in records])),
        verifier=verifier,
    )


def score_groups(
    suite: Suite, model: str, scores: Sequence[BenchmarkScores], records: Mapping[str, Sequence[Record]]
) -> SuiteScores:
    """Return the scores of a suite, with the mean of each group and its interval.

    Benchmarks count alike in a group's mean, whatever their size; each is bootstrapped by itself.
    """
    means: dict[str, Estimate] = {}
    by_name = {score.name: score for score in scores}
    for group, members in suite.groups.items():
        rounds = []
        for name in members:
            _, correct = correct_matrix(records[name], by_name[name].num_samples)
            rng = derive_rng(0, "bootstrap", "group", name)
            rounds.append(bootstrap_rounds(correct.astype(float), np.ones(correct.shape), rng))
        value = float(np.mean([by_name[name].avg_at_k.value for name in members]))
        means[group] = interval(value, np.mean(rounds, axis=0), sum(by_name[name].avg_at_k.n for name in members))
    return SuiteScores(model, f"{suite.name}@{suite.version}", tuple(scores), means)


def _row(scores: BenchmarkScores) -> list[str]:
    shares = (scores.majority, scores.truncated, scores.unparsed, scores.failed)
    return [
        scores.name,
        str(scores.avg_at_k.n),
        str(scores.num_samples),
        str(scores.avg_at_k),
        _percent(scores.pass_at_k[scores.num_samples]),
        *map(_percent, shares),
        f"{scores.mean_tokens:.0f}",
    ]


def _powers_of_two(k: int) -> list[int]:
    return [2**power for power in range(k.bit_length()) if 2**power <= k]


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value
