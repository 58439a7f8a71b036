"""Sampled responses of a policy, with a random stream of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response.

    Attributes:
        text: without special tokens.
        num_tokens: response tokens, end token included.
        truncated: whether it stopped at the length limit.
    """

    text: str
    num_tokens: int
    truncated: bool


def sample_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    num_samples: int,
    max_new_tokens: int,
    seed: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Response]]:
    """Return [Q][num_samples] responses. Training's random stream and mode are as before afterwards.

    Args:
        model: the policy.
        tokenizer: its tokenizer; pads on the left here whatever it does elsewhere.
        prompts: [Q] texts.
        num_samples: responses per prompt.
        max_new_tokens: length limit.
        seed: of the samples.
        temperature: of the samples, above 0.
        top_p: nucleus of the samples.
        batch_size: rows generated at once; prompts of like length share a batch.
        progress: called with (rows done, rows in all) after each batch.
    """
    rows = sorted((len(prompt), n, prompt) for n, prompt in enumerate(prompts) for _ in range(num_samples))
    responses: list[list[Response]] = [[] for _ in prompts]
    was_training = model.training
    model.eval()
    # The saved state of all devices comes back at the end of the block.
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(seed)
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            config = _generation_config(tokenizer, max_new_tokens, temperature, top_p)
            for (_, n, _), response in zip(batch, _generate(model, tokenizer, batch, config), strict=True):
                responses[n].append(response)
            if progress is not None:
                progress(start + len(batch), len(rows))
    model.train(was_training)
    return responses


def _generation_config(
    tokenizer: PreTrainedTokenizerBase, max_new_tokens: int, temperature: float, top_p: float
) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_p=top_p,
        top_k=0,
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch: Sequence[tuple[int, int, str]],
    config: GenerationConfig,
) -> list[Response]:
    inputs = tokenizer([prompt for *_, prompt in batch], return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(**inputs.to(model.device), generation_config=config)
    new = output[:, inputs["input_ids"].size(1) :]
    ended = new == config.eos_token_id
    lengths = torch.where(ended.any(dim=1), ended.int().argmax(dim=1) + 1, new.size(1))
    texts = tokenizer.batch_decode(
        [ids[:length] for ids, length in zip(new.tolist(), lengths.tolist(), strict=True)], skip_special_tokens=True
    )
    return [
        Response(text, num_tokens, not has_end)
        for text, num_tokens, has_end in zip(texts, lengths.tolist(), ended.any(dim=1).tolist(), strict=True)
    ]
