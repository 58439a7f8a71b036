"""The durable store: one SQLite file, one transaction per training step, one writer, many readers."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

from exgrpo.errors import StoreError, StoreLockedError
from exgrpo.experience import codec
from exgrpo.experience.store import (
    Event,
    StepChanges,
    StoreIdentity,
    TrajectoryRow,
    check_known,
    check_next_step,
    check_reached,
    events_of,
    question_from_json,
    start_from_json,
    start_to_json,
    usage_events,
    usage_from_json,
)
from exgrpo.types import Experience, QuestionState, StartState, Usage

APPLICATION_ID = 0x45784752  # "ExGR": tells our files from other databases
_CHUNK = 500  # ids in one SELECT; SQLite takes at least 999 parameters

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
_USAGE_COLUMNS = "uses, last_used_step, entropy, entropy_step, removed, quarantined"
_SET_USAGE = (
    "UPDATE experience SET uses = ?, last_used_step = ?, entropy = ?, entropy_step = ?, removed = ?, quarantined = ? "
    "WHERE id = ?"
)
_SET_QUESTION = (
    "INSERT INTO question (id, visits, successes, num_correct, visited_step, retired_step) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET visits = excluded.visits, successes = excluded.successes, "
    "num_correct = excluded.num_correct, visited_step = excluded.visited_step, retired_step = excluded.retired_step"
)


class SQLiteStore:
    """An `ExperienceStore` in a file (see there for the methods).

    A commit is on disk when it returns (WAL, synchronous=FULL). The writer holds a lock on `<path>.lock`; readers need
    none and see the last commit.

    Args:
        path: the file; made where it does not exist, unless it is only read.
        identity: what the run has; must equal what an existing store was made with. None takes the store as it is.
        log_prob_dtype: precision of log-probs in a new file; an existing one keeps its own.
        mode: `rw` to own it, `ro` to look at it.

    Raises:
        StoreLockedError: where another process owns it.
        StoreMismatchError: where it was made with something else than the run has.
        StoreError: where it is missing, damaged, no store, of another schema version, or cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        identity: StoreIdentity | None = None,
        *,
        log_prob_dtype: codec.LogProbDtype = "float32",
        mode: Literal["rw", "ro"] = "rw",
    ):
        self._path = Path(path)
        self._lock: IO[str] | None = None
        self._connection: sqlite3.Connection | None = None
        if not self._path.exists() and (mode == "ro" or identity is None):
            raise StoreError(str(path), expected="an experience store", found="no such file", hint="check the path")
        if mode == "rw":
            self._lock = self._take_lock()
        try:
            self._connect(mode)
            self._check_file(identity, log_prob_dtype)
            meta = self._meta()
            self._identity = StoreIdentity(**json.loads(meta["identity"]))
            self._dtype: codec.LogProbDtype = "float16" if meta["log_prob_dtype"] == "float16" else "float32"
            if identity is not None:
                identity.check(self._identity, str(path))
        except BaseException:
            self.close()
            raise

    # ---- what it is --------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> StoreIdentity:
        """What the store was made with."""
        return self._identity

    @property
    def step(self) -> int:
        """The last committed step, 0 in an empty store."""
        return int(self._meta()["step"])

    @property
    def start(self) -> StartState | None:
        """The start state after that step, None before the first."""
        text = self._meta()["start"]
        return start_from_json(text) if text else None

    # ---- changing it -------------------------------------------------------------------------------------------------

    def apply(self, changes: StepChanges) -> None:
        """Make all changes of a step or none, in one transaction."""
        check_next_step(self.step, changes.step, str(self._path))
        with self._transaction() as db:
            questions = self._questions_before([state.question_id for state in changes.questions])
            usages = self._usages_before(list(changes.usages))
            events = events_of(changes, questions.get, usages.get, self.start)
            db.executemany(_SET_QUESTION, map(dataclasses.astuple, changes.questions))
            self._insert(db, changes.inserted, changes.usages)
            inserted = {experience.id for experience in changes.inserted}
            self._set_usages(db, {key: usage for key, usage in changes.usages.items() if key not in inserted})
            self._log(db, events)
            self._set_meta(db, changes.step, changes.start)

    def amend(self, usages: Mapping[str, Usage]) -> None:
        """Change usages outside of a step; logged under the current step."""
        with self._transaction() as db:
            self._log(db, usage_events(self.step, usages, self._usages_before(list(usages)).get))
            self._set_usages(db, usages)

    def roll_back(self, step: int) -> None:
        """Undo everything after `step`, as if it had never happened, in one transaction."""
        check_reached(self.step, step, str(self._path))
        start = self.start
        with self._transaction() as db:
            undone = db.execute(
                "SELECT kind, subject, before FROM event WHERE step > ? ORDER BY seq DESC", (step,)
            ).fetchall()
            for kind, subject, before in undone:
                if kind == "start":
                    start = start_from_json(before) if before else None
                else:
                    self._undo(db, kind, subject, before)
            # A prompt came with the question's first experience and leaves with it.
            db.execute("DELETE FROM prompt WHERE question NOT IN (SELECT question FROM experience)")
            db.execute("DELETE FROM event WHERE step > ?", (step,))
            self._set_meta(db, min(step, self.step), start)

    def close(self) -> None:
        """Let go of the file and the lock; closing twice is harmless."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ---- reading it --------------------------------------------------------------------------------------------------

    def questions(self) -> Iterator[QuestionState]:
        """Yield all questions in the order of their first visit."""
        rows = self._rows(
            "SELECT id, visits, successes, num_correct, visited_step, retired_step FROM question ORDER BY slot"
        )
        return (QuestionState(*row) for row in rows)

    def trajectories(self) -> Iterator[TrajectoryRow]:
        """Yield all experiences without payload, removed ones too, in the order of collection."""
        rows = self._rows(
            f"SELECT e.id, q.id, policy_step, num_tokens, {_USAGE_COLUMNS} "
            "FROM experience e JOIN question q ON q.slot = e.question ORDER BY e.slot"
        )
        return (
            TrajectoryRow(key, question, step, num_tokens, Usage(*usage))
            for key, question, step, num_tokens, *usage in rows
        )

    def load(self, ids: Sequence[str]) -> list[Experience]:
        """Return experiences with payload, in the order asked for."""
        found: dict[str, Experience] = {}
        query = (
            "SELECT e.id, q.id, p.ids, l.response, l.log_probs, reward, verdict, verifier, policy_step, mean_entropy, "
            "truncated FROM experience e JOIN question q ON q.slot = e.question JOIN prompt p ON p.question = q.slot "
            "JOIN payload l ON l.slot = e.slot WHERE e.id IN"
        )
        for row in self._select_ids(query, ids):
            found[row[0]] = self._decode(row)
        check_known(ids, found, str(self._path))
        return [found[key] for key in ids]

    def events(self, subject: str | None = None) -> Iterator[Event]:
        """Yield the log from its beginning, of one subject or of all."""
        where, values = ("", ()) if subject is None else ("WHERE subject = ?", (subject,))
        rows = self._rows(f"SELECT step, kind, subject, before, after FROM event {where} ORDER BY seq", values)
        return (Event(*row) for row in rows)

    # ---- opening -----------------------------------------------------------------------------------------------------

    def _take_lock(self) -> IO[str]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = self._path.with_name(self._path.name + ".lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise StoreError(
                str(self._path.parent),
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
                str(self._path),
                expected="a store that no other run writes",
                found=f"process {owner} owns it",
                hint="wait for that run or stop it; to look at the store meanwhile, open it read-only",
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock

    def _connect(self, mode: str) -> None:
        # isolation_level=None: we begin and end transactions ourselves.
        uri = f"{self._path.absolute().as_uri()}?mode={'ro' if mode == 'ro' else 'rwc'}"
        with self._errors():
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            self._connection.execute("PRAGMA foreign_keys = ON")
            if mode == "rw":
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")

    def _check_file(self, identity: StoreIdentity | None, dtype: codec.LogProbDtype) -> None:
        with self._errors():
            application, version, tables = (
                self._db.execute(query).fetchone()[0]
                for query in (
                    "PRAGMA application_id",
                    "PRAGMA user_version",
                    "SELECT count(*) FROM sqlite_master",
                )
            )
        if not tables and identity is not None:
            self._create(identity, dtype)
        elif application != APPLICATION_ID:
            raise StoreError(
                str(self._path), expected="an experience store", found="another database", hint="check the path"
            )
        elif version != codec.SCHEMA_VERSION:
            raise StoreError(
                str(self._path),
                expected=f"schema version {codec.SCHEMA_VERSION}",
                found=version,
                hint="open it with the release of exgrpo that wrote it, or a newer one",
            )

    def _create(self, identity: StoreIdentity, dtype: codec.LogProbDtype) -> None:
        with self._transaction() as db:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {codec.SCHEMA_VERSION}")
            meta = {"identity": json.dumps(dataclasses.asdict(identity)), "log_prob_dtype": dtype}
            db.executemany("INSERT INTO meta VALUES (?, ?)", [*meta.items(), ("step", "0"), ("start", "")])

    # ---- SQL ---------------------------------------------------------------------------------------------------------

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(str(self._path), expected="an open store", found="a closed one", hint="open it again")
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._translate(error)

    def _translate(self, error: sqlite3.Error) -> NoReturn:
        raise StoreError(
            str(self._path),
            expected="a readable, writable experience store",
            found=f"{type(error).__name__}: {error}",
            hint="check free space and rights; where the file is damaged, go back to a backup. Nothing committed "
            "before is lost",
        ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._db.execute(query, values).fetchall()

    def _select_ids(self, query: str, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for first in range(0, len(ids), _CHUNK):
            chunk = ids[first : first + _CHUNK]
            yield from self._rows(f"{query} ({', '.join('?' * len(chunk))})", chunk)

    def _meta(self) -> dict[str, str]:
        return dict(self._rows("SELECT key, value FROM meta"))

    def _set_meta(self, db: sqlite3.Connection, step: int, start: StartState | None) -> None:
        values = {"step": str(step), "start": "" if start is None else start_to_json(start)}
        db.executemany("UPDATE meta SET value = ? WHERE key = ?", [(value, key) for key, value in values.items()])

    def _questions_before(self, ids: Sequence[str]) -> dict[str, QuestionState]:
        query = "SELECT id, visits, successes, num_correct, visited_step, retired_step FROM question WHERE id IN"
        return {row[0]: QuestionState(*row) for row in self._select_ids(query, ids)}

    def _usages_before(self, ids: Sequence[str]) -> dict[str, Usage]:
        query = f"SELECT id, {_USAGE_COLUMNS} FROM experience WHERE id IN"
        return {row[0]: Usage(*row[1:]) for row in self._select_ids(query, ids)}

    def _set_usages(self, db: sqlite3.Connection, usages: Mapping[str, Usage]) -> None:
        db.executemany(_SET_USAGE, [(*dataclasses.astuple(usage), key) for key, usage in usages.items()])

    def _log(self, db: sqlite3.Connection, events: Iterable[Event]) -> None:
        db.executemany(
            "INSERT INTO event (step, kind, subject, before, after) VALUES (?, ?, ?, ?, ?)",
            map(dataclasses.astuple, events),
        )

    def _insert(self, db: sqlite3.Connection, inserted: Sequence[Experience], usages: Mapping[str, Usage]) -> None:
        prompts = {experience.question_id: experience.prompt_ids for experience in inserted}
        db.executemany(
            "INSERT INTO prompt SELECT slot, ? FROM question WHERE id = ? ON CONFLICT (question) DO NOTHING",
            [(codec.encode_token_ids(ids), question) for question, ids in prompts.items()],
        )
        db.executemany(
            "INSERT INTO experience (id, question, reward, verdict, verifier, policy_step, mean_entropy, truncated, "
            f"num_tokens, {_USAGE_COLUMNS}) VALUES (?, (SELECT slot FROM question WHERE id = ?), "
            f"{', '.join('?' * 13)})",
            [self._row(experience, usages[experience.id]) for experience in inserted],
        )
        db.executemany(
            "INSERT INTO payload SELECT slot, ?, ? FROM experience WHERE id = ?",
            [
                (
                    codec.encode_token_ids(experience.response_ids),
                    codec.encode_log_probs(experience.behaviour_log_probs, self._dtype),
                    experience.id,
                )
                for experience in inserted
            ],
        )

    @staticmethod
    def _row(e: Experience, usage: Usage) -> tuple[Any, ...]:
        fixed = (e.id, e.question_id, e.reward, e.verdict, e.verifier, e.policy_step, e.mean_entropy, e.truncated)
        return (*fixed, len(e.response_ids), *dataclasses.astuple(usage))

    def _decode(self, row: tuple[Any, ...]) -> Experience:
        key, question, prompt, response, log_probs, reward, verdict, verifier, step, entropy, truncated = row
        where = f"{self._path}, experience {key}"
        return Experience(
            id=key,
            question_id=question,
            prompt_ids=codec.decode_token_ids(prompt, where),
            response_ids=codec.decode_token_ids(response, where),
            behaviour_log_probs=codec.decode_log_probs(log_probs, self._dtype, where),
            reward=reward,
            verdict=verdict,
            verifier=verifier,
            policy_step=step,
            mean_entropy=entropy,
            truncated=bool(truncated),
        )

    def _undo(self, db: sqlite3.Connection, kind: str, subject: str, before: str | None) -> None:
        if kind == "insert":
            db.execute("DELETE FROM experience WHERE id = ?", (subject,))
        elif kind == "usage" and before is not None:
            self._set_usages(db, {subject: usage_from_json(before)})
        elif kind == "question" and before is not None:
            db.execute(_SET_QUESTION, dataclasses.astuple(question_from_json(subject, before)))
        elif kind == "question":
            db.execute("DELETE FROM question WHERE id = ?", (subject,))
