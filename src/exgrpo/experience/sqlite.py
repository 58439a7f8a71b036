"""The durable store: one SQLite file, one transaction per training step, one writer, many readers."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from exgrpo.errors import StoreError
from exgrpo.experience import codec
from exgrpo.experience.sqlite_file import Mode, check_file, connect, create_tables, storage_errors, take_lock
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

_CHUNK = 500  # ids in one SELECT; SQLite takes at least 999 parameters
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
        mode: Mode = "rw",
    ):
        self._path = Path(path)
        self._lock: IO[str] | None = None
        self._connection: sqlite3.Connection | None = None
        if not self._path.exists() and (mode == "ro" or identity is None):
            raise StoreError(str(path), expected="an experience store", found="no such file", hint="check the path")
        if mode == "rw":
            self._lock = take_lock(self._path)
        try:
            self._connection = connect(self._path, mode)
            if not check_file(self._path, self._db) and identity is not None:
                self._create(identity, log_prob_dtype)
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

    def adopt(self, identity: StoreIdentity, usages: Mapping[str, Usage]) -> None:
        """Take on the identity of another run, with changes of usage that it needs, in one transaction.

        It is no step and cannot be rolled back: a checkpoint of the earlier run would not fit the store any more.
        """
        with self._transaction() as db:
            self._log(db, usage_events(self.step, usages, self._usages_before(list(usages)).get))
            self._set_usages(db, usages)
            text = json.dumps(dataclasses.asdict(identity))
            db.execute("UPDATE meta SET value = ? WHERE key = 'identity'", (text,))
        self._identity = identity

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

    # ---- SQL ---------------------------------------------------------------------------------------------------------

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(str(self._path), expected="an open store", found="a closed one", hint="open it again")
        return self._connection

    def _create(self, identity: StoreIdentity, dtype: codec.LogProbDtype) -> None:
        with self._transaction() as db:
            create_tables(db)
            meta = {"identity": json.dumps(dataclasses.asdict(identity)), "log_prob_dtype": dtype}
            db.executemany("INSERT INTO meta VALUES (?, ?)", [*meta.items(), ("step", "0"), ("start", "")])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with storage_errors(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with storage_errors(self._path):
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
