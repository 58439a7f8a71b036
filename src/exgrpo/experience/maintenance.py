"""What a person does to a store between runs: copy it, take it back to an earlier step."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from exgrpo.errors import StoreError
from exgrpo.experience.sqlite import SQLiteStore
from exgrpo.experience.sqlite_file import storage_errors

_PAGES_AT_ONCE = 4096


def backup(path: Path, target: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Copy a store, also while a run writes it, and return the step that the copy stands at.

    The copy is a consistent state: a commit is in it whole or not at all. It appears under its name once it is whole
    and on the disk.

    Args:
        path: the store.
        target: where to; must not exist.
        progress: called with (pages copied, pages in all).

    Raises:
        StoreError: where there is no store, the target exists, or the disk is full.
    """
    SQLiteStore(path, None, mode="ro").close()
    if target.exists():
        raise StoreError(str(target), expected="no file yet", found="one", hint="name another target")
    unfinished = target.with_name(target.name + ".part")
    unfinished.unlink(missing_ok=True)
    with storage_errors(target), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
        with closing(sqlite3.connect(unfinished)) as copy:
            source.backup(
                copy,
                pages=_PAGES_AT_ONCE,
                progress=None if progress is None else lambda _, left, total: progress(total - left, total),
            )
        with unfinished.open("rb") as stream:
            os.fsync(stream.fileno())
    unfinished.replace(target)
    store = SQLiteStore(target, None, mode="ro")
    try:
        return store.step
    finally:
        store.close()


def roll_back(path: Path, step: int) -> tuple[int, int]:
    """Take a store back to an earlier step for good, and return (step before, step now).

    Raises:
        StoreError: where there is no store, a run owns it, or it never came to that step.
    """
    store = SQLiteStore(path, None)
    try:
        before = store.step
        store.roll_back(step)
        return before, store.step
    finally:
        store.close()
