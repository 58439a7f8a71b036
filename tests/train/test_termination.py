"""SIGTERM ends a run after a whole step, with a checkpoint from which it goes on; Ctrl-C loses nothing committed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from exgrpo.experience import SQLiteStore
from exgrpo.train.checkpoint import ExperienceCheckpoint, checkpoints, is_whole

from ..experience.helpers import everything
from .conftest import SMALL, read_metrics


def config(tmp_path, **settings):
    values = {**SMALL, "model_name_or_path": "chain-base", "output_dir": str(tmp_path / "run"), "max_steps": 400}
    values |= {"steps_per_generation": 4, "save_strategy": "steps", "save_steps": 1000, "save_total_limit": 2}
    values |= {"chain_min_terms": 2, "chain_max_terms": 4, "chain_num_questions": 24, "chain_num_held_out": 8}
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({**values, **settings}))
    return path


def train(path, *words, send=None, after=1):
    """Run the command line in a process of its own; send it a signal once it has logged some steps."""
    command = [sys.executable, "-W", "ignore", "-m", "exgrpo", "train", str(path), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        metrics = path.parent / "run" / "metrics.jsonl"
        while send is not None and process.poll() is None:
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= after:
                process.send_signal(send)
                send = None
            time.sleep(0.01)
        _, said = process.communicate(timeout=120)
    return process.returncode, said


@pytest.mark.slow
def test_sigterm_finishes_the_step_and_the_run_goes_on_from_there(tmp_path):
    path = config(tmp_path)
    status, said = train(path, send=signal.SIGTERM)
    assert status == 143, said
    assert "--resume goes on from here" in said
    assert "Traceback" not in said
    (folder,) = checkpoints(tmp_path / "run")
    assert is_whole(folder)
    update = int(folder.name.rpartition("-")[2])
    # Two updates a batch: it stopped between batches, with the store at the same step.
    assert update % 2 == 0
    assert ExperienceCheckpoint.read(folder).step == update // 2
    status, said = train(path, "--resume", "--max_steps", str(update + 4))
    assert status == 0, said
    steps = [line["step"] for line in read_metrics(tmp_path / "run") if "experience/step" in line]
    assert steps == sorted(set(steps))
    assert steps[-1] == update + 4


@pytest.mark.slow
def test_ctrl_c_loses_nothing_that_was_committed(tmp_path):
    path = config(tmp_path)
    status, _ = train(path, send=signal.SIGINT, after=3)
    assert status != 0
    logged = [line["experience/step"] for line in read_metrics(tmp_path / "run") if "experience/step" in line]
    store = SQLiteStore(tmp_path / "run" / "experience.sqlite", None)  # no lock is left
    assert store.step >= logged[-1]
    assert everything(store)
    store.close()
