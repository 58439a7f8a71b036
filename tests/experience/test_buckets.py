"""Bucket weights as the paper has them, and draws that follow them, fill up and never take more than there is."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.experience import ReplaySettings, bucket_weights
from exgrpo.experience.buckets import allocate, bucket_log_weights, bucket_probabilities

# Quantiles of chi-square at 1 - 1e-4, by degrees of freedom.
CRITICAL = {1: 15.137, 2: 18.421, 4: 23.513, 6: 27.856}

log_weight = st.floats(-1e6, 0)
buckets = st.lists(st.tuples(st.integers(0, 40), log_weight), min_size=2, max_size=16)


def assert_frequencies(counts, probabilities):
    """Chi-square test of counts [n] against probabilities [n]."""
    expected = np.asarray(probabilities) * np.sum(counts)
    assert expected.min() > 5
    assert ((np.asarray(counts) - expected) ** 2 / expected).sum() < CRITICAL[len(expected) - 1]


def exact_weights(num_rollouts, mean, sigma):
    """Weights of k = 0..K - 1 for a Gaussian over the correctness rate, from its density and math.exp alone."""
    density = [math.exp(-((k / num_rollouts - mean) ** 2) / (2 * sigma**2)) for k in range(num_rollouts)]
    return [one / sum(density[1:]) for one in density]


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_weights_in_counts_are_those_of_the_released_code():
    # exp(-d^2 / 2) for d = 3, 2, 1, 0: .011109 .135335 .606531 1; sum over k = 1..7 is 2.505949; k = 0 has exp(-8).
    weights = bucket_weights(ReplaySettings(num_rollouts=8))
    assert weights[1:].round(3).tolist() == [0.004, 0.054, 0.242, 0.399, 0.242, 0.054, 0.004]
    assert weights[4] == pytest.approx(1 / 2.505949, rel=1e-6)
    assert weights[0] == pytest.approx(math.exp(-8) / 2.505949, rel=1e-6)


def test_weights_in_rates_are_those_of_the_text_and_nearly_uniform():
    # exp(-(d / 8)^2 / 2) for d = 3, 2, 1, 0: .932102 .969233 .992218 1; sum over k = 1..7 is 6.787106.
    weights = bucket_weights(ReplaySettings(num_rollouts=8, bucket_sigma_unit="rate"))
    assert weights[1:].round(3).tolist() == [0.137, 0.143, 0.146, 0.147, 0.146, 0.143, 0.137]
    assert weights[4] == pytest.approx(1 / 6.787106, rel=1e-6)
    assert weights[0] == pytest.approx(math.exp(-1 / 8) / 6.787106, rel=1e-6)


def test_log_weights_worked_by_hand():
    settings = ReplaySettings(num_rollouts=4, bucket_mean=0.25, bucket_sigma=0.5)
    assert bucket_log_weights(settings).tolist() == [-2, 0, -2, -8]  # (k - 1)^2 / (2 * 0.25)


@given(st.integers(2, 32), st.floats(0, 1), st.floats(0.1, 10))
def test_weights_equal_the_density_and_sum_to_one_over_partly_solved_buckets(num_rollouts, mean, sigma):
    settings = ReplaySettings(num_rollouts, bucket_mean=mean, bucket_sigma=sigma, bucket_sigma_unit="rate")
    weights = bucket_weights(settings)
    assert weights.dtype == np.float64
    assert weights == pytest.approx(exact_weights(num_rollouts, mean, sigma), rel=1e-9)
    assert weights[1:].sum() == pytest.approx(1)


@given(st.integers(2, 32), st.floats(0, 1), st.floats(0.1, 10))
def test_a_sigma_of_one_rollout_is_a_rate_of_one_by_k(num_rollouts, mean, sigma):
    in_counts = ReplaySettings(num_rollouts, bucket_mean=mean, bucket_sigma=sigma * num_rollouts)
    in_rates = ReplaySettings(num_rollouts, bucket_mean=mean, bucket_sigma=sigma, bucket_sigma_unit="rate")
    np.testing.assert_allclose(bucket_log_weights(in_counts), bucket_log_weights(in_rates), rtol=1e-9, atol=1e-12)


@given(st.integers(2, 32), st.floats(0, 1), st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_no_width_breaks_the_weights(num_rollouts, mean, sigma):
    settings = ReplaySettings(num_rollouts, bucket_mean=mean, bucket_sigma=sigma)
    assert np.isfinite(bucket_log_weights(settings)).all()
    assert bucket_weights(settings)[1:].sum() == pytest.approx(1)


def test_a_narrow_gaussian_near_zero_gives_bucket_zero_a_weight_without_bound():
    weights = bucket_weights(ReplaySettings(num_rollouts=8, bucket_mean=0, bucket_sigma=0.01))
    assert weights.tolist() == [math.inf, 1, 0, 0, 0, 0, 0, 0]


# ---- probabilities ---------------------------------------------------------------------------------------------------


def test_probabilities_worked_by_hand():
    log_weights = np.log([4, 1, 2, 1]) + 5  # a constant cancels
    found = bucket_probabilities(log_weights, np.array([0, 7, 1, 3]))
    assert found.tolist() == pytest.approx([0, 0.25, 0.5, 0.25])
    assert found[0] == 0


def test_with_all_buckets_filled_the_probabilities_are_the_weights():
    settings = ReplaySettings(num_rollouts=8)
    weights = bucket_weights(settings)
    found = bucket_probabilities(bucket_log_weights(settings), np.full(8, 3))
    assert found == pytest.approx(weights / weights.sum())


@pytest.mark.parametrize("sigma", [1e-3, 1e-160, 5e-324])
def test_far_buckets_are_drawn_if_they_are_all_there_is(sigma):
    log_weights = bucket_log_weights(ReplaySettings(num_rollouts=8, bucket_sigma=sigma))
    capacities = np.array([0, 2, 0, 0, 0, 0, 0, 2])  # both three right answers from the middle
    assert bucket_probabilities(log_weights, capacities).tolist() == [0, 0.5, 0, 0, 0, 0, 0, 0.5]
    capacities[6] = 1  # two
    assert bucket_probabilities(log_weights, capacities).tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
    assert allocate(5, capacities, log_weights, np.random.default_rng(0)).tolist() == [0, 2, 0, 0, 0, 0, 1, 2]


def test_empty_buckets_have_no_probability():
    assert bucket_probabilities(np.array([0.0, -1.0]), np.array([0, 0])).tolist() == [0, 0]


@given(buckets)
def test_probabilities_sum_to_one_over_filled_buckets_only(pairs):
    capacities, log_weights = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    found = bucket_probabilities(log_weights, capacities)
    assert found.sum() == pytest.approx(float(capacities.any()))
    assert (found[capacities == 0] == 0).all()
    assert (found >= 0).all()


# ---- allocation ------------------------------------------------------------------------------------------------------


@given(buckets, st.integers(0, 400), st.integers(0, 2**32))
def test_allocation_places_all_it_can_and_never_more_than_a_bucket_has(pairs, num, seed):
    capacities, log_weights = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    before = capacities.copy()
    counts = allocate(num, capacities, log_weights, np.random.default_rng(seed))
    assert counts.dtype == np.int64
    assert counts.sum() == min(num, capacities.sum())
    assert ((counts >= 0) & (counts <= capacities)).all()
    assert (capacities == before).all()


def test_allocation_repeats_with_its_generator():
    settings, capacities = ReplaySettings(num_rollouts=8), np.arange(8) * 10
    draws = [allocate(64, capacities, bucket_log_weights(settings), np.random.default_rng(5)) for _ in range(2)]
    assert draws[0].tolist() == draws[1].tolist()


def test_more_than_there_is_gives_all_there_is():
    capacities = np.array([3, 0, 5, 1])
    assert allocate(100, capacities, np.array([0.0, 9.0, -5e5, -9e5]), np.random.default_rng(0)).tolist() == [
        3,
        0,
        5,
        1,
    ]
    assert allocate(100, np.zeros(4, dtype=np.int64), np.zeros(4), np.random.default_rng(0)).tolist() == [0, 0, 0, 0]


def test_frequencies_follow_the_weights():
    settings = ReplaySettings(num_rollouts=8)
    capacities = np.array([0, *[10**6] * 7])
    counts = allocate(20_000, capacities, bucket_log_weights(settings), np.random.default_rng(1))
    assert counts[0] == 0
    assert_frequencies(counts[1:], bucket_weights(settings)[1:])


def test_one_draw_is_a_single_multinomial():
    # Two draws over weights 1 : 1 : 2 with room for both: both in one bucket 1/16, 1/16, 4/16.
    rng = np.random.default_rng(2)
    draws = [allocate(2, np.full(3, 2), np.log([1.0, 1.0, 2.0]), rng) for _ in range(8_000)]
    doubles = np.array([sum(draw[bucket] == 2 for draw in draws) for bucket in range(3)])
    assert_frequencies([doubles[0], doubles[1], len(draws) - doubles[:2].sum()], [1 / 16, 1 / 16, 14 / 16])
    assert_frequencies([doubles[2], len(draws) - doubles[2]], [1 / 4, 3 / 4])


def test_what_a_small_bucket_cannot_give_is_redrawn_by_the_same_weights():
    # Two draws over weights 8 : 1 : 3, the first bucket has one. In 144ths: (2, 0, 0) has 64, and its second draw goes
    # to the others as 1 : 3, so (1, 1, 0) has 2 * 8 + 16 and (1, 0, 1) has 2 * 24 + 48. The others have 1, 2 * 3 and 9.
    expected = {(1, 1, 0): 32, (1, 0, 1): 96, (0, 2, 0): 1, (0, 1, 1): 6, (0, 0, 2): 9}
    capacities, log_weights, rng = np.array([1, 9, 9]), np.log([8.0, 1.0, 3.0]), np.random.default_rng(3)
    found = Counter(tuple(allocate(2, capacities, log_weights, rng).tolist()) for _ in range(8_000))
    assert found.keys() == expected.keys()
    assert_frequencies([found[key] for key in expected], np.array(list(expected.values())) / 144)
