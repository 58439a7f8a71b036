"""Advantages over whole groups, mixed ones included."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import nanstd

from exgrpo.errors import ConfigError, DataError
from exgrpo.objective import group_advantages, useless_groups

from . import oracle


def test_two_groups_worked_by_hand():
    # Group one has mean 1/4, group two 3/4.
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])
    expected = [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]
    assert group_advantages(rewards, 4).tolist() == expected


def test_division_by_the_standard_deviation_of_the_group_or_of_all_rows():
    # Group (1, 0): deviations +-1/2, unbiased variance 1/2. All rows (1, 0, 0, 0): mean 1/4, variance 1/4.
    rewards = torch.tensor([1.0, 0, 0, 0])
    by_group = group_advantages(rewards, 2, "group")
    torch.testing.assert_close(
        by_group, torch.tensor([0.5, -0.5, 0, 0]) / (torch.tensor([0.5, 0.5, 0, 0]).sqrt() + 1e-4)
    )
    by_batch = group_advantages(rewards, 2, "batch")
    torch.testing.assert_close(by_batch, torch.tensor([0.5, -0.5, 0, 0]) / (0.5 + 1e-4))


def test_a_row_that_nothing_could_judge_is_left_out_and_gets_nothing():
    advantages = group_advantages(torch.tensor([1.0, math.nan, 0.0, 0.0]), 4)
    torch.testing.assert_close(advantages, torch.tensor([2 / 3, 0.0, -1 / 3, -1 / 3]))
    assert group_advantages(torch.tensor([math.nan, math.nan]), 2).tolist() == [0, 0]
    assert group_advantages(torch.tensor([math.nan, 1.0]), 2, "group").tolist() == [0, 0]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0]), min_size=3, max_size=30).map(lambda x: x[: len(x) // 3 * 3]))
def test_equals_the_oracle_and_sums_to_zero_in_each_group(rewards):
    advantages = group_advantages(torch.tensor(rewards, dtype=torch.float64), 3)
    assert advantages.tolist() == pytest.approx(oracle.advantages(rewards, 3))
    assert advantages.view(-1, 3).sum(dim=1).abs().max() < 1e-12


def test_a_group_is_useless_where_rewards_are_exactly_equal_and_not_where_they_nearly_are():
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 1.0 - 1e-7, 0.3, 0.3, math.nan, math.nan, math.nan, 1.0])
    assert useless_groups(rewards, 2).tolist() == [True, True, False, True, True, True]
    assert useless_groups(torch.tensor([1.0, math.nan, 0.0]), 3).tolist() == [False]


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0, math.nan]), min_size=3, max_size=30).map(
        lambda x: x[: len(x) // 3 * 3]
    ),
    st.sampled_from(["none", "group", "batch"]),
)
def test_equals_trl_where_rewards_are_missing_and_for_every_scale(rewards, scale):
    # TRL computes advantages in the middle of a long method. Its own `nanstd` is called; the lines around it are few.
    values = torch.tensor(rewards)
    groups = values.view(-1, 3)
    std = {"none": None, "group": nanstd(groups, dim=1).repeat_interleave(3), "batch": nanstd(values)}[scale]
    expected = values - groups.nanmean(dim=1).repeat_interleave(3)
    expected = expected if std is None else expected / (std + 1e-4)
    torch.testing.assert_close(group_advantages(values, 3, scale), expected.nan_to_num(nan=0.0))


@pytest.mark.parametrize("group_size", [4, 0, -3])
def test_rows_that_are_no_whole_groups_are_refused(group_size):
    for function in (group_advantages, useless_groups):
        with pytest.raises(DataError, match=rf"whole groups of {group_size}(?s:.*)hint"):
            function(torch.zeros(6), group_size)


def test_an_unknown_scale_is_refused_and_not_taken_for_none():
    with pytest.raises(ConfigError, match="none, group, batch") as caught:
        group_advantages(torch.zeros(2), 2, "std")
    assert caught.value.where == "scale"
