"""Difficulty buckets: how likely each is drawn, and how many questions each gives."""

from __future__ import annotations

import numpy as np

from exgrpo.experience.settings import ReplaySettings

# A narrower Gaussian is a choice of the nearest bucket in float64, as this one is, but its squares would overflow.
_NARROWEST = 1e-100


def bucket_log_weights(settings: ReplaySettings) -> np.ndarray:
    """Return the log of a Gaussian density at each bucket, float64 [K], up to a constant.

    Bucket k holds questions whose latest group had k right answers of K. In `count` units the density is over k with
    mean K bucket_mean, in `rate` units over k / K with mean bucket_mean (arXiv 2510.02245, section 3.2; its text and
    its code differ). `question_sampling` does not enter.
    """
    count = np.arange(settings.num_rollouts, dtype=np.float64)
    unit = 1.0 if settings.bucket_sigma_unit == "count" else 1.0 / settings.num_rollouts
    deviation = (count - settings.bucket_mean * settings.num_rollouts) * unit / max(settings.bucket_sigma, _NARROWEST)
    return -0.5 * deviation**2


def bucket_weights(settings: ReplaySettings) -> np.ndarray:
    """Return the weight of each bucket, float64 [K]; those of 1 to K - 1 right answers sum to 1.

    Bucket 0 (a question that was solved before, but by no rollout of its latest group) has the same density over the
    same normaliser. It is rarely drawn with the defaults; with a narrow Gaussian near 0 its weight may be inf.
    """
    log_weights = bucket_log_weights(settings)
    with np.errstate(over="ignore"):  # of bucket 0 alone, the others are at most 1
        weights = np.exp(log_weights - log_weights[1:].max())
    return np.asarray(weights / weights[1:].sum())


def bucket_probabilities(log_weights: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Return the chance that a single draw falls into each bucket, float64 [K]: 0 where it is empty.

    The softmax of the log weights over the buckets that are not empty, shifted by their maximum: far buckets are drawn
    if they are all there is, however narrow the Gaussian. All 0 where every bucket is empty.

    Args:
        log_weights: float64 [K], up to a constant.
        capacities: int [K], questions in each bucket.
    """
    filled = capacities > 0
    if not filled.any():
        return np.zeros(len(capacities))
    weights = np.where(filled, np.exp(np.where(filled, log_weights - log_weights[filled].max(), -np.inf)), 0.0)
    return np.asarray(weights / weights.sum())


def allocate(num: int, capacities: np.ndarray, log_weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return how many questions each bucket gives, int64 [K]: `num` in all, or every question there is.

    One multinomial draw (arXiv 2510.02245, section 3.2); a bucket that is too small gives what it has, and what is
    missing is drawn again over those that have more, by the same weights.

    Args:
        num: how many.
        capacities: int [K], questions in each bucket.
        log_weights: float64 [K], up to a constant.
        rng: of the draws.
    """
    counts = np.zeros(len(capacities), dtype=np.int64)
    missing = min(num, int(capacities.sum()))
    while missing > 0:
        drawn = rng.multinomial(missing, bucket_probabilities(log_weights, capacities - counts))
        given = np.minimum(drawn, capacities - counts)
        counts += given
        missing -= int(given.sum())
    return counts
