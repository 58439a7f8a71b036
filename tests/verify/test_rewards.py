"""Verdicts as rewards: usable by TRL as they are."""

from __future__ import annotations

import math

import pytest

from exgrpo.errors import ConfigError, DataError
from exgrpo.verify import AnswerReward, VerifySettings, open_judge, reward_functions
from exgrpo.verify.rewards import format_reward, length_penalty, text_of

CUSTOM = "tests.verify.custom_verifiers"


@pytest.fixture(scope="module")
def judge():
    judge = open_judge(VerifySettings(verify_with="exact", verify_workers=1))
    yield judge
    judge.close()


def test_each_verdict_is_worth_what_the_user_says(judge):
    settings = VerifySettings(reward_correct=2.0, reward_wrong=-1.0, reward_unparsed=-3.0)
    logged = {}
    reward = AnswerReward(judge, settings)
    given = reward(
        prompts=["p"] * 3,
        completions=["\\boxed{a}", "\\boxed{b}", ""],
        answer=["a"] * 3,
        log_extra=lambda name, values: logged.update({name: values}),
    )
    assert given == [2.0, -1.0, -3.0]
    assert logged == {"verdict": ["correct", "wrong", "unparsed"], "extracted": ["a", "b", ""]}


def test_time_outs_and_crashes_may_leave_a_response_out():
    settings = VerifySettings(
        verify_with=f"{CUSTOM}:hostile", verify_timeout_s=0.5, reward_timed_out=math.nan, reward_crashed=-0.5
    )
    judge = open_judge(settings)
    given = AnswerReward(judge, settings)(completions=["hang", "raise", "x"], answer=["x"] * 3)
    judge.close()
    assert math.isnan(given[0])
    assert given[1:] == [-0.5, 1.0]


def test_a_data_set_without_answers_is_refused_by_name(judge):
    with pytest.raises(DataError, match=r"(?s)'gold'.*num_terms"):
        AnswerReward(judge, VerifySettings(), answer_column="gold")(completions=["a"], num_terms=[3])


def test_chats_are_read_by_their_last_message_and_split_thoughts_are_put_back():
    assert text_of([{"role": "assistant", "content": "a"}]) == "a"
    assert text_of([{"role": "assistant", "content": "b", "reasoning_content": "t"}]) == "t</think>b"


@pytest.mark.parametrize(
    ("response", "thinks", "boxed", "reward"),
    [
        ("<think>a</think>\\boxed{1}", True, True, 1.0),
        ("a</think>\\boxed{1}", True, True, 1.0),
        ("<think></think>\\boxed{1}", True, True, 0.0),
        ("<think>a</think>1", True, True, 0.0),
        ("<think>a</think>1", True, False, 1.0),
        ("<think>a</think>b</think>\\boxed{1}", True, True, 0.0),
        ("<think>a</think>", True, False, 0.0),
        ("\\boxed{1}", True, True, 0.0),
        ("\\boxed{1}", False, True, 1.0),
        ("\\boxed{}", False, True, 0.0),
        ("x", False, False, 1.0),
    ],
)
def test_the_form_of_a_response_is_rewarded(response, thinks, boxed, reward):
    assert format_reward(thinks=thinks, boxed=boxed)(completions=[response]) == [reward]


def test_overlong_responses_lose_in_a_line():
    # DAPO's form: 100 tokens at most, the last 20 cost; at 90 half of them are used.
    penalty = length_penalty(max_tokens=100, buffer=20)
    ids = [[0] * n for n in (1, 80, 85, 90, 100, 120)]
    assert penalty(completion_ids=ids) == pytest.approx([0, 0, -0.25, -0.5, -1, -1])


def test_rewards_are_combined_by_weight(judge):
    plain, weights = reward_functions(judge, VerifySettings(), max_tokens=10)
    assert [f.__name__ for f in plain] == ["answer_reward"]
    settings = VerifySettings(reward_format_weight=0.2, reward_length_weight=0.5, reward_length_buffer=4)
    functions, weights = reward_functions(judge, settings, max_tokens=10, boxed=True)
    assert [f.__name__ for f in functions] == ["answer_reward", "format_reward", "length_penalty"]
    assert weights == [1.0, 0.2, 0.5]


@pytest.mark.parametrize(
    "settings",
    [
        {"verify_timeout_s": 0},
        {"verify_workers": 0},
        {"verify_memory_mb": -1},
        {"reward_correct": math.nan},
        {"reward_crashed": math.inf},
        {"reward_format_weight": -1},
        {"reward_length_buffer": 0},
        {"verify_options": "[1]"},
        {"verify_options": "no json"},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match=r"(?s)expected .*hint: ") as caught:
        VerifySettings(**settings)
    assert caught.value.where in settings


def test_options_may_come_as_json():
    assert VerifySettings(verify_options='{"require_box": true}').options == {"require_box": True}
