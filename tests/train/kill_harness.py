"""Kills real training processes and resumes them: python kill_harness.py CONFIG DIRECTORY MOMENTS_JSON.

Imports once and forks a process for each run, so that a kill costs no minute. A moment is a time after the start, as a
part of the time that the whole run took, or the name of a place and how many times it is passed before the process
kills itself there.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from exgrpo.cli.main import main
from exgrpo.experience.sqlite import SQLiteStore
from exgrpo.train import checkpoint
from exgrpo.train.compat import HookedGRPOTrainer


def places() -> dict[str, tuple[Any, str]]:
    """Places in the code where a process can be killed: just before the function is entered."""
    return {
        "generation": (transformers.GenerationMixin, "_sample"),
        "verification": (HookedGRPOTrainer, "_calculate_rewards"),
        "optimizer step": (torch.optim.AdamW, "step"),
        "commit, before": (SQLiteStore, "apply"),
        "commit, inside": (SQLiteStore, "_log"),
        "commit, almost done": (SQLiteStore, "_set_meta"),
        "checkpoint, model": (transformers.Trainer, "save_model"),
        "checkpoint, optimizer": (transformers.Trainer, "_save_optimizer_and_scheduler"),
        "checkpoint, generators": (transformers.Trainer, "_save_rng_state"),
        "checkpoint, seal": (checkpoint, "replace_file"),
        "after the commit": (HookedGRPOTrainer, "log_values"),
    }


def die_at(place: str, passes: int) -> None:
    """Have this process kill itself when it enters a place for the `passes`-th time."""
    owner, name = places()[place]
    original = getattr(owner, name)
    left = [passes]

    def dying(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, dying)


def run(words: list[str], log: Path, place: list[Any] | None = None, after_s: float = math.inf) -> str:
    """Train in a process of its own, killed at a place or after a time, and return `killed`, or `exit N`."""
    child = os.fork()
    if child == 0:
        with log.open("a") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        status = 99
        try:
            if place is not None:
                die_at(*place)
            status = main(words)
        finally:
            os._exit(status)
    deadline = time.monotonic() + after_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return "killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def play(config: str, directory: Path, moments: list[Any]) -> list[str]:
    """Train once without a kill, and once with a kill at each moment until the last process finishes."""
    log = directory / "log.txt"
    words = ["train", config, "--output_dir"]
    begun = time.monotonic()
    outcomes = [run([*words, str(directory / "whole")], log)]
    whole_s = time.monotonic() - begun
    killed = directory / "killed"
    for moment in [*moments, None]:
        started = (killed / "metrics.jsonl").exists() or any(killed.glob("checkpoint-*"))
        place = moment if isinstance(moment, list) else None
        after_s = moment * whole_s if isinstance(moment, float) else math.inf
        outcomes.append(run([*words, str(killed), *(["--resume"] if started else [])], log, place, after_s))
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(play(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))))
