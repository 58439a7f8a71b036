"""Broken numbers stay out of weights and experience; a broken reward function is one clear error."""

from __future__ import annotations

import json
import math

import pytest
import torch

from exgrpo.errors import DataError, NotFiniteError
from exgrpo.tasks.chain import chain_reward

from .conftest import make_trainer, read_metrics


def break_forwards(trainer, batches):
    """Spoil the hidden states of one row of a training forward in the given generation batches (from 1)."""

    def spoil(module, inputs, output):
        if torch.is_grad_enabled() and trainer.experience.status().step + 1 in batches:
            spoiled = output.clone()
            spoiled[0] = math.nan
            return spoiled
        return None

    trainer.model.model.norm.register_forward_hook(spoil)


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


class Watcher:
    """Notes the weights after every update."""

    def __init__(self, trainer):
        from transformers import TrainerCallback

        noted = self.noted = [weights(trainer).clone()]

        class Note(TrainerCallback):
            def on_step_end(self, *_, **__):
                noted.append(weights(trainer).clone())

        trainer.add_callback(Note())


def test_an_update_with_broken_numbers_is_skipped_counted_and_recorded(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=5)
    break_forwards(trainer, {2, 4})
    watcher = Watcher(trainer)
    trainer.train()
    moved = [not torch.equal(a, b) for a, b in zip(watcher.noted, watcher.noted[1:], strict=False)]
    assert moved == [True, False, True, False, True]
    assert torch.isfinite(weights(trainer)).all()
    lines = read_metrics(tmp_path)[:5]
    assert [line["guard/skipped_updates"] for line in lines] == [0, 1, 0, 1, 0]
    records = [json.loads(line) for line in (tmp_path / "skipped_updates.jsonl").read_text().splitlines()]
    assert [record["update"] for record in records] == [2, 4]
    asked = {question for batch in trainer.batches for question in batch.question_ids}
    for record in records:
        faults = {fault["what"]: fault["rows"] for fault in record["not_finite"]}
        assert {"loss", "log-probs"} <= set(faults)
        assert {row["question_id"] for row in faults["log-probs"]} <= asked
    # Nothing that was measured by a broken forward is kept.
    for row in trainer.experience._store.trajectories():
        (experience,) = trainer.experience.load([row.id])
        assert all(map(math.isfinite, experience.behaviour_log_probs))
    trainer.experience.close()


def test_too_many_in_a_row_stop_the_run_with_a_report(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=9, max_skipped_updates=2)
    break_forwards(trainer, set(range(3, 20)))
    with pytest.raises(NotFiniteError, match=r"(?s)update 5.*at most 2.*log-probs.*skipped_updates\.jsonl"):
        trainer.train()
    assert torch.isfinite(weights(trainer)).all()
    assert trainer.experience.status().step == 5
    trainer.experience.close()


def test_a_gradient_that_overflows_alone_is_seen(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=2)
    spoiled = iter([True, False, False, False])
    parameter = trainer.model.model.norm.weight
    parameter.register_hook(lambda gradient: gradient * math.inf if next(spoiled, False) else gradient)
    watcher = Watcher(trainer)
    trainer.train()
    assert torch.equal(watcher.noted[0], watcher.noted[1])
    assert not torch.equal(watcher.noted[1], watcher.noted[2])
    (record,) = (json.loads(line) for line in (tmp_path / "skipped_updates.jsonl").read_text().splitlines())
    assert record["not_finite"] == [{"what": "gradient", "rows": []}]
    trainer.experience.close()


def faulty(kind):
    def reward(prompts, completions, **_):
        rewards = chain_reward(prompts, completions)
        if kind == "short":
            return rewards[:-1]
        if kind == "none at all":
            return None
        return [{"infinite": math.inf, "text": "good"}.get(kind, 0.0), *rewards[1:]]

    return reward


@pytest.mark.parametrize("kind", ["short", "none at all", "infinite", "text"])
def test_a_reward_function_that_returns_nonsense_is_one_clear_error(tmp_path, kind):
    trainer = make_trainer(tmp_path, max_steps=2, reward_funcs=faulty(kind))
    with pytest.raises(DataError, match=r"(?s)reward function 'reward'.*expected .*hint: "):
        trainer.train()
    assert trainer.experience.status().step == 0
    trainer.experience.close()


def test_what_a_reward_function_raises_comes_through_and_nothing_committed_is_lost(tmp_path):
    calls = []

    def reward(prompts, completions, **_):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("my own fault")
        return chain_reward(prompts, completions)

    trainer = make_trainer(tmp_path, max_steps=5, reward_funcs=reward)
    with pytest.raises(RuntimeError, match="my own fault"):
        trainer.train()
    assert trainer.experience.status().step == 2
    trainer.experience.close()


def test_a_missing_reward_leaves_a_response_out_and_the_run_goes_on(tmp_path):
    def reward(prompts, completions, **_):
        return [None if n % 5 == 0 else value for n, value in enumerate(chain_reward(prompts, completions))]

    trainer = make_trainer(tmp_path, max_steps=3, reward_funcs=reward)
    trainer.train()
    rollouts = [rollout for groups in trainer.committed for group in groups for rollout in group.rollouts]
    assert {rollout.verdict for rollout in rollouts} == {"correct", "wrong", "unparsed"}
    trainer.experience.close()
