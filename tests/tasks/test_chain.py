"""The chain task: exact answers, exact validity, known difficulty, and no question on both sides."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import HfArgumentParser

from exgrpo.errors import ConfigError, DataError
from exgrpo.tasks.chain import (
    CHARACTERS,
    ChainSettings,
    chain_dataset,
    chain_reward,
    check_answer,
    first_invalid_step,
    is_valid,
    make_questions,
    max_response_tokens,
    reference_response,
    reference_steps,
    split_of,
)

prompts = st.builds(
    lambda first, rest: first + "".join(rest) + "=",
    st.sampled_from("0123456789"),
    st.lists(st.builds("{}{}".format, st.sampled_from("+-*"), st.integers(0, 9)), min_size=1, max_size=9),
)


@pytest.mark.parametrize(
    ("prompt", "response"),
    [
        ("3+7-5=", "3+7=0;0-5=5;#5"),  # 10 mod 10 = 0; 0 - 5 = -5, mod 10 = 5
        ("3+7*2-5=", "3+7=0;0*2=0;0-5=5;#5"),  # from left to right: no precedence
        ("9*9=", "9*9=1;#1"),
        ("0-1=", "0-1=9;#9"),
    ],
)
def test_references_worked_by_hand(prompt, response):
    assert reference_response(prompt) == response
    assert check_answer(prompt, response)
    assert is_valid(prompt, response)


def test_a_wrong_chain_can_be_right_by_luck_and_is_not_valid():
    # 3+7=1 is wrong, 1-6=5 follows from it, and 5 happens to be the answer of 3+7-5 (for which the last step is wrong).
    assert check_answer("3+7-5=", "3+7=1;1-6=5;#5")
    assert first_invalid_step("3+7-5=", "3+7=1;1-6=5;#5") == 0
    # Times absorbs an error: 4*0 and 7*0 are both 0.
    assert check_answer("2+2*0=", "2+2=7;7*0=0;#0")
    assert not is_valid("2+2*0=", "2+2=7;7*0=0;#0")


@pytest.mark.parametrize(
    ("response", "step"),
    [
        ("3+7=0;0-5=5;#5", None),
        ("3+7=0;0-5=4;#4", 1),
        ("3+7=0;0-5=5;#4", 2),
        ("3+7=0;0+5=5;#5", 1),
        ("3+7=0;#0", 1),
        ("3+7=0;0-5=5;5+0=5;#5", 2),
        ("3+7=0;0-5=5;#5;#5", 3),
        ("3+7=0;0-5=5", 2),
        ("#5", 0),
        ("", 0),
        ("3+7=0; 0-5=5;#5", 1),
    ],
)
def test_the_first_invalid_step_is_found(response, step):
    assert first_invalid_step("3+7-5=", response) == step


@given(prompts)
def test_the_reference_is_always_right_valid_and_short_enough(prompt):
    response = reference_response(prompt)
    assert check_answer(prompt, response)
    assert is_valid(prompt, response)
    assert set(prompt + response) <= set(CHARACTERS)
    num_terms = prompt.count("+") + prompt.count("-") + prompt.count("*") + 1
    settings = ChainSettings(
        chain_min_terms=num_terms, chain_max_terms=num_terms, chain_num_questions=1, chain_num_held_out=1
    )
    assert len(response) + 1 <= max_response_tokens(settings)


@given(prompts, st.data())
def test_a_corrupted_step_is_seen_where_it_is(prompt, data):
    steps = reference_steps(prompt)
    number = data.draw(st.integers(0, len(steps) - 1))
    wrong = data.draw(st.sampled_from([d for d in "0123456789" if d != steps[number][-1]]))
    corrupted = [*steps[:number], steps[number][:-1] + wrong, *steps[number + 1 :]]
    assert first_invalid_step(prompt, ";".join(corrupted) + f";#{steps[-1][-1]}") == number


@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_questions_never_overlap_training_questions_of_any_seed(seed):
    settings = ChainSettings(chain_min_terms=2, chain_max_terms=3, chain_num_questions=40, chain_num_held_out=40)
    train = {question.prompt for other in range(6) for question in make_questions(settings, seed=other, split="train")}
    held_out = {question.prompt for question in make_questions(settings, seed=seed, split="held_out")}
    assert train.isdisjoint(held_out)
    assert {split_of(prompt) for prompt in train} == {"train"}


def test_questions_are_distinct_of_known_difficulty_and_a_function_of_the_seed():
    settings = ChainSettings(chain_num_questions=500)
    questions = make_questions(settings, seed=3, split="train")
    assert len({question.id for question in questions}) == 500
    lengths = [question.num_terms for question in questions]
    assert [lengths.count(n) for n in range(4, 9)] == [100] * 5
    assert all(
        question.prompt.count("+") + question.prompt.count("-") == question.num_terms - 1 for question in questions
    )
    assert questions == make_questions(settings, seed=3, split="train")
    assert questions != make_questions(settings, seed=4, split="train")


def test_the_data_set_has_the_columns_that_trainer_and_reward_need():
    settings = ChainSettings(chain_num_questions=10)
    rows = chain_dataset(settings, seed=0, split="train")
    assert set(rows.column_names) == {"id", "prompt", "answer", "num_terms"}
    right = [reference_response(prompt) for prompt in rows["prompt"]]
    assert chain_reward(prompts=rows["prompt"], completions=right, answer=rows["answer"]) == [1.0] * 10
    assert all(text.endswith(f"#{answer}") for text, answer in zip(right, rows["answer"], strict=True))
    assert chain_reward(prompts=rows["prompt"], completions=["#"] * 10) == [0.0] * 10


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"chain_operators": "+/"}, "chain_operators"),
        ({"chain_operators": ""}, "chain_operators"),
        ({"chain_min_terms": 1}, "chain_min_terms"),
        ({"chain_min_terms": 9}, "chain_min_terms"),
        ({"chain_max_terms": 11}, "chain_max_terms"),
        ({"chain_num_questions": 0}, "chain_num_questions"),
        ({"chain_min_terms": 2, "chain_max_terms": 2, "chain_num_questions": 500}, "chain_num_questions"),
        ({"chain_num_held_out": -1}, "chain_num_held_out"),
    ],
)
def test_chains_that_do_not_exist_are_refused_with_a_hint(values, where):
    with pytest.raises(ConfigError, match=r"(?s)hint: ") as caught:
        ChainSettings(**values)
    assert where in caught.value.where


def test_the_settings_are_command_line_arguments_and_do_not_change_afterwards():
    words = ["--chain_operators", "+-*", "--chain_min_terms", "3"]
    (settings,) = HfArgumentParser(ChainSettings).parse_args_into_dataclasses(words)
    assert settings == ChainSettings(chain_operators="+-*", chain_min_terms=3)
    with pytest.raises(FrozenInstanceError):
        settings.chain_min_terms = 0


@pytest.mark.parametrize("prompt", ["3+x=", "3+7", "3=", "", "13+7=", "3+7=\n", "3 + 7=", "٣+٧="])
def test_a_question_of_another_kind_is_refused(prompt):
    with pytest.raises(DataError, match="hint"):
        reference_steps(prompt)


def test_neither_the_task_nor_the_scores_load_torch():
    code = "import sys, exgrpo.tasks.chain, exgrpo.evaluation.scores; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
