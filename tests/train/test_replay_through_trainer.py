"""What replay promises, checked on what went through the real `trainer.train()`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from exgrpo.assets import chain_base_path
from exgrpo.experience import experience_id
from exgrpo.train.scoring import score_candidates
from exgrpo.types import Experience

from .conftest import make_trainer, read_metrics


def rows_of_step(trainer, step):
    """What the loss was given in a step: position in the generation batch -> its tensors, padding taken off."""
    per_step = trainer.micro_steps_per_batch
    rows = {}
    for part in trainer.loss_inputs[(step - 1) * per_step : step * per_step]:
        for place, row in enumerate(part["row"].tolist()):
            prompt, response = part["prompt_mask"][place].bool(), part["completion_mask"][place].bool()
            rows[row] = {
                "prompt_ids": part["prompt_ids"][place][prompt].tolist(),
                "response_ids": part["completion_ids"][place][response].tolist(),
                "behaviour_log_probs": part["behaviour_log_probs"][place][response].tolist(),
                "replayed": bool(part["replayed"][place]),
                "advantage": part["advantages"][place].item(),
            }
    return rows


def replayed_steps(trainer):
    return [batch.plan.step for batch in trainer.batches if batch.plan.replays]


def test_replayed_rows_carry_the_stored_ids_and_log_probs_to_the_last_token(mixed_run):
    steps = replayed_steps(mixed_run)
    assert len(steps) >= 4
    for step in steps:
        rows = rows_of_step(mixed_run, step)
        batch = mixed_run.batches[step - 1]
        useful = {row for row in batch.recorded_rows if batch.useful_groups()[row // mixed_run.num_generations]}
        assert useful
        assert {row for row, values in rows.items() if values["replayed"]} == useful & set(rows) == useful
        for row in useful:
            stored = mixed_run.experience.load([batch.recorded_rows[row].experience.id])[0]
            assert rows[row]["response_ids"] == stored.response_ids.tolist()
            assert rows[row]["behaviour_log_probs"] == stored.behaviour_log_probs.tolist()
            assert rows[row]["prompt_ids"] == stored.prompt_ids.tolist()
            assert experience_id(stored.question_id, stored.response_ids) == stored.id


def test_a_replayed_question_gets_one_rollout_less_and_nothing_is_generated_for_the_recorded_row(mixed_run):
    metrics = read_metrics(mixed_run.args.output_dir)
    for step in replayed_steps(mixed_run):
        groups = mixed_run.committed[step - 1]
        sizes = {len(group.rollouts) for group in groups if group.replayed_id is not None}
        assert sizes == {mixed_run.num_generations - 1}
        assert {len(group.rollouts) for group in groups if group.replayed_id is None} == {mixed_run.num_generations}
        generated = sum(len(group.rollouts) for group in groups)
        assert metrics[step - 1]["rollouts/generated"] == generated < mixed_run.args.generation_batch_size


def test_advantages_are_computed_over_the_mixed_group(mixed_run):
    size = mixed_run.num_generations
    for step in replayed_steps(mixed_run):
        rows = rows_of_step(mixed_run, step)
        for number, group in enumerate(mixed_run.committed[step - 1]):
            rewards = [rollout.reward for rollout in group.rollouts] + [1.0] * (group.replayed_id is not None)
            for place, expected in enumerate(np.array(rewards) - np.mean(rewards)):
                # A row that is not there teaches nothing.
                found = rows.get(number * size + place, {"advantage": 0.0})["advantage"]
                assert found == pytest.approx(expected, abs=1e-6)


def test_the_store_holds_the_successes_of_partly_solved_groups_and_nothing_else(mixed_run):
    expected, retired = {}, set()
    for groups in mixed_run.committed:
        for group in groups:
            if group.num_correct == group.size:
                retired.add(group.question_id)
            elif group.question_id not in retired:
                for rollout in group.rollouts:
                    if rollout.correct:
                        key = experience_id(group.question_id, rollout.response_ids)
                        expected.setdefault(key, (group, rollout))
    live = {key for key, (group, _) in expected.items() if group.question_id not in retired}
    status = mixed_run.experience.status()
    assert status.trajectories == len(live) > 0
    assert status.retired == len(retired) > 0
    for key, (group, rollout) in expected.items():
        stored = mixed_run.experience.load([key])[0]
        assert stored.response_ids.tolist() == rollout.response_ids.tolist()
        assert stored.behaviour_log_probs.tolist() == rollout.behaviour_log_probs.tolist()
        assert stored.prompt_ids.tolist() == group.prompt_ids.tolist()
        assert stored.mean_entropy == rollout.mean_entropy


def test_a_question_that_all_rollouts_solve_is_never_replayed_again(mixed_run):
    retired: set[str] = set()
    for batch, groups in zip(mixed_run.batches, mixed_run.committed, strict=True):
        assert retired.isdisjoint(replay.experience.question_id for replay in batch.plan.replays)
        retired |= {group.question_id for group in groups if group.num_correct == group.size}
    assert retired
    assert all(mixed_run.experience.is_retired(question) for question in retired)


def test_the_least_uncertain_trajectory_is_replayed(mixed_run):
    chosen_among_several = 0
    for batch in mixed_run.batches:
        by_question: dict[str, list[tuple[float, str]]] = {}
        for key, entropy in batch.plan.entropies.items():
            question = mixed_run.experience.load([key])[0].question_id
            by_question.setdefault(question, []).append((entropy, key))
        for replay in batch.plan.replays:
            assert replay.experience.id == min(by_question[replay.experience.question_id])[1]
            chosen_among_several += len(by_question[replay.experience.question_id]) > 1
    assert chosen_among_several > 0


def test_a_step_takes_only_the_fresh_questions_it_uses(mixed_run):
    taken = [question for batch in mixed_run.batches for question in batch.fresh_ids]
    state = mixed_run.fresh_questions.state
    assert state.position == len(taken) + len(state.deferred)
    assert all(len(batch.question_ids) == len(set(batch.question_ids)) == 8 for batch in mixed_run.batches)


def test_replay_begins_after_the_threshold_and_not_before(tmp_path):
    trainer = make_trainer(tmp_path, start_rule="threshold", start_threshold=0.5, max_steps=8, learning_rate=3e-4)
    trainer.train()
    trainer.experience.close()
    metrics = read_metrics(tmp_path)[:8]
    above = [line["fresh/pass@1"] > 0.5 for line in metrics]
    first = above.index(True)
    assert 0 < first < 7, "the run must cross the threshold in its middle for this test to mean something"
    assert [line["experience/started"] for line in metrics] == [0.0] * first + [1.0] * (8 - first)
    assert all(line["replay/questions"] == 0 for line in metrics[: first + 1])
    assert all(line["experience/trajectories"] == 0 for line in metrics[:first])
    assert metrics[first + 1]["replay/questions"] > 0


def base_policy_says(trainer, experiences):
    """Log-probs and entropies under the untrained policy, from a forward of its own."""
    model = AutoModelForCausalLM.from_pretrained(chain_base_path())
    said = {}
    for experience in experiences:
        ids = torch.tensor([[*experience.prompt_ids, *experience.response_ids]])
        with torch.no_grad():
            log_probs = model(ids).logits[0, :-1].double().log_softmax(-1)
        part = log_probs[len(experience.prompt_ids) - 1 :]
        taken = part.gather(1, ids[0, len(experience.prompt_ids) :, None])[:, 0]
        said[experience.id] = (taken.numpy(), -(part.exp() * part).sum(-1).mean().item())
    return said


def check_against_base_policy(trainer, minimum):
    stored = [
        trainer.experience.load([experience_id(group.question_id, rollout.response_ids)])[0]
        for group in trainer.committed[0]
        if 0 < group.num_correct < group.size
        for rollout in group.rollouts
        if rollout.correct
    ]
    assert len(stored) >= minimum
    said = base_policy_says(trainer, stored)
    for experience in stored:
        log_probs, entropy = said[experience.id]
        np.testing.assert_allclose(experience.behaviour_log_probs, log_probs, atol=1e-4)
        assert abs(experience.mean_entropy - entropy) < 1e-4


def test_recorded_log_probs_and_entropies_are_those_of_the_policy_that_wrote(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.train()
    check_against_base_policy(trainer, minimum=4)
    trainer.experience.close()


def test_with_two_updates_a_batch_the_record_is_still_of_the_policy_that_wrote(tmp_path):
    # 4 micro-batches of 8 rows: two updates on one generation batch, as the paper's 128 / 64.
    trainer = make_trainer(
        tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=2, steps_per_generation=4, max_steps=6
    )
    trainer.train()
    check_against_base_policy(trainer, minimum=4)
    assert [batch.plan.step for batch in trainer.batches] == [1, 2, 3]
    assert len(replayed_steps(trainer)) == 2
    for step in replayed_steps(trainer):
        rows = rows_of_step(trainer, step)
        fresh = [values["behaviour_log_probs"] for values in rows.values() if not values["replayed"]]
        assert all(any(log_probs) for log_probs in fresh), "two updates need the old log-probs of fresh rows"
        for row, replay in trainer.batches[step - 1].recorded_rows.items():
            if row in rows:
                assert rows[row]["behaviour_log_probs"] == replay.experience.behaviour_log_probs.tolist()
    trainer.experience.close()


def test_batched_scores_equal_scores_one_by_one(mixed_run):
    ids = [key for batch in mixed_run.batches for key in batch.plan.entropies]
    stored: list[Experience] = mixed_run.experience.load(sorted(set(ids))[:12])
    for measure in ("entropy", "negative_log_prob"):
        together = score_candidates(mixed_run, stored, measure=measure, batch_size=5)
        for experience in stored:
            alone = score_candidates(mixed_run, [experience], measure=measure, batch_size=1)
            assert abs(together[experience.id] - alone[experience.id]) < 1e-5


def test_cached_scoring_replays_by_known_entropies_and_notes_those_of_the_training_forward(tmp_path):
    trainer = make_trainer(tmp_path, entropy_scoring="cached", max_steps=4)
    trainer.train()
    assert replayed_steps(trainer)
    for batch in trainer.batches:
        assert batch.plan.entropies == {}
        for key, entropy in batch.replayed_entropies().items():
            usage = trainer.experience.usage(key)
            if usage.entropy_step == batch.plan.step:
                assert usage.entropy == entropy
    replays = [(batch.plan.step, replay.experience.id) for batch in trainer.batches for replay in batch.plan.replays]
    last = {key: step for step, key in replays}
    assert all(trainer.experience.usage(key).entropy_step == step for key, step in last.items())
    trainer.experience.close()


def test_retired_questions_leave_the_fresh_data_where_that_is_asked_for(tmp_path):
    trainer = make_trainer(tmp_path, retired_leave_fresh=True, max_steps=9, replay_ratio=0.25)
    trainer.train()
    retired: set[str] = set()
    for batch, groups in zip(trainer.batches, trainer.committed, strict=True):
        if len(retired) <= 24 - 8:
            assert retired.isdisjoint(batch.fresh_ids)
        retired |= {group.question_id for group in groups if group.num_correct == group.size}
    assert retired
    trainer.experience.close()
