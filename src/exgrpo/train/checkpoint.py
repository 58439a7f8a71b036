"""What a checkpoint must hold besides TRL's files so that a run goes on as if it had never stopped."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from exgrpo.errors import ConfigError, StoreError
from exgrpo.train.fresh import FreshState

if TYPE_CHECKING:
    from exgrpo.train.trainer import ExGRPOTrainer

FILE = "exgrpo.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ExperienceCheckpoint:
    """Where the experience and the fresh stream stood when a checkpoint was written.

    It is written last and is the checkpoint's seal: it names every file with its size, after all of them have reached
    the disk. A checkpoint without a whole seal was torn by a crash.

    Attributes:
        step: the last committed step of the experience.
        fresh: the fresh stream after that step.
        alarms: where the alarms stand (`Alarms.state`).
    """

    step: int
    fresh: FreshState
    alarms: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Seal a checkpoint's folder."""
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != FILE)
        for path in files:
            sync(path)
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
        values = {"schema_version": SCHEMA_VERSION, **asdict(self), "files": sizes}
        replace_file(folder / FILE, json.dumps(values))
        for directory in (folder, folder.parent):
            sync(directory)

    @classmethod
    def read(cls, folder: Path) -> ExperienceCheckpoint:
        """Return what a checkpoint's folder holds.

        Raises:
            StoreError: where it has no seal, one of another version, or lacks a file that the seal names.
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
        for name, size in values["files"].items():
            found = (folder / name).stat().st_size if (folder / name).is_file() else None
            if found != size:
                raise StoreError(
                    str(folder / name),
                    expected=f"{size} bytes, as when the checkpoint was sealed",
                    found="no file" if found is None else f"{found} bytes",
                    hint="resume from an earlier checkpoint; this one is damaged",
                )
        fresh = values["fresh"]
        return cls(values["step"], FreshState(fresh["position"], tuple(fresh["deferred"])), values["alarms"])


class CheckpointWriter(TrainerCallback):
    """Seals each checkpoint that transformers writes, and has them written between generation batches only.

    In the middle of a batch that serves several updates, the rest of its rows are in no checkpoint: a run that went on
    from there would generate others. Such a checkpoint is put off to the end of the batch.

    Args:
        trainer: whose state it is.
    """

    def __init__(self, trainer: ExGRPOTrainer):
        self._trainer = trainer
        self._put_off = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Put a checkpoint off to the end of the generation batch."""
        wanted = control.should_save or self._put_off
        at_end = self._trainer.micro_step % self._trainer.micro_steps_per_batch == 0
        control.should_save = wanted and at_end
        self._put_off = wanted and not at_end

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Seal the folder that was just written."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            self._trainer.save_experience_state(folder)


def checkpoints(directory: str | Path) -> list[Path]:
    """Return all checkpoint folders of a run, torn ones too, the latest first."""
    found = Path(directory).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    numbered = [path for path in found if path.is_dir() and _number(path) is not None]
    return sorted(numbered, key=lambda path: _number(path) or 0, reverse=True)


def is_whole(folder: Path) -> bool:
    """Return whether a checkpoint was sealed and has all its files."""
    try:
        ExperienceCheckpoint.read(folder)
    except StoreError:
        return False
    return True


def last_checkpoint(directory: str | Path) -> Path | None:
    """Return the latest whole checkpoint of a run, None where it had written none when it stopped.

    Raises:
        ConfigError: where the directory holds no run.
    """
    if not (Path(directory) / "metrics.jsonl").exists() and not checkpoints(directory):
        raise ConfigError(
            "resume",
            expected=f"a run in {directory}, with a checkpoint in it",
            found="none",
            hint="check output_dir, or start it without --resume",
        )
    return next((folder for folder in checkpoints(directory) if is_whole(folder)), None)


def set_aside_later(directory: str | Path, chosen: Path | None) -> None:
    """Take checkpoints after the chosen one out of the way: the run that goes on will write others in their place.

    Torn ones are removed, whole ones renamed to `superseded-checkpoint-N`: the steps of the experience that they name
    are about to be taken again.
    """
    first = -1 if chosen is None else _number(chosen) or 0
    for folder in checkpoints(directory):
        if (_number(folder) or 0) <= first:
            continue
        if not is_whole(folder):
            shutil.rmtree(folder)
            continue
        aside = folder.with_name(f"superseded-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)


def _number(folder: Path) -> int | None:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else None


def sync(path: Path) -> None:
    """Have a file, or a directory's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old content or the new: temporary name, fsync, rename."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
