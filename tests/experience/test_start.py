"""The delayed start: on once a batch, or a window of them, is above the threshold; off again only where asked for."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exgrpo.experience import ReplaySettings
from exgrpo.experience.start import advance, initial_state
from exgrpo.types import StartState

RULES = ("threshold", "window", "immediate")
THRESHOLD = ReplaySettings(num_rollouts=8)

rates = st.lists(st.none() | st.integers(0, 16).map(lambda right: right / 16), max_size=40)


def window(size, stop=None, start=0.5):
    return ReplaySettings(8, start_rule="window", start_window=size, start_threshold=start, stop_threshold=stop)


def run(pass_rates, settings, state=None):
    """States after each batch, steps from 1 on."""
    state, states = state or initial_state(settings), []
    for step, rate in enumerate(pass_rates, start=1):
        state = advance(state, rate, step, settings)
        states.append(state)
    return states


def started(pass_rates, settings):
    return [state.started for state in run(pass_rates, settings)]


@pytest.mark.parametrize("rule", RULES)
def test_replay_waits_unless_it_starts_at_once(rule):
    assert initial_state(ReplaySettings(8, start_rule=rule)) == StartState(rule == "immediate", None, ())


# ---- threshold -------------------------------------------------------------------------------------------------------


def test_one_batch_above_the_threshold_starts_for_good():
    states = run([0.1, 0.35, 0.36, 0.0, 0.9], THRESHOLD)  # 0.35 is not above 0.35
    assert [state.started for state in states] == [False, False, True, True, True]
    assert [state.started_step for state in states] == [None, None, 3, 3, 3]
    assert states[-1].recent == (0.9,)


@given(rates)
def test_the_threshold_rule_starts_at_the_first_batch_above(pass_rates):
    above = [step for step, rate in enumerate(pass_rates, start=1) if rate is not None and rate > 0.35]
    for step, state in enumerate(run(pass_rates, THRESHOLD), start=1):
        assert state.started == bool(above and step >= above[0])
        assert state.started_step == (above[0] if state.started else None)


# ---- window ----------------------------------------------------------------------------------------------------------


def test_a_window_starts_by_the_mean_of_full_windows_only():
    # Means of three from the third on: 0.5 (not above), 0.55, 0.3, and there is no way back.
    assert started([0.75, 0.75, 0.0, 0.9, 0.0], window(3)) == [False, False, False, True, True]


def test_a_window_stops_and_starts_again_where_that_was_asked():
    states = run([0.6, 0.8, 0.2, 0.0, 0.4, 0.9, 0.1], window(2, stop=0.25))
    # Means of two: 0.7 on, 0.5, 0.1 off, 0.2, 0.65 on, 0.5.
    assert [state.started for state in states] == [False, True, True, False, False, True, True]
    assert [state.started_step for state in states] == [None, 2, 2, 2, 2, 6, 6]
    assert states[-1].recent == (0.9, 0.1)


def test_a_mean_at_the_stop_threshold_does_not_stop():
    assert started([0.75, 0.25, 0.24], window(1, stop=0.25)) == [True, True, False]


def test_between_the_thresholds_nothing_changes():
    assert started([0.4, 0.6, 0.4, 0.2, 0.4, 0.6], window(1, stop=0.3)) == [False, True, True, False, False, True]


@given(rates, st.integers(1, 6), st.none() | st.sampled_from([0.0, 0.125, 0.25, 0.4375]))
def test_a_window_equals_its_definition(pass_rates, size, stop):
    """The oracle keeps all batches and averages exactly."""
    seen, on, since = [], False, None
    for step, (rate, state) in enumerate(zip(pass_rates, run(pass_rates, window(size, stop)), strict=True), start=1):
        if rate is not None:
            seen.append(Fraction(rate))
            mean = sum(seen[-size:]) / size if len(seen) >= size else None
            if mean is not None and not on and mean > 0.5:
                on, since = True, step
            elif mean is not None and on and stop is not None and mean < stop:
                on = False
        assert (state.started, state.started_step) == (on, since)
        assert state.recent == tuple(float(rate) for rate in seen[-size:])


@given(st.floats(0.01, 1), st.integers(1, 60))
@example(0.35, 6)  # the sum of six, divided by six, is above 0.35 in float64
def test_batches_at_the_threshold_do_not_start_by_rounding(rate, size):
    assert not any(started([rate] * (size + 2), window(size, start=rate)))


@given(st.floats(0.01, 0.49), st.integers(1, 60))
@example(0.1, 3)
def test_batches_at_the_stop_threshold_do_not_stop_by_rounding(rate, size):
    state = StartState(True, 1, (rate,) * size)
    assert all(after.started for after in run([rate] * 3, window(size, stop=rate), state))


def test_a_window_made_longer_on_the_way_fills_before_it_stops():
    begun = StartState(started=True, started_step=3, recent=(0.1,))
    assert [state.started for state in run([0.1, 0.1], window(3, stop=0.25), begun)] == [True, False]
    assert [state.started for state in run([0.1, 0.1], window(4, stop=0.25), begun)] == [True, True]


def test_a_window_made_shorter_on_the_way_forgets_the_oldest():
    begun = StartState(recent=(0.0, 0.0, 0.0, 0.9))
    assert run([0.8], window(2), begun) == [StartState(True, 1, (0.9, 0.8))]


# ---- all -------------------------------------------------------------------------------------------------------------


def test_immediate_is_on_from_the_start_whatever_comes():
    settings = ReplaySettings(8, start_rule="immediate")
    assert run([0.0, None, 1.0, 0.0], settings) == [StartState(started=True)] * 4


@pytest.mark.parametrize("rule", RULES)
@given(rates)
def test_a_batch_without_fresh_rollouts_changes_nothing(rule, pass_rates):
    settings = ReplaySettings(8, start_rule=rule)
    state = initial_state(settings)
    for step, rate in enumerate(pass_rates, start=1):
        assert advance(state, None, step, settings) is state
        state = advance(state, rate, step, settings)
