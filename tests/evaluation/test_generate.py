"""Sampling for an evaluation: seeded, invisible to training, exact about ends."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from exgrpo.assets import chain_base_path
from exgrpo.evaluation.chain import evaluate_chain
from exgrpo.evaluation.generate import sample_responses
from exgrpo.tasks.chain import ChainSettings

PROMPTS = ["3+7-5=", "1+1=", "9-8+7-6+5-4+3-2="]


def load():
    path = chain_base_path()
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def sample(model, tokenizer, **settings):
    defaults = {"num_samples": 3, "max_new_tokens": 60, "seed": 1, "batch_size": 4}
    return sample_responses(model, tokenizer, PROMPTS, **{**defaults, **settings})


def test_each_prompt_gets_its_own_responses_in_the_order_of_the_prompts():
    responses = sample(*load())
    assert [len(answers) for answers in responses] == [3, 3, 3]
    for prompt, answers in zip(PROMPTS, responses, strict=True):
        for answer in answers:
            assert answer.text.startswith(prompt[:2])  # the base policy copies the first digit and operator
            assert answer.text[-2] == "#"
            assert not answer.truncated
            assert answer.num_tokens == len(answer.text) + 1


def test_a_response_at_the_length_limit_is_truncated():
    for answers in sample(*load(), max_new_tokens=5):
        assert all(answer.truncated and answer.num_tokens == 5 == len(answer.text) for answer in answers)


def test_one_seed_samples_the_same_and_another_does_not():
    model, tokenizer = load()
    assert sample(model, tokenizer) == sample(model, tokenizer)
    assert sample(model, tokenizer) != sample(model, tokenizer, seed=2)


def test_an_evaluation_leaves_the_random_stream_and_the_mode_as_they_were():
    model, tokenizer = load()
    model.train()
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    sample(model, tokenizer)
    assert torch.rand(4).tolist() == expected.tolist()
    assert model.training


def test_progress_is_told_after_each_batch():
    seen = []
    sample(*load(), progress=lambda done, all_: seen.append((done, all_)))
    assert seen == [(4, 9), (8, 9), (9, 9)]


def test_the_base_policy_is_as_good_as_its_card_says_and_not_better():
    settings = ChainSettings(chain_num_held_out=100)
    scores = evaluate_chain(*load(), settings, seed=0)
    assert 0.12 < scores.pass_at_1.value < 0.40
    assert 0.4 < scores.valid_share.value < 0.95
    assert scores.truncated < 0.01
    assert scores.pass_at_1.low < scores.pass_at_1.value < scores.pass_at_1.high
    assert scores == evaluate_chain(*load(), settings, seed=0)
