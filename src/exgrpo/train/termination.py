"""SIGTERM, as a cluster sends it before it takes the machine: finish the step, write a checkpoint, stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from exgrpo.errors import StoppedError

if TYPE_CHECKING:
    from exgrpo.train.trainer import ExGRPOTrainer


class StopOnTermination(TrainerCallback):
    """Stops a run at the end of the generation batch under way, with a checkpoint, once SIGTERM has come.

    Args:
        trainer: whose run.
    """

    def __init__(self, trainer: ExGRPOTrainer):
        self._trainer = trainer
        self._asked = False
        self._stopped_at: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take note of SIGTERM while the context lasts; only a main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for a checkpoint and the end of training, where a batch is at its end."""
        if self._asked and self._trainer.micro_step % self._trainer.micro_steps_per_batch == 0:
            control.should_save = control.should_training_stop = True
            self._stopped_at = state.global_step

    def raise_if_stopped(self) -> None:
        """Raise a StoppedError where the run ended before its time."""
        if self._stopped_at is not None:
            raise StoppedError(
                f"update {self._stopped_at}",
                expected="to go on",
                found="SIGTERM; the step was finished and a checkpoint written",
                hint="exgrpo train --resume goes on from here",
            )

    def _note(self, number: int, frame: Any) -> None:
        self._asked = True
