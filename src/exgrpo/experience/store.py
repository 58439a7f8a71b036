"""Where experience is kept: the protocol, and a store in memory that is also the reference for others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from exgrpo.errors import StepOrderError, StoreError, StoreMismatchError
from exgrpo.types import Experience, QuestionState, StartState, Usage

EventKind = Literal["insert", "question", "usage", "start"]


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """What a store and a run must have in common; token ids and difficulties mean nothing without it.

    Attributes:
        num_rollouts: K, the unit of difficulty.
        tokenizer: hash of the tokenizer.
        template: hash of the chat template.
        dataset: hash of the questions.
        verifier: name and version of what judges answers, `name@version`.
    """

    num_rollouts: int
    tokenizer: str
    template: str
    dataset: str
    verifier: str

    def check(self, found: StoreIdentity, where: str) -> None:
        """Raise a StoreMismatchError that names every difference between this run and what a store was made with."""
        ours, theirs = dataclasses.asdict(self), dataclasses.asdict(found)
        different = [name for name in ours if ours[name] != theirs[name]]
        if different:
            raise StoreMismatchError(
                where,
                expected=", ".join(f"{name} {ours[name]}" for name in different),
                found=", ".join(f"{name} {theirs[name]}" for name in different),
                hint="use the tokenizer, template, data, verifier and num_generations of the run that filled the "
                "store, or another experience_path; exgrpo experience adopt makes it that of another data set, "
                "template or verifier",
            )


@dataclass(frozen=True, slots=True)
class StepChanges:
    """What one commit changes, as new values.

    Attributes:
        step: the step.
        inserted: new experiences, in the order in which they take their places.
        questions: new states of the questions visited.
        usages: experience id -> new usage; holds every inserted experience too.
        start: the start state after the step.
    """

    step: int
    inserted: tuple[Experience, ...] = ()
    questions: tuple[QuestionState, ...] = ()
    usages: Mapping[str, Usage] = field(default_factory=dict)
    start: StartState = field(default_factory=StartState)


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """What the index needs of an experience: everything but its payload.

    Attributes:
        id: experience id.
        question_id: its question.
        policy_step: step in which it was written.
        num_tokens: number of response tokens.
        usage: its mutable part.
    """

    id: str
    question_id: str
    policy_step: int
    num_tokens: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Event:
    """One change of the store, as the append-only log keeps it.

    Attributes:
        step: the step that made it.
        kind: what changed: an `insert`ed experience, a `question`'s state, an experience's `usage`, the `start` state.
        subject: experience or question id, empty for the start state.
        before, after: JSON of the old and the new value, None where there is none.
    """

    step: int
    kind: EventKind
    subject: str
    before: str | None
    after: str | None


class ExperienceStore(Protocol):
    """Durable home of experience: one mutation per training step, undone by step."""

    @property
    def identity(self) -> StoreIdentity:
        """What the store was made with."""
        ...

    @property
    def step(self) -> int:
        """The last committed step, 0 in an empty store."""
        ...

    @property
    def start(self) -> StartState | None:
        """The start state after that step, None before the first."""
        ...

    def apply(self, changes: StepChanges) -> None:
        """Make all changes of a step or none.

        Raises:
            StepOrderError: where the step does not come after the store's own.
        """
        ...

    def amend(self, usages: Mapping[str, Usage]) -> None:
        """Change usages outside of a step (quarantine and release); logged under the current step."""
        ...

    def roll_back(self, step: int) -> None:
        """Undo everything after `step`, as if it had never happened.

        Raises:
            StepOrderError: where the store has not come to that step.
        """
        ...

    def questions(self) -> Iterator[QuestionState]:
        """Yield all questions in the order of their first visit."""
        ...

    def trajectories(self) -> Iterator[TrajectoryRow]:
        """Yield all experiences without payload, removed ones too, in the order of collection."""
        ...

    def load(self, ids: Sequence[str]) -> list[Experience]:
        """Return experiences with payload, in the order asked for.

        Raises:
            StoreError: for an unknown id.
        """
        ...

    def events(self, subject: str | None = None) -> Iterator[Event]:
        """Yield the log from its beginning, of one subject or of all."""
        ...

    def close(self) -> None:
        """Let go of files and locks; closing twice is harmless."""
        ...


class MemoryStore:
    """A store that lives as long as the process. The reference model of the tests."""

    def __init__(self, identity: StoreIdentity):
        self._identity = identity
        self._experiences: dict[str, Experience] = {}
        self._usages: dict[str, Usage] = {}
        self._questions: dict[str, QuestionState] = {}
        self._events: list[Event] = []
        self._start: StartState | None = None
        self._step = 0

    @property
    def identity(self) -> StoreIdentity:
        """What the store was made with."""
        return self._identity

    @property
    def step(self) -> int:
        """The last committed step, 0 in an empty store."""
        return self._step

    @property
    def start(self) -> StartState | None:
        """The start state after that step, None before the first."""
        return self._start

    def apply(self, changes: StepChanges) -> None:
        """Make all changes of a step or none (see `ExperienceStore`)."""
        check_next_step(self._step, changes.step, "experience in memory")
        self._events += events_of(changes, self._questions.get, self._usages.get, self._start)
        self._experiences |= {experience.id: experience for experience in changes.inserted}
        self._questions |= {state.question_id: state for state in changes.questions}
        self._usages |= changes.usages
        self._start, self._step = changes.start, changes.step

    def amend(self, usages: Mapping[str, Usage]) -> None:
        """Change usages outside of a step (see `ExperienceStore`)."""
        self._events += usage_events(self._step, usages, self._usages.get)
        self._usages |= usages

    def roll_back(self, step: int) -> None:
        """Undo everything after `step` (see `ExperienceStore`)."""
        check_reached(self._step, step, "experience in memory")
        while self._events and self._events[-1].step > step:
            event = self._events.pop()
            if event.kind == "insert":
                del self._experiences[event.subject], self._usages[event.subject]
            elif event.kind == "usage":
                if event.before is not None:
                    self._usages[event.subject] = usage_from_json(event.before)
            elif event.kind == "start":
                self._start = None if event.before is None else start_from_json(event.before)
            elif event.before is None:
                del self._questions[event.subject]
            else:
                self._questions[event.subject] = question_from_json(event.subject, event.before)
        self._step = min(self._step, step)

    def questions(self) -> Iterator[QuestionState]:
        """Yield all questions in the order of their first visit."""
        return iter(tuple(self._questions.values()))

    def trajectories(self) -> Iterator[TrajectoryRow]:
        """Yield all experiences without payload in the order of collection."""
        for experience in tuple(self._experiences.values()):
            yield trajectory_row(experience, self._usages[experience.id])

    def load(self, ids: Sequence[str]) -> list[Experience]:
        """Return experiences with payload, in the order asked for."""
        check_known(ids, self._experiences, "experience in memory")
        return [self._experiences[key] for key in ids]

    def events(self, subject: str | None = None) -> Iterator[Event]:
        """Yield the log from its beginning, of one subject or of all."""
        return (event for event in tuple(self._events) if subject is None or event.subject == subject)

    def close(self) -> None:
        """Nothing to let go of."""


# ---- shared by all stores ------------------------------------------------------------------------------------------


def trajectory_row(experience: Experience, usage: Usage) -> TrajectoryRow:
    """Return an experience without its payload."""
    return TrajectoryRow(
        experience.id, experience.question_id, experience.policy_step, len(experience.response_ids), usage
    )


def check_next_step(current: int, step: int, where: str) -> None:
    """Raise a StepOrderError unless `step` comes after the store's own."""
    if step <= current:
        raise StepOrderError(
            where,
            expected=f"a step after {current}, the last one committed",
            found=step,
            hint="a step is committed once; roll the experience back to repeat it",
        )


