"""What we use of TRL that is not public is there in the installed version, and another version is refused."""

from __future__ import annotations

import pytest
from trl import GRPOTrainer

from exgrpo.errors import ConfigError
from exgrpo.train import compat


def test_the_installed_trl_is_one_we_know():
    compat.check_trl()


def test_the_private_attributes_we_read_are_there(mixed_run):
    for name in compat.PRIVATE_ATTRIBUTES:
        assert hasattr(mixed_run, name), name


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(compat, "version", lambda _: "1.17.0")
    with pytest.raises(ConfigError, match=r"(?s)>=1\.16,<1\.17.*found 1\.17\.0.*hint: pip install"):
        compat.check_trl()


def test_a_changed_method_is_refused(monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "_generate", lambda self, batch: None)
    with pytest.raises(ConfigError, match=r"_generate.*prompts"):
        compat.check_trl()


def test_recorded_rows_end_up_at_their_positions():
    assert compat._splice(["a", "b", "c"], {1: "x", 4: "y"}) == ["a", "x", "b", "c", "y"]
    assert compat._splice([], {0: "x"}) == ["x"]
