"""reasoning-gym's own scorers, with an explicit threshold."""

from __future__ import annotations

import pytest

from exgrpo.errors import ConfigError
from exgrpo.tasks.questions import columns_of, load_questions
from exgrpo.tasks.settings import DataSettings
from exgrpo.verify import build_verifier

MIX = [{"name": "chain_sum", "config": {"max_terms": 3}}, {"name": "countdown", "weight": 2.0}]


@pytest.fixture(scope="module")
def questions():
    settings = DataSettings(data_train="gym", data_gym=MIX, data_num_questions=40)
    return load_questions("gym", settings, split="train", seed=3)


def test_a_mixture_asks_each_of_its_tasks_and_gold_answers_are_right(questions):
    assert {question["gym_task"] for question in questions} == {"chain_sum", "countdown"}
    verifier = build_verifier("gym")
    for question in questions:
        said = verifier.judge(f"I get \\boxed{{{question['answer']}}}", question["answer"], columns_of(question))
        assert said.verdict == "correct"
        assert verifier.fault_of(question["answer"], columns_of(question)) is None


def test_partial_credit_is_no_success_below_the_threshold(questions):
    question = next(question for question in questions if question["gym_task"] == "countdown")
    half = "1 + 1"  # uses other numbers: the scorer gives a little for an expression that can be read
    strict = build_verifier("gym").judge(half, question["answer"], columns_of(question))
    assert strict.verdict == "wrong"
    assert 0 < strict.score < 1
    loose = build_verifier("gym", {"threshold": strict.score})
    assert loose.judge(half, question["answer"], columns_of(question)).verdict == "correct"
    with pytest.raises(ConfigError, match="threshold"):
        build_verifier("gym", {"threshold": 0})


def test_seed_and_split_give_other_questions_and_the_same_again():
    settings = DataSettings(data_train="gym", data_gym=MIX, data_num_questions=10, data_num_held_out=10)

    def ids(seed, split):
        return [question["id"] for question in load_questions("gym", settings, split=split, seed=seed)]

    assert ids(0, "train") == ids(0, "train")
    assert ids(0, "train") != ids(1, "train")
    assert ids(0, "train") != ids(0, "held_out")


def test_tasks_and_parameters_that_do_not_exist_are_refused_by_name():
    for spec in ([{"name": "chian_sum"}], [{"name": "chain_sum", "config": {"terms": 3}}], [{"weight": 1.0}]):
        settings = DataSettings(data_train="gym", data_gym=spec, data_num_questions=3)
        with pytest.raises(ConfigError, match=r"(?s)reasoning-gym.*hint"):
            load_questions("gym", settings, split="train", seed=0)
    with pytest.raises(ConfigError, match="data_gym"):
        DataSettings(data_train="gym")
