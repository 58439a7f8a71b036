"""Two evaluations of the same questions: is one better, or is it chance?"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo.errors import DataError
from exgrpo.evaluation.records import HEADER, read_records
from exgrpo.evaluation.scores import ROUNDS, Estimate, interval
from exgrpo.seeding import derive_rng

PERMUTATIONS = 10_000
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A on one benchmark, question by question.

    Attributes:
        benchmark: its name.
        num_questions: questions that both have.
        a, b: avg@k of the two on these.
        difference: b - a, with a bootstrap interval over questions (paired) and samples.
        p_value: of a two-sided sign-flip permutation test over questions.
        num_differing: questions on which the two differ.
        detectable: a difference below this cannot be told from none here: half the width of the interval, roughly.
        verdict: what follows, in words.
    """

    benchmark: str
    num_questions: int
    a: float
    b: float
    difference: Estimate
    p_value: float
    num_differing: int
    detectable: float
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return asdict(self)


def compare(first: Path, second: Path, *, seed: int = 0) -> list[Comparison]:
    """Return how the evaluation in `second` differs from that in `first`, for each benchmark that both have.

    Args:
        first: directory A that `evaluate` wrote.
        second: directory B.
        seed: of the bootstrap and the permutations.

    Raises:
        DataError: where one is no evaluation, they share no benchmark, or ask other questions.
    """
    names = [_benchmarks(directory) for directory in (first, second)]
    shared = [name for name in names[0] if name in names[1]]
    if not shared:
        raise DataError(
            f"{first} and {second}", expected="a benchmark that both have", found=names, hint="evaluate on one suite"
        )
    return [compare_benchmark(name, _samples(first, name), _samples(second, name), seed=seed) for name in shared]


def compare_benchmark(
    name: str, first: dict[str, list[float]], second: dict[str, list[float]], *, seed: int
) -> Comparison:
    """Return how two models differ on the questions that both answered.

    Args:
        name: the benchmark.
        first: of A, question id -> 1 for each right sample, 0 for the others.
        second: the same of B.
        seed: of the bootstrap and the permutations.
    """
    ids = sorted(first.keys() & second.keys())
    if not ids:
        raise DataError(
            f"benchmark {name}",
            expected="questions that both evaluations answered",
            found="none",
            hint="evaluate both on the same version of the suite, with the same limit",
        )
    means = np.array([[np.mean(first[key]), np.mean(second[key])] for key in ids])
    differences = means[:, 1] - means[:, 0]
    rounds = _paired_rounds([first[key] for key in ids], [second[key] for key in ids], seed, name)
    estimate = interval(float(differences.mean()), rounds, len(ids))
    p_value = sign_flip_p_value(differences, derive_rng(seed, "compare", name, "permutation"))
    differing = int(np.count_nonzero(differences))
    detectable = (estimate.high - estimate.low) / 2
    return Comparison(
        benchmark=name,
        num_questions=len(ids),
        a=float(means[:, 0].mean()),
        b=float(means[:, 1].mean()),
        difference=estimate,
        p_value=p_value,
        num_differing=differing,
        detectable=detectable,
        verdict=_verdict(estimate, p_value, differing, detectable),
    )


def sign_flip_p_value(differences: np.ndarray, rng: np.random.Generator, rounds: int = PERMUTATIONS) -> float:
    """Return the two-sided p-value of the mean difference under random signs of the questions' differences [Q].

    The observed arrangement counts among the drawn ones, so that p is never 0 (Phipson and Smyth 2010).
    """
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    observed = abs(nonzero.sum())
    at_least = 0
    for start in range(0, rounds, 500):
        signs = rng.choice([-1.0, 1.0], size=(min(500, rounds - start), len(nonzero)))
        at_least += int(np.count_nonzero(np.abs(signs @ nonzero) >= observed - 1e-12))
    return (at_least + 1) / (rounds + 1)


def _paired_rounds(first: Sequence[list[float]], second: Sequence[list[float]], seed: int, name: str) -> np.ndarray:
    """Return the mean difference of each bootstrap round: the same questions for both, samples of each by itself."""
    rng = derive_rng(seed, "compare", name, "samples")
    num = len(first)
    rounds = np.zeros((ROUNDS, 2))
    for side, rows in enumerate((first, second)):
        # Resampling k of k samples of a question gives a binomial number of right ones.
        sizes = np.array([len(row) for row in rows])
        rates = np.array([np.mean(row) for row in rows])
        questions = derive_rng(seed, "compare", name, "questions")
        for number in range(ROUNDS):
            drawn = questions.integers(num, size=num)
            rounds[number, side] = np.mean(rng.binomial(sizes[drawn], rates[drawn]) / sizes[drawn])
    return rounds[:, 1] - rounds[:, 0]


def _verdict(difference: Estimate, p_value: float, num_differing: int, detectable: float) -> str:
    # With m questions that differ, the smallest p that sign flips can give is 2 / 2^m.
    smallest = 2.0 ** (1 - num_differing) if num_differing else 1.0
    if smallest > LEVEL:
        return f"too few questions: they differ on {num_differing}, so that p cannot fall below {smallest:.2g}"
    if p_value <= LEVEL and not difference.low <= 0 <= difference.high:
        return "B is better" if difference.value > 0 else "A is better"
    return f"no difference shown: one below {detectable:.1%} could not be told from none with this many questions"


def _benchmarks(directory: Path) -> list[str]:
    header = directory / HEADER
    if not header.is_file():
        raise DataError(
            str(directory),
            expected="the directory of an evaluation",
            found=f"no {HEADER}",
            hint="exgrpo eval prints the directory it has written",
        )
    return list(json.loads(header.read_text(encoding="utf-8"))["benchmarks"])


def _samples(directory: Path, benchmark: str) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = defaultdict(list)
    for record in read_records(directory, benchmark):
        samples[record.question_id].append(float(record.correct))
    return samples


def table(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """Return the comparisons as rows, with a header."""
    rows = [["benchmark", "questions", "A", "B", "B - A", "p"]]
    for c in comparisons:
        p = "1" if math.isclose(c.p_value, 1) else f"{c.p_value:.2g}"
        rows.append([c.benchmark, str(c.num_questions), f"{c.a:.1%}", f"{c.b:.1%}", str(c.difference), p])
    return rows
