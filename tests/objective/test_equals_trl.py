"""Without replayed rows the objective is TRL's, on the same tensors: loss and gradient of its own `_compute_loss`."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from trl import GRPOTrainer

from exgrpo.objective import ObjectiveSettings, group_advantages, mixed_policy_loss, row_weights

ACCUMULATED = 3
PER_GENERATION = 6


def tensors(seed):
    torch.manual_seed(seed)
    lengths = torch.tensor([5, 1, 3, 4])
    mask = torch.arange(5) < lengths.unsqueeze(1)
    log_probs = torch.where(mask, -torch.rand(4, 5), 0.0)
    old = torch.where(mask, log_probs + 0.5 * torch.randn(4, 5), 0.0)
    entropies = torch.where(mask, torch.rand(4, 5), 0.0)
    return mask, log_probs, old, entropies, group_advantages(torch.tensor([1.0, 0, 0, 1]), 4)


def trl_loss(log_probs, entropies, mask, inputs, *, loss_type, entropy_coef, metrics=None):
    """TRL's method, bound to the attributes that it reads and to a forward that returns the given tensors."""
    accelerator = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda value: value,
        reduce=lambda value, reduction: value,
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (log_probs, entropies, None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=0.28,
        max_completion_length=9,
        use_vllm=False,
        entropy_coef=entropy_coef,
        _entropy_bonus_enabled=entropy_coef != 0,
        use_adaptive_entropy=False,
        current_gradient_accumulation_steps=ACCUMULATED,
        model=SimpleNamespace(training=True),
        accelerator=accelerator,
        _metrics={"train": defaultdict(list) if metrics is None else metrics},
        args=SimpleNamespace(delta=None, steps_per_generation=PER_GENERATION),
    )
    ids = torch.zeros_like(mask, dtype=torch.long)
    prompt = {"prompt_ids": ids[:, :1], "prompt_mask": torch.ones(4, 1, dtype=torch.long)}
    return GRPOTrainer._compute_loss(
        trainer, None, {**prompt, "completion_ids": ids, "completion_mask": mask.long(), **inputs}
    )


@pytest.mark.parametrize("loss_type", ["dr_grpo", "grpo", "bnpo", "dapo"])
@pytest.mark.parametrize("moved", [False, True], ids=["one update", "several updates"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_and_gradient_equal_trl(loss_type, moved, entropy_coef, seed):
    mask, log_probs, old, entropies, advantages = tensors(seed)
    ours, theirs = ([tensor.clone().requires_grad_() for tensor in (log_probs, entropies)] for _ in range(2))
    inputs = {"advantages": advantages, "num_items_in_batch": torch.tensor(70)}
    expected = trl_loss(
        *theirs,
        mask,
        {**inputs, **({"old_per_token_logps": old} if moved else {})},
        loss_type=loss_type,
        entropy_coef=entropy_coef,
    )
    settings = ObjectiveSettings(max_response_length=9, loss_type=loss_type, clip_high=0.28, entropy_coef=entropy_coef)
    said = mixed_policy_loss(
        log_probs=ours[0],
        entropies=ours[1],
        response_mask=mask,
        advantages=advantages,
        replayed=torch.zeros(4, dtype=torch.bool),
        behaviour_log_probs=old,
        behaviour_known=torch.full((4,), moved),
        settings=settings,
        weights=row_weights(mask, settings, 70 / PER_GENERATION),
    )
    loss = said.loss / ACCUMULATED
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours[0].grad, theirs[0].grad)
    if entropy_coef:
        torch.testing.assert_close(ours[1].grad, theirs[1].grad)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_share_of_clipped_tokens_equals_trl(seed):
    mask, log_probs, old, entropies, advantages = tensors(seed)
    settings = ObjectiveSettings(max_response_length=9, clip_high=0.28)
    said = mixed_policy_loss(
        log_probs=log_probs,
        entropies=entropies,
        response_mask=mask,
        advantages=advantages,
        replayed=torch.zeros(4, dtype=torch.bool),
        behaviour_log_probs=old,
        behaviour_known=torch.ones(4, dtype=torch.bool),
        settings=settings,
        weights=row_weights(mask, settings),
    )
    inputs = {"advantages": advantages, "old_per_token_logps": old}
    metrics = defaultdict(list)
    trl_loss(log_probs, entropies, mask, inputs, loss_type="dr_grpo", entropy_coef=0.0, metrics=metrics)
    assert said.clipped.any()
    assert (said.clipped.sum() / mask.sum()).item() == pytest.approx(metrics["clip_ratio/region_mean"][0])
