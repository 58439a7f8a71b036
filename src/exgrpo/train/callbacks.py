"""What a run writes while it goes: metrics as lines of JSON, progress as lines of text."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import IO, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from exgrpo.train.checkpoint import replace_file
from exgrpo.train.telemetry import find_metric


class MetricsWriter(TrainerCallback):
    """Appends what is logged to metrics.jsonl and, where it depends on the clock, to timing.jsonl.

    Args:
        directory: the run directory.
    """

    def __init__(self, directory: Path):
        self._directory = directory

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """In a resumed run, drop the lines of steps that are taken again."""
        for file in ("metrics.jsonl", "timing.jsonl"):
            path = self._directory / file
            if state.is_world_process_zero and path.exists():
                lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
                # A crash may have cut the last line.
                whole = [line for line in lines if line.endswith("\n")]
                kept = [line for line in whole if json.loads(line)["step"] <= state.global_step]
                replace_file(path, "".join(kept))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write one line to each file."""
        if not state.is_world_process_zero or not logs:
            return
        lines: dict[str, dict[str, Any]] = {"metrics.jsonl": {}, "timing.jsonl": {}}
        for name, value in logs.items():
            metric = find_metric(name)
            lines["timing.jsonl" if metric is not None and metric.timing else "metrics.jsonl"][name] = value
        for file, values in lines.items():
            if values:
                with (self._directory / file).open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps({"step": state.global_step, **values}) + "\n")


class ProgressLines(TrainerCallback):
    """Prints a line per step: how well, how sure, what is stored and replayed, how long still.

    Args:
        stream: where to, by default stderr.
    """

    HEADER = "    step  pass@1  entropy  questions  trajectories  retired  replayed  useful     left"

    def __init__(self, stream: IO[str] | None = None):
        self._stream = stream or sys.stderr
        self._began = 0.0
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Print the header and start the clock."""
        self._began, self._first_step = time.monotonic(), state.global_step
        if state.is_world_process_zero:
            print(self.HEADER, file=self._stream, flush=True)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the line of a step that has ended."""
        if not state.is_world_process_zero or not logs or "experience/step" not in logs:
            return
        done = state.global_step - self._first_step
        left = (time.monotonic() - self._began) / max(done, 1) * (state.max_steps - state.global_step)
        pass_rate = logs.get("fresh/pass@1")
        print(
            f"{state.global_step:4d}/{state.max_steps:<4d}"
            f"{'-' if pass_rate is None else f'{pass_rate:.1%}':>6}"
            f"{logs['entropy']:9.3f}"
            f"{logs['experience/questions']:11.0f}"
            f"{logs['experience/trajectories']:14.0f}"
            f"{logs['experience/retired']:9.0f}"
            f"{logs['replay/questions']:10.0f}"
            f"{logs['tokens/useful']:8.0%}"
            f"{_clock(left):>9}",
            file=self._stream,
            flush=True,
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
