"""Copies of a store that is being written, steps taken back, and what a full disk or a cut file does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from exgrpo.cli.main import main
from exgrpo.errors import StoreError
from exgrpo.experience import ExperienceReplay, SQLiteStore
from exgrpo.experience.maintenance import backup, roll_back

from .helpers import IDENTITY, everything, group, no_plan, settings


def fill(replay, steps):
    for step in steps:
        replay.commit(step, [group(f"q{n}", 2, first_id=10 * step) for n in range(4)], no_plan(step))


def opened(path):
    return ExperienceReplay.open(path, settings(), identity=IDENTITY, seed=0)


def contents(path):
    store = SQLiteStore(path, None, mode="ro")
    try:
        return store.step, everything(store)
    finally:
        store.close()


def test_a_copy_of_a_store_that_is_being_written_is_one_of_its_states(tmp_path):
    path = tmp_path / "experience.sqlite"
    with opened(path) as replay:
        fill(replay, range(1, 30))
        stop = threading.Event()
        copies = []

        def copy():
            while not stop.is_set() and len(copies) < 12:
                target = tmp_path / f"copy-{len(copies)}.sqlite"
                copies.append((target, backup(path, target)))

        thread = threading.Thread(target=copy)
        thread.start()
        fill(replay, range(30, 120))
        stop.set()
        thread.join()
    assert len({step for _, step in copies}) > 1
    for target, step in copies[:3] + copies[-3:]:
        again = tmp_path / f"again-{target.name}"
        with opened(again) as replay:
            fill(replay, range(1, step + 1))
        assert contents(target) == contents(again)
        with opened(target) as replay:  # and it can be written on
            fill(replay, [step + 1])


def test_a_copy_is_whole_under_its_name_or_not_there(tmp_path):
    path = tmp_path / "experience.sqlite"
    with opened(path) as replay:
        fill(replay, range(1, 40))
    target = tmp_path / "copy.sqlite"

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(path, target, progress=stop)
    assert not target.exists()
    assert backup(path, target) == 39
    with pytest.raises(StoreError, match="name another target"):
        backup(path, target)
    with pytest.raises(StoreError, match="no such file"):
        backup(tmp_path / "missing.sqlite", tmp_path / "other.sqlite")


def test_steps_are_taken_back_for_good(tmp_path):
    path, short = tmp_path / "long.sqlite", tmp_path / "short.sqlite"
    with opened(path) as replay:
        fill(replay, range(1, 9))
        with pytest.raises(StoreError, match="owns it"):
            roll_back(path, 3)
    with opened(short) as replay:
        fill(replay, range(1, 4))
    assert roll_back(path, 3) == (8, 3)
    assert contents(path) == contents(short)
    with pytest.raises(StoreError, match="a step from 0 to 3"):
        roll_back(path, 5)


def test_the_command_line_does_both(tmp_path, capsys):
    path = tmp_path / "experience.sqlite"
    with opened(path) as replay:
        fill(replay, range(1, 5))
    copy = tmp_path / "copy.sqlite"
    assert main(["experience", "backup", str(path), str(copy)]) == 0
    assert "as of step 4" in capsys.readouterr().out
    assert main(["experience", "rollback", str(path), "2"]) == 0
    assert "from step 4 to step 2" in capsys.readouterr().out
    assert (contents(path)[0], contents(copy)[0]) == (2, 4)
    assert main(["experience", "rollback", str(path), "3"]) == 1
    assert "hint" in capsys.readouterr().err


def test_a_full_disk_is_an_error_and_what_was_committed_stays(tmp_path):
    # A limit on the size of files makes the operating system refuse writes, as a full disk does.
    path = tmp_path / "experience.sqlite"
    script = """
        import resource, signal, sys
        from exgrpo.errors import StoreError
        from tests.experience.test_maintenance import fill, opened
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with opened(sys.argv[1]) as replay:
            fill(replay, range(1, 6))
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
            try:
                fill(replay, range(6, 10_000))
            except StoreError as error:
                print(error)
                print(replay.status().step)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *message, step = done.stdout.splitlines()
    assert "free space" in " ".join(message)
    assert int(step) >= 5
    again = tmp_path / "again.sqlite"
    with opened(again) as replay:
        fill(replay, range(1, int(step) + 1))
    assert contents(path) == contents(again)
    with opened(path) as replay:  # with room again it goes on
        fill(replay, [int(step) + 1])


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_file_that_was_cut_is_an_error_and_no_wrong_answer(tmp_path, share):
    path = tmp_path / "experience.sqlite"
    with opened(path) as replay:
        fill(replay, range(1, 40))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share) // 4096 * 4096])
    with pytest.raises(StoreError, match=r"(?s)go back to a backup"):
        contents(path)
