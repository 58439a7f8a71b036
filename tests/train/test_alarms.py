"""Alarms go off, are over, and do what they say; a resumed run decides alike."""

from __future__ import annotations

import shutil

import pytest

from exgrpo.errors import AlarmError, ConfigError
from exgrpo.train import ExGRPOConfig
from exgrpo.train.alarms import DEFAULT_ALARMS, Alarms, read_alarms

from ..experience.helpers import everything
from .conftest import SMALL, make_trainer, read_metrics

NO_DEFAULTS = dict.fromkeys(DEFAULT_ALARMS)


def course(rule, values):
    """On or off after each value of a metric m; None is undefined."""
    alarms = Alarms({**NO_DEFAULTS, "a": {"metric": "m", **rule}})
    return "".join(
        str(int(alarms.look_at(step, {} if value is None else {"m": value})["alarm/a"]))
        for step, value in enumerate(values)
    )


@pytest.mark.parametrize(
    ("rule", "values", "on"),
    [
        ({"above": 2}, [1, 2, 2.1, 1, 3], "00101"),
        ({"below": 2}, [3, 2, 1.9, 2, 1], "00101"),
        # Hysteresis: on above 2, over at 1 and less.
        ({"above": 2, "clear": 1}, [3, 1.5, 1.01, 1, 1.5, 2.5], "111001"),
        ({"below": 2, "clear": 3}, [1, 2.5, 2.99, 3, 2.5, 1], "111001"),
        # Two in a row, both ways.
        ({"above": 2, "steps": 2}, [3, 1, 3, 3, 1, 3, 1, 1], "00011110"),
        # The best mean of two so far is 0.6 (0.5 and 0.7): 0.4 is not 0.2 below, 0.39 is.
        ({"falls": 0.2, "window": 2}, [0.5, 0.7, 0.41, 0.39, 0.55], "00010"),
        # Undefined: it stays, and is over after `hold` steps.
        ({"above": 2, "hold": 3}, [3, None, None, None, None], "11100"),
        ({"above": 2, "hold": 3}, [3, None, None, 3, None], "11111"),
        ({"above": 2}, [None, None], "00"),
    ],
    ids=str,
)
def test_when_an_alarm_goes_off_and_is_over(rule, values, on):
    assert course(rule, values) == on


def test_the_users_rules_go_over_the_defaults_by_name():
    alarms = {alarm.name: alarm for alarm in read_alarms({"truncated": {"above": 0.9}, "unparsed": None})}
    assert set(alarms) == set(DEFAULT_ALARMS) - {"unparsed"}
    assert (alarms["truncated"].above, alarms["truncated"].clear) == (0.9, None)
    assert alarms["truncated"].metric == "fresh/truncated"
    assert {alarm.then for alarm in read_alarms(None)} == {"warn"}


@pytest.mark.parametrize(
    "rules",
    [
        {"a": {"metric": "fresh/entropy"}},
        {"a": {"metric": "fresh/entropy", "above": 1, "below": 0}},
        {"a": {"metric": "fresh/entropy", "above": float("nan")}},
        {"a": {"metric": "fresh/entropy", "above": 1, "clear": 2}},
        {"a": {"metric": "fresh/entropy", "above": 1, "then": "sing"}},
        {"a": {"metric": "fresh/entropy", "above": 1, "steps": 0}},
        {"a": {"metric": "fresh/entropie", "above": 1}},
        {"a": {"metric": "fresh/entropy", "over": 1}},
        {"a": {"above": 1}},
        "[1]",
        "no json",
    ],
    ids=str,
)
def test_a_rule_that_cannot_work_is_refused_before_a_model_is_loaded(tmp_path, rules):
    with pytest.raises(ConfigError, match=r"(?s)alarm.*expected .*hint: "):
        ExGRPOConfig(output_dir=str(tmp_path), alarms=rules, **SMALL)


def test_an_alarm_falls_back_to_on_policy_and_says_so(tmp_path, capsys):
    # The step itself as the metric: beyond 3.5 from the fourth step on, and never back.
    rules = {**NO_DEFAULTS, "late": {"metric": "experience/step", "above": 3.5, "then": "on_policy"}}
    trainer = make_trainer(tmp_path, max_steps=6, alarms=rules)
    trainer.train()
    trainer.experience.close()
    lines = read_metrics(tmp_path)[:6]
    assert [line["alarm/late"] for line in lines] == [0, 0, 0, 1, 1, 1]
    assert [line["guard/on_policy"] for line in lines] == [0, 0, 0, 1, 1, 1]
    replayed = [line["replay/questions"] for line in lines]
    assert replayed[2] > 0
    assert replayed[3] > 0  # it went off at the end of this step
    assert replayed[4:] == [0, 0]
    assert [line["replay/shortfall"] for line in lines[4:]] == [0, 0]
    assert sum(line["experience/inserted"] for line in lines[4:]) > 0  # successes are collected all the same
    assert "alarm late goes off: experience/step 4 in step 4" in capsys.readouterr().err


def test_replay_comes_back_when_the_alarm_is_over(tmp_path):
    # Undefined without replay, it is over after two steps, and goes off again when replay is back.
    rules = {"used": {"metric": "replay/age", "above": 0.5, "hold": 2, "then": "on_policy"}}
    trainer = make_trainer(tmp_path, max_steps=8, alarms={**NO_DEFAULTS, **rules})
    trainer.train()
    trainer.experience.close()
    lines = read_metrics(tmp_path)[:8]
    replays = [line["replay/questions"] > 0 for line in lines]
    on = [bool(line["alarm/used"]) for line in lines]
    assert True in on
    first = on.index(True)
    assert replays[first : first + 4] == [True, False, False, True]


def test_an_alarm_stops_the_run_with_what_was_wanted_and_found(tmp_path):
    rules = {**NO_DEFAULTS, "long": {"metric": "experience/step", "above": 1.5, "then": "stop"}}
    trainer = make_trainer(tmp_path, max_steps=5, alarms=rules)
    with pytest.raises(AlarmError, match=r"alarm long: expected experience/step of at most 1\.5, found 2 in step 2"):
        trainer.train()
    assert trainer.experience.status().step == 2
    trainer.experience.close()


def test_a_resumed_run_stands_where_its_alarms_stood(tmp_path):
    rules = {**NO_DEFAULTS, "used": {"metric": "replay/age", "above": 0.5, "hold": 3, "then": "on_policy"}}
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 8, "alarms": rules}

    def finish(directory, **how):
        trainer = make_trainer(directory, **saving)
        trainer.train(**how)
        contents = everything(trainer.experience._store)
        trainer.experience.close()
        return contents

    expected = finish(tmp_path / "whole")
    on = [line["alarm/used"] for line in read_metrics(tmp_path / "whole")[:8]]
    at = on.index(1.0) + 2  # in the middle of the hold
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    found = finish(tmp_path / "run", resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{at}"))
    assert found == expected
    assert read_metrics(tmp_path / "run")[:8] == read_metrics(tmp_path / "whole")[:8]
