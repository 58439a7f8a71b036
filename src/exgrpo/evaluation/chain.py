"""How well a policy does on held-out chains, and whether its right answers were reasoned or lucky."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from exgrpo.evaluation.generate import sample_responses
from exgrpo.evaluation.scores import Estimate, bootstrap_mean
from exgrpo.seeding import derive_rng
from exgrpo.tasks.chain import ChainSettings, check_answer, is_valid, make_questions, max_response_tokens


@dataclass(frozen=True, slots=True)
class ChainScores:
    """Scores on held-out chains.

    Attributes:
        pass_at_1: share of right answers over all samples.
        valid_share: share of answers with only valid steps, among the right ones.
        truncated: share of responses that stopped at the length limit.
        num_samples: responses per question.
        questions_by_correct: [num_samples + 1], questions with 0, 1, ... num_samples right answers.
    """

    pass_at_1: Estimate
    valid_share: Estimate
    truncated: float
    num_samples: int
    questions_by_correct: tuple[int, ...]


def evaluate_chain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: ChainSettings,
    *,
    seed: int,
    num_samples: int = 4,
    temperature: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> ChainScores:
    """Return scores on the held-out questions of `settings`.

    Args:
        model: the policy.
        tokenizer: its tokenizer.
        settings: which chains; `chain_num_held_out` of them are asked.
        seed: of the questions, the samples and the bootstrap.
        num_samples: responses per question.
        temperature: of the samples; 0 is greedy, where one sample is enough.
        progress: called with (responses done, responses in all).
    """
    questions = make_questions(settings, seed=seed, split="held_out")
    prompts = [question.prompt for question in questions]
    responses = sample_responses(
        model,
        tokenizer,
        prompts,
        num_samples=num_samples,
        max_new_tokens=max_response_tokens(settings),
        seed=seed,
        temperature=temperature,
        progress=progress,
    )
    rows = [[(prompt, r) for r in answers] for prompt, answers in zip(prompts, responses, strict=True)]
    correct = np.array([[check_answer(prompt, r.text) for prompt, r in row] for row in rows])
    valid = np.array([[is_valid(prompt, r.text) for prompt, r in row] for row in rows])
    rng = derive_rng(seed, "bootstrap")
    return ChainScores(
        pass_at_1=bootstrap_mean(correct.astype(float), np.ones(correct.shape), rng),
        valid_share=bootstrap_mean(valid.astype(float), correct.astype(float), rng),
        truncated=float(np.mean([r.truncated for answers in responses for r in answers])),
        num_samples=num_samples,
        questions_by_correct=tuple(np.bincount(correct.sum(axis=1), minlength=num_samples + 1).tolist()),
    )
