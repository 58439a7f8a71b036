"""Alarms on metrics: warn, fall back to on-policy until it is over, or stop."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from exgrpo.errors import AlarmError, ConfigError

Action = Literal["warn", "on_policy", "stop"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """When a metric is a cause for alarm, and what follows.

    Exactly one of `above`, `below` and `falls` is set.

    Attributes:
        name: what it is called.
        metric: a name of docs/metrics.md.
        above, below: it goes off beyond this.
        falls: it goes off where the metric is this much below the highest mean of `window` steps so far.
        clear: it is over where the metric is back on the good side of this (hysteresis). Default: the threshold.
        steps: this many steps in a row must go beyond, or be back, for it to go off or be over.
        window: steps that `falls` averages.
        hold: steps after which it is over where the metric is undefined, as that of replayed tokens is without replay.
        then: `warn` says so; `on_policy` replays nothing until it is over; `stop` ends the run.
    """

    name: str
    metric: str
    above: float | None = None
    below: float | None = None
    falls: float | None = None
    clear: float | None = None
    steps: int = 1
    window: int = 10
    hold: int = 10
    then: Action = "warn"

    def __post_init__(self) -> None:
        """Check that it can go off and be over."""
        thresholds = [value for value in (self.above, self.below, self.falls) if value is not None]
        if len(thresholds) != 1 or not math.isfinite(thresholds[0]):
            self._refuse("one finite threshold: above, below or falls", thresholds or "none")
        if self.then not in get_args(Action):
            self._refuse(f"then: {', '.join(get_args(Action))}", self.then)
        if min(self.steps, self.window, self.hold) < 1:
            self._refuse("steps, window and hold of at least 1", (self.steps, self.window, self.hold))
        if self.clear is not None and self.is_beyond(self.clear, best=0.0) and self.clear != thresholds[0]:
            self._refuse("a value for clear on the good side of the threshold", self.clear)

    def is_beyond(self, value: float, best: float) -> bool:
        """Return whether a value is a cause for alarm; `best` is the highest mean so far."""
        if self.above is not None:
            return value > self.above
        if self.below is not None:
            return value < self.below
        return value < best - (self.falls or 0.0)

    def is_over(self, value: float, best: float) -> bool:
        """Return whether a value is back on the good side."""
        if self.clear is None:
            return not self.is_beyond(value, best)
        return value <= self.clear if self.above is not None else value >= self.clear

    def _refuse(self, expected: str, found: object) -> None:
        raise ConfigError(f"alarm {self.name}", expected=expected, found=found, hint="see docs/reliability.md")


DEFAULT_ALARMS: dict[str, dict[str, Any]] = {
    "entropy_high": {"metric": "fresh/entropy", "above": 4.0, "clear": 3.0},
    "entropy_low": {"metric": "fresh/entropy", "below": 0.002},
    "truncated": {"metric": "fresh/truncated", "above": 0.5, "clear": 0.4},
    "unparsed": {"metric": "fresh/unparsed", "above": 0.5, "clear": 0.4},
    "effective_sample_size": {"metric": "replay/effective_sample_size", "below": 0.1, "clear": 0.2},
    "ratio_outside": {"metric": "replay/ratio_outside", "above": 0.5, "clear": 0.4},
    "pass_falls": {"metric": "fresh/pass@1", "falls": 0.2, "steps": 5},
}


@dataclass(slots=True)
class _State:
    """Of one alarm: whether it is on, steps in a row towards a change, steps undefined, and what `falls` looks at."""

    on: bool = False
    towards: int = 0
    undefined: int = 0
    best: float = -math.inf
    recent: list[float] = dataclasses.field(default_factory=list)


class Alarms:
    """The alarms of a run. Their state goes into checkpoints, so that a resumed run decides alike.

    Args:
        settings: name -> fields of `Alarm`, over those of `DEFAULT_ALARMS`; None switches one off.

    Raises:
        ConfigError: for a rule that cannot work.
    """

    def __init__(self, settings: Mapping[str, Mapping[str, Any] | None] | None):
        self._alarms = read_alarms(settings)
        self._states = {alarm.name: _State() for alarm in self._alarms}

    @property
    def on_policy(self) -> bool:
        """Whether an alarm wants no replay."""
        return any(self._states[alarm.name].on for alarm in self._alarms if alarm.then == "on_policy")

    def look_at(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Take the metrics of a step, say what has changed on stderr, and return metrics of the alarms' own.

        Raises:
            AlarmError: where an alarm with `then: stop` goes off.
        """
        for alarm in self._alarms:
            state = self._states[alarm.name]
            was = state.on
            _advance(alarm, state, metrics.get(alarm.metric))
            if state.on == was:
                continue
            value = metrics.get(alarm.metric, math.nan)
            change = "goes off" if state.on else "is over"
            print(
                f"alarm {alarm.name} {change}: {alarm.metric} {value:.4g} in step {step}", file=sys.stderr, flush=True
            )
            if state.on and alarm.then == "stop":
                raise AlarmError(
                    f"alarm {alarm.name}",
                    expected=_wanted(alarm),
                    found=f"{value:.4g} in step {step}",
                    hint="look at metrics.jsonl; exgrpo train --resume goes on from the last checkpoint",
                )
        on = {f"alarm/{alarm.name}": float(self._states[alarm.name].on) for alarm in self._alarms}
        return {**on, "guard/on_policy": float(self.on_policy)}

    def state(self) -> dict[str, Any]:
        """Return where the alarms stand, as plain values."""
        return {name: dataclasses.asdict(state) for name, state in self._states.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` says; alarms it does not know begin anew."""
        for name in self._states:
            self._states[name] = _State(**state[name]) if name in state else _State()


def read_alarms(settings: Mapping[str, Mapping[str, Any] | None] | None) -> list[Alarm]:
    """Return the alarms of a run: the defaults, with the user's rules over them by name."""
    merged: dict[str, dict[str, Any]] = {name: dict(rule) for name, rule in DEFAULT_ALARMS.items()}
    for name, rule in (settings or {}).items():
        if rule is None:
            merged.pop(name, None)
            continue
        known = merged.get(name, {})
        if {"above", "below", "falls"} & set(rule):  # another threshold takes the place of the default's, and its clear
            known = {key: value for key, value in known.items() if key not in ("above", "below", "falls", "clear")}
        merged[name] = {**known, **rule}
    alarms = []
    for name, rule in merged.items():
        try:
            alarms.append(Alarm(name=name, **rule))
        except TypeError as error:
            raise ConfigError(
                f"alarm {name}",
                expected="metric, one of above, below, falls, and any of clear, steps, window, hold, then",
                found=str(error),
                hint="see docs/reliability.md",
            ) from error
    return alarms


def parse_alarms(value: Any) -> dict[str, Any] | None:
    """Return the setting as a mapping; on the command line it is JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            value = value.strip()
    if value is not None and not isinstance(value, dict):
        raise ConfigError("alarms", expected="a mapping from names to rules", found=value, hint="docs/reliability.md")
    return value


def _advance(alarm: Alarm, state: _State, value: float | None) -> None:
    if value is None:
        state.undefined += 1
        if state.on and state.undefined >= alarm.hold:
            state.on, state.towards, state.undefined = False, 0, 0
        return
    state.undefined = 0
    changes = alarm.is_over(value, state.best) if state.on else alarm.is_beyond(value, state.best)
    state.towards = state.towards + 1 if changes else 0
    if state.towards >= alarm.steps:
        state.on, state.towards = not state.on, 0
    if alarm.falls is not None:
        state.recent = [*state.recent, value][-alarm.window :]
        if len(state.recent) == alarm.window:
            state.best = max(state.best, sum(state.recent) / alarm.window)


def _wanted(alarm: Alarm) -> str:
    if alarm.above is not None:
        return f"{alarm.metric} of at most {alarm.above:g}"
    if alarm.below is not None:
        return f"{alarm.metric} of at least {alarm.below:g}"
    return f"{alarm.metric} within {alarm.falls:g} of its best"
