"""How the base policy does on held-out chains."""

from __future__ import annotations

import math

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from exgrpo.assets import chain_base_path
from exgrpo.evaluation.chain import chain_suite, evaluate_chain
from exgrpo.evaluation.engines import TransformersEngine
from exgrpo.tasks.chain import ChainSettings


def load():
    model = AutoModelForCausalLM.from_pretrained(chain_base_path())
    return model, AutoTokenizer.from_pretrained(chain_base_path())


def evaluate(directory, num_held_out, *, policy=None, **settings):
    suite = chain_suite(ChainSettings(chain_num_held_out=num_held_out), seed=0, **settings)
    return evaluate_chain(TransformersEngine(*(policy or load())), suite, directory, model="chain-base")


def test_the_base_policy_is_as_good_as_its_card_says_and_not_better(tmp_path):
    scores = evaluate(tmp_path / "a", 100)
    assert 0.12 < scores.pass_at_1.value < 0.40
    assert 0.4 < scores.valid_share.value < 0.95
    assert scores.truncated < 0.01
    assert scores.pass_at_1.low < scores.pass_at_1.value < scores.pass_at_1.high
    assert scores == evaluate(tmp_path / "b", 100)


def test_greedy_is_far_better_than_sampling_so_there_is_room_to_learn(tmp_path):
    assert evaluate(tmp_path, 100, num_samples=1, temperature=0.0).pass_at_1.value > 0.6


def test_many_questions_are_partly_solved(tmp_path):
    scores = evaluate(tmp_path, 60, num_samples=8)
    assert len(scores.questions_by_correct) == 9
    assert sum(scores.questions_by_correct) == 60
    # Only these groups teach anything; about three in four of the base policy's.
    assert sum(scores.questions_by_correct[1:8]) > 40
    right = sum(n * count for n, count in enumerate(scores.questions_by_correct))
    assert scores.pass_at_1.value == pytest.approx(right / (60 * 8))


def test_a_policy_without_right_answers_has_no_share_of_valid_ones(tmp_path):
    model, tokenizer = load()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(";")]
    # Cut off after the first step, no response has an answer.
    scores = evaluate(tmp_path, 20, policy=(model, tokenizer), num_samples=2)
    assert scores.pass_at_1.value == 0
    assert math.isnan(scores.valid_share.value)
    assert scores.questions_by_correct == (20, 0, 0)
