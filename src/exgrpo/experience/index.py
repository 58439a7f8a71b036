"""What sampling needs, in memory and in columns: difficulties and usages, no payloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from exgrpo.experience.membership import SlotSet
from exgrpo.experience.store import ExperienceStore, StepChanges, TrajectoryRow, trajectory_row
from exgrpo.types import Candidate, QuestionState, Usage


class ExperienceIndex:
    """Questions by difficulty bucket and trajectories by question.

    Questions and trajectories are numbered by slots, in the order in which the store first saw them. An index built
    from a store is therefore the same as one that lived through the run, and draws the same questions.

    A trajectory is live unless it was removed or quarantined. A question can be drawn if it has a live trajectory and
    is not retired. Every update is O(1) in what is stored.

    Args:
        num_rollouts: K; buckets are the number of right answers in a question's latest group. A question with all K
            right that is not retired, which happens only without retirement, counts with the easiest, K - 1.
    """

    def __init__(self, num_rollouts: int):
        self.buckets = [SlotSet() for _ in range(num_rollouts)]
        self.num_live = 0
        self.num_retired = 0
        self._questions: list[QuestionState] = []
        self._question_slot: dict[str, int] = {}
        self._question_trajectories: list[list[int]] = []
        self._num_live_of: list[int] = []
        self._trajectories: list[TrajectoryRow] = []
        self._trajectory_slot: dict[str, int] = {}
        # Slots before this one are not live, and trajectories age in the order of their slots.
        self._oldest = 0

    @classmethod
    def of(cls, store: ExperienceStore) -> ExperienceIndex:
        """Return the index of what a store holds."""
        index = cls(store.identity.num_rollouts)
        for state in store.questions():
            index._set_question(state)
        for row in store.trajectories():
            index._add(row)
        return index

    def apply(self, changes: StepChanges) -> None:
        """Follow a commit that the store has made."""
        for state in changes.questions:
            self._set_question(state)
        for experience in changes.inserted:
            self._add(trajectory_row(experience, changes.usages[experience.id]))
        self.set_usages(changes.usages)

    def set_usages(self, usages: Mapping[str, Usage]) -> None:
        """Follow changed usages."""
        for key, usage in usages.items():
            slot = self._trajectory_slot[key]
            row = self._trajectories[slot]
            if is_live(row.usage) != is_live(usage):
                self._count_live(self._question_slot[row.question_id], 1 if is_live(usage) else -1)
                self._oldest = min(self._oldest, slot)
            self._trajectories[slot] = TrajectoryRow(row.id, row.question_id, row.policy_step, row.num_tokens, usage)

    # ---- looking things up -------------------------------------------------------------------------------------------

    def question(self, question_id: str) -> QuestionState | None:
        """Return what is known of a question, None where it was never visited."""
        slot = self._question_slot.get(question_id)
        return None if slot is None else self._questions[slot]

    def question_id(self, slot: int) -> str:
        """Return the id of the question in a slot."""
        return self._questions[slot].question_id

    def usage(self, experience_id: str) -> Usage | None:
        """Return the mutable part of an experience, None where there is no such experience."""
        slot = self._trajectory_slot.get(experience_id)
        return None if slot is None else self._trajectories[slot].usage

    def live_of(self, question_id: str) -> list[TrajectoryRow]:
        """Return the live trajectories of a question, oldest first."""
        slot = self._question_slot.get(question_id)
        rows = [] if slot is None else [self._trajectories[n] for n in self._question_trajectories[slot]]
        return [row for row in rows if is_live(row.usage)]

    def candidates(self, question_id: str) -> tuple[Candidate, ...]:
        """Return the live trajectories of a question as candidates, oldest first."""
        return tuple(
            Candidate(
                row.id, row.policy_step, row.num_tokens, row.usage.entropy, row.usage.entropy_step, row.usage.uses
            )
            for row in self.live_of(question_id)
        )

    def oldest_live(self) -> Iterator[TrajectoryRow]:
        """Yield live trajectories, oldest first."""
        while self._oldest < len(self._trajectories) and not is_live(self._trajectories[self._oldest].usage):
            self._oldest += 1
        for slot in range(self._oldest, len(self._trajectories)):
            if is_live(self._trajectories[slot].usage):
                yield self._trajectories[slot]

    @property
    def num_seen(self) -> int:
        """Number of questions visited so far."""
        return len(self._questions)

    @property
    def capacities(self) -> np.ndarray:
        """Number of questions that can be drawn, by bucket: int64 [K]."""
        return np.array([len(bucket) for bucket in self.buckets], dtype=np.int64)

    # ---- keeping count -----------------------------------------------------------------------------------------------

    def _set_question(self, state: QuestionState) -> None:
        slot = self._question_slot.get(state.question_id)
        if slot is None:
            slot = self._question_slot[state.question_id] = len(self._questions)
            self._questions.append(state)
            self._question_trajectories.append([])
            self._num_live_of.append(0)
            self.num_retired += state.retired_step is not None
        else:
            self._leave_bucket(slot)
            self.num_retired += (state.retired_step is not None) - (self._questions[slot].retired_step is not None)
            self._questions[slot] = state
            self._enter_bucket(slot)

    def _add(self, row: TrajectoryRow) -> None:
        slot = self._trajectory_slot[row.id] = len(self._trajectories)
        self._trajectories.append(row)
        question = self._question_slot[row.question_id]
        self._question_trajectories[question].append(slot)
        if is_live(row.usage):
            self._count_live(question, 1)

    def _count_live(self, question: int, change: int) -> None:
        self._leave_bucket(question)
        self._num_live_of[question] += change
        self.num_live += change
        self._enter_bucket(question)

    def _bucket(self, question: int) -> SlotSet:
        return self.buckets[min(self._questions[question].num_correct, len(self.buckets) - 1)]

    def _leave_bucket(self, question: int) -> None:
        self._bucket(question).discard(question)

    def _enter_bucket(self, question: int) -> None:
        if self._num_live_of[question] and self._questions[question].retired_step is None:
            self._bucket(question).add(question)


def is_live(usage: Usage) -> bool:
    """Return whether a trajectory takes part in replay."""
    return usage.removed is None and usage.quarantined is None
