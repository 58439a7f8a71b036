"""Sampling for an evaluation: seeded, invisible to training, exact about ends, and of the policy's own distribution."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from exgrpo.assets import chain_base_path
from exgrpo.errors import ConfigError
from exgrpo.evaluation.generate import sample_responses

PROMPTS = ["3+7-5=", "1+1=", "9-8+7-6+5-4+3-2="]


def load():
    path = chain_base_path()
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def sample(model, tokenizer, **settings):
    defaults = {"num_samples": 3, "max_new_tokens": 60, "seed": 1, "batch_size": 4}
    return sample_responses(model, tokenizer, PROMPTS, **{**defaults, **settings})


def test_each_prompt_gets_its_own_responses_in_the_order_of_the_prompts():
    # Greedy, since a sampled response of the base policy may begin with anything.
    responses = sample(*load(), temperature=0.0)
    assert [len(answers) for answers in responses] == [3, 3, 3]
    for prompt, answers in zip(PROMPTS, responses, strict=True):
        assert {answer.text[:3] for answer in answers} == {prompt[:3]}


def test_a_response_holds_the_exact_ids_with_the_end_token_and_the_text_without():
    model, tokenizer = load()
    for answer in chain.from_iterable(sample(model, tokenizer)):
        assert not answer.truncated
        assert answer.token_ids[-1] == tokenizer.eos_token_id
        assert answer.num_tokens == len(answer.text) + 1
        assert tokenizer(answer.text)["input_ids"] == list(answer.token_ids[:-1])


def test_a_prompt_is_answered_in_a_batch_of_longer_ones_as_alone():
    model, tokenizer = load()
    together = sample(model, tokenizer, temperature=0.0, num_samples=1, batch_size=3)
    alone = sample(model, tokenizer, temperature=0.0, num_samples=1, batch_size=1)
    assert together == alone


def test_a_response_at_the_length_limit_is_truncated():
    for answers in sample(*load(), max_new_tokens=5):
        assert all(answer.truncated and answer.num_tokens == 5 == len(answer.text) for answer in answers)


def test_one_seed_samples_the_same_and_another_does_not():
    model, tokenizer = load()
    assert sample(model, tokenizer) == sample(model, tokenizer)
    assert sample(model, tokenizer) != sample(model, tokenizer, seed=2)


def test_greedy_responses_do_not_depend_on_the_seed():
    model, tokenizer = load()
    greedy = sample(model, tokenizer, temperature=0.0)
    assert greedy == sample(model, tokenizer, temperature=0.0, seed=2)
    assert all(len(set(answers)) == 1 for answers in greedy)


def test_a_models_own_generation_defaults_do_not_bend_the_samples():
    model, tokenizer = load()
    expected = sample(model, tokenizer)
    model.generation_config.update(
        repetition_penalty=5.0, min_p=0.9, top_k=1, no_repeat_ngram_size=2, num_beams=2, use_cache=False
    )
    assert sample(model, tokenizer) == expected


def test_every_end_token_of_the_model_ends_a_response():
    model, tokenizer = load()
    semicolon = tokenizer.convert_tokens_to_ids(";")
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, semicolon]
    for answer in chain.from_iterable(sample(model, tokenizer)):
        assert answer.token_ids[-1] == semicolon
        assert answer.text.count(";") == 1
        assert not answer.truncated


def test_a_tokenizer_without_a_padding_token_pads_with_the_end():
    model, tokenizer = load()
    expected = sample(model, tokenizer)
    tokenizer.pad_token = None
    assert sample(model, tokenizer) == expected


def test_a_chat_is_rendered_with_the_template():
    model, tokenizer = load()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ '=' if add_generation_prompt }}"
    chats = [[{"role": "user", "content": prompt[:-1]}] for prompt in PROMPTS]
    settings = {"num_samples": 2, "max_new_tokens": 60, "seed": 1}
    assert sample_responses(model, tokenizer, chats, **settings) == sample_responses(
        model, tokenizer, PROMPTS, **settings
    )


@pytest.mark.parametrize("fails", [False, True])
def test_an_evaluation_leaves_the_random_stream_and_the_mode_as_they_were(fails):
    def progress(done, all_):
        if fails:
            raise KeyboardInterrupt

    model, tokenizer = load()
    model.train()
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    if fails:
        with pytest.raises(KeyboardInterrupt):
            sample(model, tokenizer, progress=progress)
    else:
        sample(model, tokenizer, progress=progress)
    assert torch.rand(4).tolist() == expected.tolist()
    assert model.training


def test_progress_is_told_after_each_batch():
    seen = []
    sample(*load(), progress=lambda done, all_: seen.append((done, all_)))
    assert seen == [(4, 9), (8, 9), (9, 9)]


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_numbers_that_nothing_can_be_sampled_with_are_refused(settings, where):
    with pytest.raises(ConfigError, match="hint: ") as caught:
        sample(*load(), **settings)
    assert caught.value.where == where


def test_a_policy_that_could_never_end_is_refused():
    model, tokenizer = load()
    model.generation_config.eos_token_id = tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="end token"):
        sample(model, tokenizer)
