"""The delayed start: replay waits until the policy is good enough for its successes to be worth repeating."""

from __future__ import annotations

from statistics import mean

from exgrpo.experience.settings import ReplaySettings
from exgrpo.types import StartState


def initial_state(settings: ReplaySettings) -> StartState:
    """Return the state before the first step: started only where the rule is `immediate`."""
    return StartState(started=settings.start_rule == "immediate")


def advance(state: StartState, pass_rate: float | None, step: int, settings: ReplaySettings) -> StartState:
    """Return the state after a batch (arXiv 2510.02245, section 3.3: Pass@1 of a batch above 35 %).

    `threshold` starts for good. `window` needs as many batches as it averages, to start as to stop; it stops where
    their mean falls below `stop_threshold`, if there is one, and may start again. Both comparisons are strict.

    Args:
        state: before the batch.
        pass_rate: Pass@1 of the batch's fresh rollouts, None where it had none: nothing changes then.
        step: of the batch.
        settings: rule and thresholds.
    """
    if pass_rate is None or settings.start_rule == "immediate":
        return state
    recent = (*state.recent, pass_rate)[-settings.start_window :]
    if len(recent) < settings.start_window:
        return StartState(state.started, state.started_step, recent)
    rate = mean(recent)  # exact: by sum() / n, six batches of 0.35 would have a mean above 0.35
    if not state.started:
        starts = rate > settings.start_threshold
        return StartState(starts, step if starts else state.started_step, recent)
    stops = settings.stop_threshold is not None and rate < settings.stop_threshold
    return StartState(not stops, state.started_step, recent)
