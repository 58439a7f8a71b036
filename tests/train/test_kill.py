"""kill -9 at any moment: the run that goes on equals the run that was never stopped, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exgrpo.experience import SQLiteStore
from exgrpo.seeding import derive_rng

from ..experience.helpers import everything
from .conftest import SMALL, read_metrics

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

PLACES = [
    ["generation", 1],
    ["generation", 3],
    ["verification", 2],
    ["optimizer step", 1],
    ["optimizer step", 2],
    ["commit, before", 1],
    ["commit, inside", 2],
    ["commit, almost done", 1],
    ["checkpoint, model", 1],
    ["checkpoint, optimizer", 1],
    ["checkpoint, generators", 1],
    ["checkpoint, seal", 1],
    ["after the commit", 5],
]
NUM_RANDOM = 8


def moments(updates):
    """The places and random parts of a whole run, mixed, reproducible by the seed of the day that a build sets."""
    rng = derive_rng(int(os.environ.get("EXGRPO_KILL_SEED", "0")), "kills", step=updates)
    times = [float(part) for part in rng.uniform(0.02, 0.12, size=NUM_RANDOM)]
    mixed = [*PLACES, *times]
    return [mixed[n] for n in rng.permutation(len(mixed))]


def contents(run):
    store = SQLiteStore(run / "experience.sqlite", None, mode="ro")
    try:
        return everything(store)
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("updates", [1, 2])
def test_a_run_killed_again_and_again_equals_one_that_was_not(tmp_path, updates):
    config = tmp_path / "config.yaml"
    values = {
        **SMALL,
        "model_name_or_path": "chain-base",
        "output_dir": str(tmp_path / "unused"),
        "max_steps": 40 * updates,
    }
    values |= {"steps_per_generation": 2 * updates, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    values |= {"chain_min_terms": 2, "chain_max_terms": 4, "chain_num_questions": 24, "chain_num_held_out": 8}
    config.write_text(json.dumps(values))
    plan = moments(updates)
    harness = Path(__file__).with_name("kill_harness.py")
    command = [sys.executable, "-W", "ignore", str(harness), str(config), str(tmp_path), json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *killed, last = json.loads(done.stdout.splitlines()[-1])
    log = (tmp_path / "log.txt").read_text()
    assert first == last == "exit 0", log
    # The last processes may come to the end of training before their moment; most do not.
    assert set(killed) <= {"killed", "exit 0"}, log
    assert killed.count("killed") >= len(PLACES), killed
    whole, resumed = (tmp_path / name for name in ("whole", "killed"))
    steps = [[line for line in read_metrics(run) if "experience/step" in line] for run in (whole, resumed)]
    assert len(steps[0]) == 40
    assert steps[0] == steps[1]
    assert contents(whole) == contents(resumed)
    assert (whole / "model/model.safetensors").read_bytes() == (resumed / "model/model.safetensors").read_bytes()
    assert sum(line["replay/questions"] for line in steps[0]) > 0
