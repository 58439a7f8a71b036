"""The stream of fresh questions: nothing is drawn that is not used, nothing is skipped that was not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from exgrpo.errors import DataError
from exgrpo.seeding import derive_rng


@dataclass(frozen=True, slots=True)
class FreshState:
    """Where the stream stands.

    Attributes:
        position: questions taken from it, over all epochs, those put off included.
        deferred: ids put off to the next step.
    """

    position: int = 0
    deferred: tuple[str, ...] = ()


class FreshQuestions:
    """Questions in the order of a shuffled epoch, taken a few at a time.

    A mixed step takes fewer questions than a batch holds, and may not take one that it replays already. Such a question
    is put off to the next step, not lost. Which question comes next depends on seed and state alone.

    Args:
        question_ids: id of each row of the data set; rows that share an id are one question, its first row.
        shuffle: whether each epoch has an order of its own, or that of the data set.
        seed: the run's seed.
        batch_questions: Q, the most distinct questions one step needs.

    Raises:
        DataError: where the data set has fewer distinct questions than one batch.
    """

    def __init__(self, question_ids: Sequence[str], *, shuffle: bool, seed: int, batch_questions: int):
        self._row_of: dict[str, int] = {}
        for row, question_id in enumerate(question_ids):
            self._row_of.setdefault(question_id, row)
        self._ids = list(self._row_of)
        if len(self._ids) < batch_questions:
            raise DataError(
                "train_dataset",
                expected=f"at least {batch_questions} distinct questions, one batch",
                found=len(self._ids),
                hint="use more questions, or a smaller per_device_train_batch_size x steps_per_generation",
            )
        self._shuffle = shuffle
        self._seed = seed
        self._position = 0
        self._deferred: list[str] = []
        self._epoch_order: tuple[int, list[int]] = (-1, [])

    @property
    def state(self) -> FreshState:
        """Where the stream stands; setting it goes back or on to that place."""
        return FreshState(self._position, tuple(self._deferred))

    @state.setter
    def state(self, state: FreshState) -> None:
        self._position, self._deferred = state.position, list(state.deferred)

    def row(self, question_id: str) -> int | None:
        """Return the data set row of a question, None where the data set does not hold it."""
        return self._row_of.get(question_id)

    def take(self, num: int, *, busy: Collection[str], retired: Callable[[str], bool]) -> list[str]:
        """Return the ids of the next `num` questions, none in `busy`, retired ones left out while others remain.

        Args:
            num: how many.
            busy: ids that the step replays; they come first in the next step.
            retired: tells whether a question has left the fresh data for good.
        """
        taken: list[str] = []
        waiting, self._deferred = self._deferred, []
        passed_over = 0
        while len(taken) < num:
            question_id = waiting.pop(0) if waiting else self._next()
            # A whole epoch of retired questions means there are not enough others: then retired ones fill the batch.
            if passed_over < len(self._ids) and retired(question_id):
                passed_over += 1
            elif question_id in busy or question_id in taken:
                self._deferred.append(question_id)
            else:
                taken.append(question_id)
        self._deferred += waiting
        return taken

    def _next(self) -> str:
        epoch, offset = divmod(self._position, len(self._ids))
        if self._epoch_order[0] != epoch:
            order = range(len(self._ids))
            rng = derive_rng(self._seed, "fresh", step=epoch)
            self._epoch_order = (epoch, rng.permutation(order).tolist() if self._shuffle else list(order))
        self._position += 1
        return self._ids[self._epoch_order[1][offset]]
