"""What writes the responses of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from exgrpo.evaluation.generate import Prompt, Response, sample_responses

Progress = Callable[[int, int], None]


class Engine(Protocol):
    """Samples responses of one model."""

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        num_samples: int,
        max_new_tokens: int,
        seed: int,
        temperature: float,
        top_p: float,
        progress: Progress | None = None,
    ) -> list[list[Response]]:
        """Return [Q][num_samples] responses, the same for the same seed."""
        ...


class TransformersEngine:
    """Samples with Transformers' `generate`.

    Args:
        model: the policy.
        tokenizer: its tokenizer.
        batch_size: rows generated at once.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 256):
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        num_samples: int,
        max_new_tokens: int,
        seed: int,
        temperature: float,
        top_p: float,
        progress: Progress | None = None,
    ) -> list[list[Response]]:
        """Return [Q][num_samples] responses (see `Engine`)."""
        return sample_responses(
            self._model,
            self._tokenizer,
            prompts,
            num_samples=num_samples,
            max_new_tokens=max_new_tokens,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            batch_size=self._batch_size,
            progress=progress,
        )
