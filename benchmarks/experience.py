"""What the experience costs: drawing as it grows, and committing a step of the paper's size.

    python benchmarks/experience.py [--json]

Draws are timed against the same draws from a hundredth of the questions, in one process, in turn. The commit is 128
groups of 8 responses of 3,000 tokens, half of them kept, to a file with synchronous=FULL.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from exgrpo.experience import ExperienceReplay, ReplaySettings, StoreIdentity
from exgrpo.types import Group, ReplayPlan, Rollout

K = 8
IDENTITY = StoreIdentity(K, "tokenizer", "template", "dataset", "verifier@1")
SMALL, LARGE = 10_000, 1_000_000


def rollout(rng: np.random.Generator, num_tokens: int, correct: bool) -> Rollout:
    """A response of random tokens."""
    return Rollout(
        response_ids=rng.integers(0, 150_000, num_tokens, dtype=np.int32),
        behaviour_log_probs=-rng.random(num_tokens, dtype=np.float32),
        reward=float(correct),
        correct=correct,
        verdict="correct" if correct else "wrong",
        mean_entropy=float(rng.random()),
        truncated=False,
    )


def batch(rng: np.random.Generator, names: list[str], num_tokens: int, num_kept: int) -> list[Group]:
    """Groups with `num_kept` right answers each."""
    prompt = np.arange(200, dtype=np.int32)
    return [Group(name, prompt, tuple(rollout(rng, num_tokens, n < num_kept) for n in range(K))) for name in names]


def open_replay(path: Path | None) -> ExperienceReplay:
    """An empty experience that replays from the first step on."""
    return ExperienceReplay.open(path, ReplaySettings(K, start_rule="immediate"), identity=IDENTITY, seed=0)


def filled(num_questions: int) -> ExperienceReplay:
    """Experience in memory with one trajectory of two tokens for each question."""
    replay, rng = open_replay(None), np.random.default_rng(0)
    for step, first in enumerate(range(0, num_questions, 10_000), start=1):
        names = [f"q{n}" for n in range(first, min(first + 10_000, num_questions))]
        prompt = np.zeros(1, dtype=np.int32)
        right = rollout(rng, 2, correct=True)
        wrong = rollout(rng, 2, correct=False)
        groups = [Group(name, prompt, (right,) * (1 + n % 7) + (wrong,) * (7 - n % 7)) for n, name in enumerate(names)]
        replay.commit(step, groups, ReplayPlan(step, 0, (), {}))
    return replay


def milliseconds(work: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def propose(rounds: int = 200) -> dict[str, float]:
    """Time of drawing 64 questions, from few and from many."""
    few, many = filled(SMALL), filled(LARGE)
    times: dict[int, list[float]] = {SMALL: [], LARGE: []}
    for step in range(LARGE, LARGE + rounds):
        times[SMALL].append(milliseconds(partial(few.propose, step, 128)))
        times[LARGE].append(milliseconds(partial(many.propose, step, 128)))
    medians = {size: statistics.median(values) for size, values in times.items()}
    return {
        f"propose 64 of {SMALL:,}, ms": medians[SMALL],
        f"propose 64 of {LARGE:,}, ms": medians[LARGE],
        "ratio": medians[LARGE] / medians[SMALL],
    }


def commit(steps: int = 7) -> dict[str, float]:
    """Time of committing a step of the paper's size, and what it takes on disk."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, open_replay(Path(folder) / "x.sqlite") as replay:
        times = []
        for step in range(1, steps + 1):
            groups = batch(rng, [f"q{step}-{n}" for n in range(128)], 3000, K // 2)
            times.append(milliseconds(partial(replay.commit, step, groups, ReplayPlan(step, 0, (), {}))))
        replay.close()
        size = (Path(folder) / "x.sqlite").stat().st_size
    return {
        "commit 1,024 x 3,000 tokens, half kept, ms": statistics.median(times),
        "slowest, ms": max(times),
        "bytes a stored token": size / (steps * 128 * (K // 2) * 3000),
    }


def opening(num_trajectories: int = 200_000) -> dict[str, float]:
    """Time of opening a file with many trajectories: nothing of them but the payload is left on the disk."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        with open_replay(path) as replay:
            for step in range(1, num_trajectories // 4_000 + 1):
                groups = batch(rng, [f"q{step}-{n}" for n in range(1_000)], 20, K // 2)
                replay.commit(step, groups, ReplayPlan(step, 0, (), {}))
            assert replay.status().trajectories == num_trajectories
        times = []
        for _ in range(3):
            began = time.perf_counter()
            open_replay(path).close()
            times.append(time.perf_counter() - began)
    return {f"open {num_trajectories:,} trajectories, s": statistics.median(times)}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    figures = propose() | commit() | opening()
    if parser.parse_args().json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:44}{value:10.3f}")


if __name__ == "__main__":
    main()
