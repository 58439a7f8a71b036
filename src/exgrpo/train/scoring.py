"""How uncertain the current policy is of stored trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from exgrpo.objective import mean_entropy, mean_negative_log_prob
from exgrpo.train.compat import HookedGRPOTrainer
from exgrpo.types import Experience


def score_candidates(
    trainer: HookedGRPOTrainer,
    experiences: Sequence[Experience],
    *,
    measure: Literal["entropy", "negative_log_prob"],
    batch_size: int,
) -> dict[str, float]:
    """Return experience id -> uncertainty of the current policy over its response tokens, in nats.

    Trajectories are scored in order of length, so that a batch holds little padding; no gradients.

    Args:
        trainer: whose model scores.
        experiences: what to score.
        measure: mean token entropy (arXiv 2510.02245, section 3.2) or mean negative log-probability (Algorithm 1).
        batch_size: trajectories in one forward.
    """
    ordered = sorted(experiences, key=lambda e: (len(e.prompt_ids) + len(e.response_ids), e.id))
    scores: dict[str, float] = {}
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        inputs = collate(batch, trainer.tokenizer.pad_token_id, trainer.accelerator.device)
        with torch.no_grad():
            log_probs, entropies = trainer.token_statistics(trainer.model, inputs)
        mask = inputs["completion_mask"].bool()
        values = mean_entropy(entropies, mask) if measure == "entropy" else mean_negative_log_prob(log_probs, mask)
        scores |= zip((experience.id for experience in batch), values.float().tolist(), strict=True)
    return scores


def collate(batch: Sequence[Experience], pad_token_id: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return prompts padded on the left and responses padded on the right, with their masks, as TRL's batches are."""
    prompts = [_to_tensor(experience.prompt_ids) for experience in batch]
    responses = [_to_tensor(experience.response_ids) for experience in batch]
    padded: dict[str, torch.Tensor] = {}
    for name, rows, side in (("prompt", prompts, "left"), ("completion", responses, "right")):
        ones = [torch.ones_like(row) for row in rows]
        ids = pad_sequence(rows, batch_first=True, padding_value=pad_token_id, padding_side=side)
        mask = pad_sequence(ones, batch_first=True, padding_value=0, padding_side=side)
        padded |= {f"{name}_ids": ids.to(device), f"{name}_mask": mask.to(device)}
    return padded


def _to_tensor(ids: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64))
