"""Real benchmark files in verl's form, which are not part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).parents[2] / "shared" / "data"
DIRECTORY = Path(os.environ.get("EXGRPO_BENCHMARK_FILES", _BESIDE))


def benchmark_file(name: str) -> str:
    """Return the path of a benchmark file; the test is skipped where there is none."""
    path = DIRECTORY / name
    if not path.is_file():
        pytest.skip(f"no {path}; EXGRPO_BENCHMARK_FILES names the folder")
    return str(path)