def check_reached(current: int, step: int, where: str) -> None:
    """Raise a StepOrderError unless the store has come to `step`."""
    if not 0 <= step <= current:
        raise StepOrderError(
            where,
            expected=f"a step from 0 to {current}, the last one committed",
            found=step,
            hint="the store is behind; use the store of that checkpoint, or begin with an empty one",
        )


def check_known(ids: Iterable[str], known: Iterable[str] | Mapping[str, object], where: str) -> None:
    """Raise a StoreError for an id that is not among `known`."""
    known = known if isinstance(known, Mapping) else set(known)
    for key in ids:
        if key not in known:
            raise StoreError(where, expected="the id of a stored experience", found=key, hint="list the store's ids")


def events_of(
    changes: StepChanges,
    question: Callable[[str], QuestionState | None],
    usage: Callable[[str], Usage | None],
    start: StartState | None,
) -> list[Event]:
    """Return the log of a step's changes, given what held before; undone from last to first."""
    step = changes.step
    events = []
    for state in changes.questions:
        before = question(state.question_id)
        events.append(
            Event(
                step,
                "question",
                state.question_id,
                question_to_json(before) if before else None,
                question_to_json(state),
            )
        )
    events += [Event(step, "insert", experience.id, None, None) for experience in changes.inserted]
    events += usage_events(step, changes.usages, usage)
    if changes.start != start:
        events.append(Event(step, "start", "", start_to_json(start) if start else None, start_to_json(changes.start)))
    return events


def usage_events(step: int, usages: Mapping[str, Usage], usage: Callable[[str], Usage | None]) -> list[Event]:
    """Return the log of changed usages, given what held before."""
    befores = [(key, usage(key), after) for key, after in usages.items()]
    return [
        Event(step, "usage", key, usage_to_json(before) if before else None, usage_to_json(after))
        for key, before, after in befores
        if before != after
    ]


def usage_to_json(usage: Usage) -> str:
    """Return a usage as a JSON array, in the order of its attributes."""
    return json.dumps(dataclasses.astuple(usage))


def usage_from_json(text: str) -> Usage:
    """Return the usage that `usage_to_json` wrote."""
    return Usage(*json.loads(text))


def question_to_json(state: QuestionState) -> str:
    """Return a question's state as a JSON array, its id left out."""
    return json.dumps(dataclasses.astuple(state)[1:])


def question_from_json(question: str, text: str) -> QuestionState:
    """Return the state that `question_to_json` wrote."""
    return QuestionState(question, *json.loads(text))


def start_to_json(state: StartState) -> str:
    """Return a start state as a JSON array."""
    return json.dumps(dataclasses.astuple(state))


def start_from_json(text: str) -> StartState:
    """Return the state that `start_to_json` wrote."""
    started, started_step, recent = json.loads(text)
    return StartState(started, started_step, tuple(recent))
