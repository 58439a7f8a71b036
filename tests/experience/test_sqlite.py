"""The durable store: what is committed survives, and what is wrong with a file is said at once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from exgrpo.errors import StoreError, StoreLockedError, StoreMismatchError
from exgrpo.experience import ExperienceReplay, SQLiteStore, StepChanges
from exgrpo.types import StartState

from .helpers import IDENTITY, commit, everything, group, plan_of, settings


def open_replay(path, **changes):
    return ExperienceReplay.open(path, settings(**changes), identity=IDENTITY, seed=0)


@pytest.fixture
def path(tmp_path):
    """A store with two steps."""
    path = tmp_path / "x.sqlite"
    with open_replay(path) as replay:
        commit(replay, *[group(f"q{n}", 1 + n % 3, first_id=10 * n) for n in range(9)])
        commit(replay, group("q0", 4, first_id=200))
    return path


def test_what_was_committed_is_there_after_reopening(path):
    with open_replay(path) as replay:
        assert replay.status().step == 2
        assert replay.status().retired == 1
        assert replay.is_retired("q0")
        proposal = plan_of(replay, 3, 8)
    with open_replay(path) as replay:
        again = plan_of(replay, 3, 8)
    assert [item.experience.id for item in again.replays] == [item.experience.id for item in proposal.replays]


def test_readers_look_while_a_writer_writes_and_see_the_last_commit(path):
    with open_replay(path) as writer:
        reader = SQLiteStore(path, mode="ro")
        assert reader.step == 2
        commit(writer, group("new", 2, first_id=300))
        assert reader.step == 3
        assert len(list(reader.trajectories())) == writer.status().trajectories + 1  # q0's is removed, and still there
        with pytest.raises(StoreError, match="hint"):
            reader.apply(StepChanges(4))
        reader.close()


def test_a_second_writer_is_told_who_owns_the_store(path):
    code = (
        "import sys\n"
        "from exgrpo.experience import SQLiteStore\n"
        f"store = SQLiteStore({str(path)!r})\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
        "store.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(StoreLockedError, match=rf"process {owner.pid} owns it(?s:.*)hint"):
            open_replay(path)
        owner.stdin.close()
        assert owner.wait() == 0
    open_replay(path).close()


def test_a_lock_dies_with_its_process(path):
    code = f"import os\nfrom exgrpo.experience import SQLiteStore\nSQLiteStore({str(path)!r})\nos._exit(9)\n"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    open_replay(path).close()


def test_a_process_killed_inside_a_commit_leaves_the_last_commit(path):
    # The store is asked to commit experience whose array cannot be encoded: by then half of the rows are written.
    code = (
        "import os\n"
        "from exgrpo.experience import codec\n"
        "from tests.experience.test_sqlite import open_replay\n"
        "from tests.experience.helpers import commit, group\n"
        f"replay = open_replay({str(path)!r})\n"
        "codec.encode_log_probs = lambda *_: os._exit(9)\n"
        "commit(replay, group('new', 2, first_id=300))\n"
    )
    before = everything_in(path)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert everything_in(path) == before


def everything_in(path):
    store = SQLiteStore(path, mode="ro")
    try:
        return everything(store)
    finally:
        store.close()


def test_a_commit_that_fails_changes_neither_file_nor_index(path):
    with open_replay(path) as replay:
        before, status = everything(replay._store), replay.status()
        blocker = sqlite3.connect(path)
        blocker.execute("CREATE TRIGGER full BEFORE INSERT ON payload BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        blocker.commit()
        with pytest.raises(StoreError, match=r"disk full(?s:.*)hint"):
            commit(replay, group("new", 2, first_id=300))
        assert everything(replay._store) == before
        assert replay.status() == status
        blocker.execute("DROP TRIGGER full")
        blocker.commit()
        blocker.close()
        commit(replay, group("new", 2, first_id=300))
        assert replay.status().step == 3


def test_log_probs_can_be_kept_in_half_precision(tmp_path):
    made = group("q", 2, first_id=123)
    with ExperienceReplay.open(
        tmp_path / "half.sqlite", settings(), identity=IDENTITY, seed=0, log_prob_dtype="float16"
    ) as replay:
        commit(replay, made)
    store = SQLiteStore(tmp_path / "half.sqlite", mode="ro")  # the file knows its own precision
    experience = store.load([next(store.trajectories()).id])[0]
    store.close()
    np.testing.assert_allclose(experience.behaviour_log_probs, made.rollouts[0].behaviour_log_probs, rtol=2**-11)
    assert experience.behaviour_log_probs.tolist() != made.rollouts[0].behaviour_log_probs.tolist()


def test_a_prompt_is_kept_once_however_many_trajectories_a_question_has(path):
    with sqlite3.connect(path) as db:
        questions, prompts, payloads = (
            db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("question", "prompt", "payload")
        )
    db.close()
    assert questions == prompts == 9
    assert payloads == 18


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_rollouts", 8), ("tokenizer", "x"), ("template", "x"), ("dataset", "x"), ("verifier", "exact@2")],
)
def test_a_store_of_something_else_is_refused_and_the_difference_named(path, field, value):
    with pytest.raises(StoreMismatchError, match=rf"{field} {value}.*found {field} (?s:.*)hint"):
        SQLiteStore(path, replace(IDENTITY, **{field: value}))
    open_replay(path).close()  # and the lock is free again


def test_settings_of_another_group_size_are_refused(path):
    with pytest.raises(StoreMismatchError, match="num_rollouts"):
        ExperienceReplay.open(path, settings(num_rollouts=8), identity=IDENTITY, seed=0)
    open_replay(path).close()


def test_a_missing_file_is_not_made_by_a_reader(tmp_path):
    for mode in ("ro", "rw"):
        with pytest.raises(StoreError, match=r"no such file(?s:.*)hint"):
            SQLiteStore(tmp_path / "none.sqlite", mode=mode)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_refused(tmp_path, content):
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"x\.sqlite: (?s:.*)hint"):
        open_replay(path)
    assert path.read_bytes() == content


def test_another_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (a)")
    db.close()
    with pytest.raises(StoreError, match="another database"):
        open_replay(path)
    with sqlite3.connect(path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["mine"]
    db.close()


def test_a_newer_schema_is_refused(path):
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match=r"schema version 1, found 99(?s:.*)hint"):
        open_replay(path)


def test_a_damaged_page_is_an_error_not_a_wrong_answer(path):
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    data[page:] = b"\xff" * (len(data) - page)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="hint"):
        open_replay(path)


@pytest.mark.parametrize("column", ["response", "log_probs"])
def test_a_damaged_payload_is_an_error_when_it_is_read(path, column):
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE payload SET {column} = x'0102' WHERE slot = 1")
    db.close()
    store = SQLiteStore(path, mode="ro")
    first = next(store.trajectories()).id
    with pytest.raises(StoreError, match=rf"experience {first}(?s:.*)hint"):
        store.load([first])
    store.close()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"directory that can be written(?s:.*)hint"):
        open_replay(tmp_path / "file" / "x.sqlite")


def test_a_closed_store_says_so_and_closing_twice_is_harmless(path):
    replay = open_replay(path)
    replay.close()
    replay.close()
    with pytest.raises(StoreError, match=r"an open store(?s:.*)hint"):
        replay.status()


def test_a_new_file_is_durable_from_its_first_commit_on(tmp_path):
    store = SQLiteStore(tmp_path / "x.sqlite", IDENTITY)
    settings_of = {name: store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
    store.apply(StepChanges(1, start=StartState(True, 1)))
    store.close()
    assert settings_of == {"journal_mode": "wal", "synchronous": 2}
    assert os.path.getsize(tmp_path / "x.sqlite") > 0


def test_a_file_of_schema_version_1_opens():
    # tests/data/make_experience_v1.py wrote it; every later version must read it.
    from pathlib import Path

    store = SQLiteStore(Path(__file__).parent.parent / "data" / "experience-v1.sqlite", mode="ro")
    assert (store.step, store.identity) == (3, IDENTITY)
    rows = list(store.trajectories())
    assert len(rows) == len(store.load([row.id for row in rows])) == 18
    assert sum(row.usage.removed == "retired" for row in rows) == 1
    assert sum(row.usage.uses for row in rows) == 4
    store.close()
