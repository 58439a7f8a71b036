"""What writes the responses of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from exgrpo.evaluation.generate import Prompt, Response, sample_responses


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are drawn.

    Attributes:
        num_samples: responses per prompt.
        max_new_tokens: length limit.
        seed: of the samples.
        temperature: 0 is greedy.
        top_p: nucleus, in (0, 1].
    """

    num_samples: int
    max_new_tokens: int
    seed: int
    temperature: float
    top_p: float = 1.0


class Engine(Protocol):
    """Samples responses of one model."""

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Response]]:
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

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Response]]:
        """Return [Q][num_samples] responses (see `Engine`)."""
        return sample_responses(self._model, self._tokenizer, prompts, batch_size=self._batch_size, **asdict(sampling))
