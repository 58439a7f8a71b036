"""Sampled responses of a policy, with a random stream of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from exgrpo.errors import ConfigError

Prompt = str | Sequence[dict[str, str]]

# `generate` fills what a call leaves open from the model's own generation_config.json, and that of Qwen2.5-7B-Instruct
# asks for a repetition penalty of 1.05: an evaluation would then sample from another distribution than the policy's.
_NEUTRAL: dict[str, Any] = {
    "num_beams": 1,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "num_return_sequences": 1,
    "use_cache": True,  # switched off in the config of a model that trains with activation checkpointing
}


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response.

    Attributes:
        text: without special tokens.
        token_ids: the exact ids, end token included where one was written.
        truncated: whether it stopped at the length limit.
    """

    text: str
    token_ids: tuple[int, ...]
    truncated: bool

    @property
    def num_tokens(self) -> int:
        """Number of response tokens, end token included."""
        return len(self.token_ids)


def sample_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    num_samples: int,
    max_new_tokens: int,
    seed: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = 256,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Response]]:
    """Return [Q][num_samples] responses. Training's random stream and mode are as before afterwards, also on an error.

    Args:
        model: the policy.
        tokenizer: its tokenizer.
        prompts: [Q], each a text, or a chat (messages with role and content) for the tokenizer's template.
        num_samples: responses per prompt.
        max_new_tokens: length limit.
        seed: of the samples.
        temperature: of the samples; 0 is greedy, where all samples of a prompt are the same.
        top_p: nucleus of the samples, in (0, 1].
        batch_size: rows generated at once; prompts of like length share a batch.
        chat_template_kwargs: passed to the chat template.
        progress: called with (rows done, rows in all) after each batch.

    Raises:
        ConfigError: for numbers outside their range, or a policy without an end token.
    """
    config = _generation_config(model, tokenizer, max_new_tokens, temperature, top_p)
    _check_counts(num_samples=num_samples, batch_size=batch_size)
    encoded = [prompt_ids(tokenizer, prompt, chat_template_kwargs) for prompt in prompts]
    rows = sorted((len(ids), n) for n, ids in enumerate(encoded) for _ in range(num_samples))
    responses: list[list[Response]] = [[] for _ in prompts]
    with _undisturbed(model, seed):
        for start in range(0, len(rows), batch_size):
            numbers = [n for _, n in rows[start : start + batch_size]]
            batch = _generate(model, tokenizer, [encoded[n] for n in numbers], config)
            for n, response in zip(numbers, batch, strict=True):
                responses[n].append(response)
            if progress is not None:
                progress(start + len(numbers), len(rows))
    return responses


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] | None = None
) -> list[int]:
    """Return the ids of a text, or of a chat rendered with the tokenizer's template up to where the answer begins."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(
        list(prompt), tokenize=False, add_generation_prompt=True, **(chat_template_kwargs or {})
    )
    # The template has written the special tokens already.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@contextmanager
def _undisturbed(model: PreTrainedModel, seed: int) -> Iterator[None]:
    was_training = model.training
    # Left to itself, fork_rng warns on a machine with several GPUs. no_grad and not inference_mode: a rotary embedding
    # that grows during generation stays in the model, and training could not differentiate through an inference tensor.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        torch.manual_seed(seed)
        model.eval()
        try:
            yield
        finally:
            model.train(was_training)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(name, expected="a number of at least 1", found=count, hint="ask for one or more")


def _generation_config(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
) -> GenerationConfig:
    _check_counts(max_new_tokens=max_new_tokens)
    if temperature < 0:
        raise ConfigError("temperature", expected="0 or more", found=temperature, hint="0 is greedy")
    if not 0 < top_p <= 1:
        raise ConfigError("top_p", expected="a share in (0, 1]", found=top_p, hint="1 keeps every token")
    ends = _end_ids(model, tokenizer)
    greedy = temperature == 0
    return GenerationConfig(
        do_sample=not greedy,
        temperature=1.0 if greedy else temperature,
        top_p=1.0 if greedy else top_p,
        # Transformers warns about values that greedy decoding does not use, unless they are its defaults.
        top_k=50 if greedy else 0,
        min_p=None if greedy else 0.0,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends,
        pad_token_id=ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        **_NEUTRAL,
    )


def _end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a response: a chat model ends with its turn token or with the end of text."""
    own = model.generation_config.eos_token_id
    own = own if isinstance(own, list) else [own]
    ends = sorted({end for end in (*own, tokenizer.eos_token_id) if end is not None})
    if not ends:
        raise ConfigError(
            "tokenizer",
            expected="an end token, in the tokenizer or in the model's generation configuration",
            found="none",
            hint="set tokenizer.eos_token",
        )
    return ends


def _generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]], config: GenerationConfig
) -> list[Response]:
    longest = max(len(ids) for ids in prompts)
    padding = [longest - len(ids) for ids in prompts]
    ids = torch.tensor([[config.pad_token_id] * pad + ids for pad, ids in zip(padding, prompts, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
    output = model.generate(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), generation_config=config
    )
    return [_response(tokenizer, row, config.eos_token_id) for row in output[:, longest:].tolist()]


def _response(tokenizer: PreTrainedTokenizerBase, row: list[int], ends: list[int]) -> Response:
    end = next((n for n, token in enumerate(row) if token in ends), None)
    ids = row if end is None else row[: end + 1]
    return Response(tokenizer.decode(ids, skip_special_tokens=True), tuple(ids), truncated=end is None)
