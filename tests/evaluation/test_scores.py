"""Scores against enumeration, intervals that hold what they promise."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from exgrpo.evaluation.scores import avg_at_k, bootstrap_mean, majority_vote, pass_at_k
from exgrpo.seeding import derive_rng


def test_avg_at_k_is_the_mean_over_questions_and_samples():
    assert avg_at_k(np.array([[True, False], [False, False]])) == 0.25
    assert math.isnan(avg_at_k(np.zeros((0, 4), dtype=bool)))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_equals_the_share_of_all_draws_with_a_right_one(k):
    rng = np.random.default_rng(k)
    correct = rng.random((6, 5)) < 0.4
    draws = [[any(row[list(draw)]) for draw in combinations(range(5), k)] for row in correct]
    assert pass_at_k(correct, k) == pytest.approx(np.mean([np.mean(row) for row in draws]))


def test_pass_at_k_is_undefined_beyond_the_samples_and_never_one():
    assert math.isnan(pass_at_k(np.ones((3, 4), dtype=bool), 5))
    assert math.isnan(pass_at_k(np.ones((3, 4), dtype=bool), 0))
    assert math.isnan(pass_at_k(np.ones((0, 4), dtype=bool), 1))


def test_the_interval_of_a_share_without_members_is_undefined():
    estimate = bootstrap_mean(np.zeros((3, 2)), np.zeros((3, 2)), derive_rng(0, "test"))
    assert math.isnan(estimate.value)
    assert math.isnan(estimate.low)


def test_weights_restrict_the_mean_to_a_subset():
    values = np.array([[1.0, 0.0], [1.0, 1.0]])
    weights = np.array([[1.0, 1.0], [0.0, 1.0]])
    assert bootstrap_mean(values, weights, derive_rng(0, "test")).value == pytest.approx(2 / 3)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for trial in range(200):
        rng = derive_rng(trial, "coverage")
        ability = rng.beta(2, 3, size=60)  # mean 0.4
        values = (rng.random((60, 4)) < ability[:, None]).astype(float)
        estimate = bootstrap_mean(values, np.ones_like(values), rng, rounds=300)
        covered += estimate.low <= 0.4 <= estimate.high
    # Resampling samples inside resampled questions is somewhat wide, never narrow; less 3 standard errors.
    assert covered / 200 > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)


def test_one_seed_gives_one_interval():
    values = np.random.default_rng(0).random((20, 4))
    first, second = (bootstrap_mean(values, np.ones_like(values), derive_rng(7, "x")) for _ in range(2))
    assert first == second
    assert first.low < first.value < first.high
    assert first.n == 20


def test_majority_vote_worked_by_hand():
    # Question 1: 5 twice (right) against 7 once. Question 2: 3 and 4 once each, 4 right: a tie counts half.
    # Question 3: no answer at all is wrong; one sample has none, which is no vote.
    answers = [["5", "5", "7"], ["3", None, "4"], [None, None, None]]
    correct = np.array([[True, True, False], [False, False, True], [False, False, False]])
    assert majority_vote(answers, correct) == pytest.approx((1 + 0.5 + 0) / 3)


def test_a_vote_without_extracted_answers_is_undefined():
    assert math.isnan(majority_vote([[None, None]], np.array([[True, False]])))
