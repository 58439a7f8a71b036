"""Settings of replay: the paper's defaults, and an error with a way out for every value that cannot work."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigError
from exgrpo.experience import ReplaySettings

NAN, INF = float("nan"), float("inf")
LIMITS = ("max_age_steps", "max_uses", "max_trajectories_per_question", "max_trajectories")
CHOICES = {
    "question_sampling": ("gaussian", "uniform"),
    "bucket_sigma_unit": ("count", "rate"),
    "trajectory_selection": ("lowest_entropy", "highest_entropy", "random", "latest"),
    "start_rule": ("threshold", "window", "immediate"),
    "collect": ("after_start", "from_first_step"),
    "retirement": ("solved", "never"),
}


def refused(name, value, **others):
    with pytest.raises(ConfigError) as caught:
        ReplaySettings(**{"num_rollouts": 8, **others, name: value})
    assert caught.value.where == name
    assert caught.value.found == repr(value)
    assert caught.value.expected
    assert caught.value.hint
    return caught.value


def test_the_defaults_are_those_of_the_paper():
    assert asdict(ReplaySettings(num_rollouts=8)) == {
        "num_rollouts": 8,
        "replay_ratio": 0.5,
        "question_sampling": "gaussian",
        "bucket_mean": 0.5,
        "bucket_sigma": 1.0,
        "bucket_sigma_unit": "count",
        "trajectory_selection": "lowest_entropy",
        "start_rule": "threshold",
        "start_threshold": 0.35,
        "start_window": 1,
        "stop_threshold": None,
        "collect": "after_start",
        "retirement": "solved",
        "max_age_steps": None,
        "max_uses": None,
        "max_trajectories_per_question": None,
        "max_trajectories": None,
    }


def test_settings_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        ReplaySettings(num_rollouts=8).replay_ratio = 0.25


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in CHOICES for value in CHOICES[name]])
def test_every_named_choice_is_accepted(name, value):
    assert getattr(ReplaySettings(num_rollouts=8, **{name: value}), name) == value


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["best", "", "Gaussian", None, 1])
def test_an_unknown_name_is_refused_with_the_known_ones_and_the_default(name, value):
    error = refused(name, value)
    assert error.expected == "one of " + ", ".join(CHOICES[name])
    assert error.hint == f"the default is {getattr(ReplaySettings(num_rollouts=8), name)}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_rollouts", 2),
        ("replay_ratio", 0),
        ("replay_ratio", 0.999),
        ("bucket_mean", 0),
        ("bucket_mean", 1),
        ("bucket_sigma", 5e-324),
        ("bucket_sigma", 1e308),
        ("start_threshold", 0),
        ("start_threshold", 1.0),
        *((name, 1) for name in LIMITS),
    ],
)
def test_the_ends_of_a_range_are_accepted(name, value):
    assert getattr(ReplaySettings(**{"num_rollouts": 8, name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_rollouts", value) for value in (1, 0, -8, 2.5, NAN, "8", None, True)),
        *(("replay_ratio", value) for value in (-0.1, 1, 1.5, NAN, INF, "0.5", None, True)),
        *(("bucket_mean", value) for value in (-0.01, 1.01, NAN, INF, "0.5", None, True)),
        *(("bucket_sigma", value) for value in (0, 0.0, -1, NAN, INF, "1", None, True)),
        *(("start_threshold", value) for value in (-0.01, 1.01, 35, NAN, INF, "0.35", None, True)),
        *(("start_window", value) for value in (0, -1, 1.5, NAN, "2", None, True)),
        *((name, value) for name in LIMITS for value in (0, -1, 1.5, NAN, INF, "10", True)),
    ],
)
def test_a_value_outside_its_range_or_of_another_type_is_refused(name, value):
    refused(name, value, start_rule="window")


@given(st.sampled_from(["replay_ratio", "bucket_mean", "start_threshold"]), st.floats())
def test_a_rate_is_accepted_exactly_where_it_is_one(name, value):
    if 0 <= value < 1 or (value == 1 and name != "replay_ratio"):
        ReplaySettings(**{"num_rollouts": 8, name: value})
    else:
        refused(name, value)


def test_a_window_needs_the_rule_that_uses_it():
    assert ReplaySettings(8, start_rule="window", start_window=5).start_window == 5
    for rule in ("threshold", "immediate"):
        assert "start_rule=window" in refused("start_window", 5, start_rule=rule).hint


def test_a_stop_threshold_needs_the_window_rule():
    assert ReplaySettings(8, start_rule="window", stop_threshold=0.2).stop_threshold == 0.2
    for rule in ("threshold", "immediate"):
        assert "start_rule=window" in refused("stop_threshold", 0.2, start_rule=rule).hint


@pytest.mark.parametrize("value", [0.35, 0.5, -0.1, NAN, INF, "0.2", True])
def test_a_stop_threshold_is_a_rate_below_the_start_threshold(value):
    assert "0.35" in refused("stop_threshold", value, start_rule="window").expected


def test_the_message_says_where_what_and_what_next():
    assert str(refused("replay_ratio", 1.5)) == (
        "replay_ratio: expected a share in [0, 1), found 1.5\n  hint: the paper uses 0.5; 0 is GRPO"
    )
