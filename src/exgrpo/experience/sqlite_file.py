"""The file of the durable store: its tables, who may write it, and whether it is one of ours."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from exgrpo.errors import StoreError, StoreLockedError
from exgrpo.experience.codec import SCHEMA_VERSION

Mode = Literal["rw", "ro"]

APPLICATION_ID = 0x45784752  # "ExGR": tells our files from other databases

# Slots are row ids: they count up in the order of insertion, and a rollback frees exactly the last ones, so an index
# built from the file numbers everything as one that lived through the run. Payloads have a table of their own, so that
# opening a store never reads them; a prompt is kept once per question.
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE question (
    slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, visits INTEGER NOT NULL, successes INTEGER NOT NULL,
    num_correct INTEGER NOT NULL, visited_step INTEGER NOT NULL, retired_step INTEGER
);
CREATE TABLE prompt (question INTEGER PRIMARY KEY REFERENCES question (slot) ON DELETE CASCADE, ids BLOB NOT NULL);
CREATE TABLE experience (
    slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, question INTEGER NOT NULL REFERENCES question (slot),
    reward REAL NOT NULL, verdict TEXT NOT NULL, verifier TEXT NOT NULL, policy_step INTEGER NOT NULL,
    mean_entropy REAL NOT NULL, truncated INTEGER NOT NULL, num_tokens INTEGER NOT NULL,
    uses INTEGER NOT NULL, last_used_step INTEGER, entropy REAL NOT NULL, entropy_step INTEGER NOT NULL,
    removed TEXT, quarantined TEXT
);
CREATE INDEX experience_question ON experience (question);
CREATE TABLE payload (
    slot INTEGER PRIMARY KEY REFERENCES experience (slot) ON DELETE CASCADE,
    response BLOB NOT NULL, log_probs BLOB NOT NULL
);
CREATE TABLE event (
    seq INTEGER PRIMARY KEY, step INTEGER NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, before TEXT, after TEXT
);
CREATE INDEX event_step ON event (step);
CREATE INDEX event_subject ON event (subject);
"""


def take_lock(path: Path) -> IO[str]:
    """Return the lock of a store, held while it is open; its file names the owner. Makes the store's directory.

    Raises:
        StoreLockedError: where another process holds it.
        StoreError: where the directory cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(path.name + ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            str(path.parent),
            expected="a directory that can be written",
            found=error.strerror,
            hint="choose another experience_path or output_dir",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise StoreLockedError(
            str(path),
            expected="a store that no other run writes",
            found=f"process {owner} owns it",
            hint="wait for that run or stop it; to look at the store meanwhile, open it read-only",
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def connect(path: Path, mode: Mode) -> sqlite3.Connection:
    """Return a connection whose commits are on disk when they return; we begin and end transactions ourselves."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if mode == 'ro' else 'rwc'}"
    with storage_errors(path):
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            if mode == "rw":
                # Of a new file; others keep theirs. A step of the paper's size is committed in two thirds of the time
                # that SQLite's 4,096 bytes take.
                connection.execute("PRAGMA page_size = 16384")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


def check_file(path: Path, connection: sqlite3.Connection) -> bool:
    """Return whether the file is a store, False where it is empty.

    Raises:
        StoreError: where it is something else, or of another schema version.
    """
    with storage_errors(path):
        application, version, tables = (
            connection.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
    if not tables:
        return False
    if application != APPLICATION_ID:
        raise StoreError(str(path), expected="an experience store", found="another database", hint="check the path")
    if version != SCHEMA_VERSION:
        raise StoreError(
            str(path),
            expected=f"schema version {SCHEMA_VERSION}",
            found=version,
            hint="open it with the release of exgrpo that wrote it, or a newer one",
        )
    return True


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the tables and mark the file as ours, inside the caller's transaction."""
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite reports into a StoreError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(
            str(path),
            expected="a readable, writable experience store",
            found=f"{type(error).__name__}: {error}",
            hint="check free space and rights; where the file is damaged, go back to a backup. What was committed "
            "before is not lost",
        ) from error
