"""What runs in a worker process of the pool."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exgrpo.types import Judgement
from exgrpo.verify.registry import Verifier, build_verifier

_LEAST_MEMORY = 64 * 2**20

_verifier: Verifier


def start(name: str, options: Mapping[str, Any], memory_mb: int, path: list[str]) -> None:
    """Build the verifier of this process and bound its memory."""
    global _verifier
    sys.path[:] = path
    _verifier = build_verifier(name, options)
    if memory_mb:
        _bound_memory(memory_mb * 2**20)


def warm_up() -> None:
    """See that there is memory to work with."""
    bytearray(_LEAST_MEMORY)


def judge(response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
    """Return the verdict on a response; whatever the verifier raises is a crash of this response alone."""
    try:
        return _verifier.judge(response, answer, columns)
    except Exception as error:  # recorded: it is the verdict
        return Judgement("crashed", 0.0, None, f"{type(error).__name__}: {error}"[:200])


def fault_of(answer: str, columns: Mapping[str, Any]) -> str | None:
    """Return why no response could be judged against a gold answer, None where one can."""
    try:
        return _verifier.fault_of(answer, columns)
    except Exception as error:  # recorded: it is the fault
        return f"the verifier raised {type(error).__name__}: {error}"[:200]


def _bound_memory(num_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # only Linux tells and keeps this limit
        import resource

        # Beyond what it has now: a module of the user's may have brought in libraries that reserve gigabytes.
        used_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = used_pages * resource.getpagesize() + num_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
