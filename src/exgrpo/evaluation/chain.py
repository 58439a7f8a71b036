"""How well a policy does on held-out chains, and whether its right answers were reasoned or lucky."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exgrpo.evaluation.benchmarks import Benchmark, Suite
from exgrpo.evaluation.engines import Engine
from exgrpo.evaluation.evaluate import Progress, evaluate
from exgrpo.evaluation.records import Record, read_records
from exgrpo.evaluation.scores import Estimate, bootstrap_mean
from exgrpo.evaluation.summary import correct_matrix
from exgrpo.seeding import derive_rng
from exgrpo.tasks.chain import ChainSettings, max_response_tokens

NAME = "chain"


@dataclass(frozen=True, slots=True)
class ChainScores:
    """Scores on held-out chains.

    Attributes:
        pass_at_1: share of right answers over all samples.
        valid_share: share of answers with only valid steps, among the right ones.
        truncated: share of responses that stopped at the length limit.
        num_samples: responses per question.
        questions_by_correct: [num_samples + 1], questions with 0, 1, ... num_samples right answers.
    """

    pass_at_1: Estimate
    valid_share: Estimate
    truncated: float
    num_samples: int
    questions_by_correct: tuple[int, ...]


def chain_suite(settings: ChainSettings, *, seed: int, num_samples: int = 4, temperature: float = 1.0) -> Suite:
    """Return the held-out chains of `settings` as a suite of one benchmark; temperature 1 is that of training."""
    benchmark = Benchmark(
        name=NAME,
        source="chain",
        chain=settings,
        num_samples=num_samples,
        max_new_tokens=max_response_tokens(settings),
        temperature=temperature,
        seed=seed,
    )
    return Suite(NAME, "1", (benchmark,))


def evaluate_chain(
    engine: Engine, suite: Suite, directory: Path, *, model: str, progress: Progress | None = None
) -> ChainScores:
    """Return scores on the suite of `chain_suite`, with the validity of reasoning (see `evaluate`)."""
    scores = evaluate(engine, suite, directory, model=model, progress=progress)
    scores.write(directory)
    benchmark = suite.benchmarks[0]
    records = read_records(directory, NAME)
    _, correct = correct_matrix(records, benchmark.num_samples)
    return ChainScores(
        pass_at_1=scores.benchmarks[0].avg_at_k,
        valid_share=valid_share(records, benchmark),
        truncated=scores.benchmarks[0].truncated,
        num_samples=benchmark.num_samples,
        questions_by_correct=tuple(np.bincount(correct.sum(axis=1), minlength=benchmark.num_samples + 1).tolist()),
    )


def valid_share(records: Sequence[Record], benchmark: Benchmark) -> Estimate:
    """Return the share of right answers whose every step is valid."""
    _, correct = correct_matrix(records, benchmark.num_samples)
    valid = np.array([record.detail == "valid" for record in records], dtype=float).reshape(correct.shape)
    rng = derive_rng(benchmark.seed, "bootstrap", benchmark.name, "valid")
    return bootstrap_mean(valid, correct.astype(float), rng)
