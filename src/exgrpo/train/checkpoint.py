"""What a checkpoint must hold besides TRL's files so that a run goes on as if it had never stopped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from exgrpo.errors import ConfigError, StoreError
from exgrpo.train.fresh import FreshState

if TYPE_CHECKING:
    from exgrpo.train.trainer import ExGRPOTrainer

FILE = "exgrpo.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ExperienceCheckpoint:
    """Where the experience and the fresh stream stood when a checkpoint was written.

    Attributes:
        step: the last committed step of the experience.
        fresh: the fresh stream after that step.
    """

    step: int
    fresh: FreshState

    def write(self, folder: Path) -> None:
        """Add this to a checkpoint's folder; the file is there whole or not at all."""
        values = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        replace_file(folder / FILE, json.dumps(values))

    @classmethod
    def read(cls, folder: Path) -> ExperienceCheckpoint:
        """Return what a checkpoint's folder holds.

        Raises:
            StoreError: where it holds none, or one of another version.
        """
        path = folder / FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise StoreError(
                str(path),
                expected="the state of experience and fresh questions",
                found=type(error).__name__,
                hint="resume from an earlier checkpoint; this one was not finished, or another trainer wrote it",
            ) from error
        if values.pop("schema_version", None) != SCHEMA_VERSION:
            raise StoreError(
                str(path),
                expected=f"schema version {SCHEMA_VERSION}",
                found="another",
                hint="resume with the release of exgrpo that wrote it",
            )
        fresh = values["fresh"]
        return cls(values["step"], FreshState(fresh["position"], tuple(fresh["deferred"])))


class CheckpointWriter(TrainerCallback):
    """Adds our part to each checkpoint that transformers writes.

    Args:
        trainer: whose state it is.
    """

    def __init__(self, trainer: ExGRPOTrainer):
        self._trainer = trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write into the folder that was just made."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            self._trainer.save_experience_state(folder)


def last_checkpoint(directory: str | Path) -> Path:
    """Return the latest checkpoint in a run directory.

    Raises:
        ConfigError: where there is none.
    """
    found = get_last_checkpoint(str(directory)) if Path(directory).is_dir() else None
    if found is None:
        raise ConfigError(
            "resume", expected=f"a checkpoint in {directory}", found="none", hint="check output_dir and save_strategy"
        )
    return Path(found)


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old content or the new: temporary name, fsync, rename."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
