"""Scores of sampled answers, with intervals. NumPy only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score with its 95 % bootstrap interval.

    Attributes:
        value: the score, NaN where it is undefined.
        low, high: 2.5 % and 97.5 % quantiles of the bootstrap, NaN where the score is.
        n: number of questions behind it.
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "none"
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


def avg_at_k(correct: np.ndarray) -> float:
    """Return the mean over questions of the share of right samples: Pass@1 estimated from k samples.

    Args:
        correct: bool [Q, k]. NaN for no questions or no samples.
    """
    return float(np.mean(correct)) if correct.size else math.nan


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Return the unbiased chance that at least one of k samples is right, averaged over questions.

    With c of n samples right it is 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1).

    Args:
        correct: bool [Q, n].
        k: samples drawn; NaN where k > n or k < 1, since the estimate does not exist then.
    """
    num_questions, n = correct.shape
    if not 1 <= k <= n or not num_questions:
        return math.nan
    right = correct.sum(axis=1)
    return float(np.mean([1 - math.comb(n - int(c), k) / math.comb(n, k) for c in right]))


def majority_vote(answers: Sequence[Sequence[str | None]], correct: np.ndarray) -> float:
    """Return the share of questions whose most frequent answer is right; a tie counts by its right part.

    Args:
        answers: [Q][k] extracted answers, compared as text; None where there is none, which is no vote.
        correct: bool [Q, k]. NaN where no answer was extracted anywhere: then there is nothing to count.
    """
    if not any(answer is not None for row in answers for answer in row):
        return math.nan
    shares = []
    for row, right in zip(answers, correct, strict=True):
        votes = Counter(answer for answer in row if answer is not None)
        most = max(votes.values(), default=0)
        winners = [answer for answer, count in votes.items() if count == most]
        verdicts = [float(right[row.index(answer)]) for answer in winners]
        shares.append(float(np.mean(verdicts)) if verdicts else 0.0)
    return float(np.mean(shares))


def bootstrap_mean(values: np.ndarray, weights: np.ndarray, rng: np.random.Generator, rounds: int = ROUNDS) -> Estimate:
    """Return the weighted mean of all samples, with an interval over questions and over the samples of each.

    Each round draws questions with replacement and, for each drawn question, its samples with replacement.

    Args:
        values: [Q, k], what is averaged.
        weights: [Q, k], how much each counts; 0 leaves a sample out (for shares among a subset).
        rng: an own generator, so that an evaluation does not disturb others.
        rounds: bootstrap rounds.
    """
    if not weights.sum():
        return Estimate(math.nan, math.nan, math.nan, len(values))
    value = float((values * weights).sum() / weights.sum())
    return interval(value, bootstrap_rounds(values, weights, rng, rounds), len(values))


def bootstrap_rounds(
    values: np.ndarray, weights: np.ndarray, rng: np.random.Generator, rounds: int = ROUNDS
) -> np.ndarray:
    """Return the weighted mean of each bootstrap round [rounds], NaN where a round drew no weight."""
    num_questions, k = values.shape
    means = np.full(rounds, math.nan)
    for round_ in range(rounds):
        questions = rng.integers(num_questions, size=(num_questions, 1))
        samples = rng.integers(k, size=(num_questions, k))
        drawn = weights[questions, samples]
        if total := drawn.sum():
            means[round_] = (values[questions, samples] * drawn).sum() / total
    return means


def interval(value: float, rounds: np.ndarray, n: int) -> Estimate:
    """Return a score with the interval that its bootstrap rounds give."""
    low, high = np.nanquantile(rounds, [0.025, 0.975])
    return Estimate(value, float(low), float(high), n)
