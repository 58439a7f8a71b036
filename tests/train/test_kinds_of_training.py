"""What people do with TRL works with replay too: conversations, adapters, several rewards, completion tables."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer

from exgrpo.assets import chain_base_path
from exgrpo.errors import ConfigError
from exgrpo.tasks.chain import chain_dataset, check_answer

from .conftest import EASY, make_trainer, read_metrics


def replayed(trainer):
    return [replay for batch in trainer.batches for replay in batch.plan.replays]


def test_conversations_are_replayed_with_the_template_around_them(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(chain_base_path())
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    questions = chain_dataset(EASY, seed=0, split="train")
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in questions]
    )

    def reward(prompts, completions, **_):
        pairs = zip(prompts, completions, strict=True)
        return [float(check_answer(prompt[-1]["content"], said[0]["content"])) for prompt, said in pairs]

    trainer = make_trainer(tmp_path, train_dataset=data, reward_funcs=reward, processing_class=tokenizer, max_steps=4)
    trainer.train()
    assert replayed(trainer)
    for replay in replayed(trainer):
        text = tokenizer.decode(replay.experience.prompt_ids)
        assert text in {row["prompt"] for row in questions}
    trainer.experience.close()


def test_an_adapter_learns_from_replay_and_the_base_stays(tmp_path):
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make_trainer(tmp_path, peft_config=config, max_steps=4, learning_rate=1e-3)
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert replayed(trainer)
    changed = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora" in name for name in changed)
    trainer.experience.close()


def test_several_weighted_rewards_are_summed_and_a_replayed_row_keeps_its_recorded_sum(tmp_path):
    def right(prompts, completions, **_):
        return [float(check_answer(prompt, text)) for prompt, text in zip(prompts, completions, strict=True)]

    def brief(completions, **_):
        return [0.5 if len(text) < 15 else None for text in completions]

    trainer = make_trainer(
        tmp_path, reward_funcs=[brief, right], reward_weights=[0.0, 2.0], success_reward=2.0, max_steps=4
    )
    trainer.train()
    assert replayed(trainer)
    for batch in trainer.batches:
        for row, replay in batch.recorded_rows.items():
            assert batch.generated.rewards[row].item() == replay.experience.reward == 2.0
    trainer.experience.close()


def test_a_row_that_no_reward_function_judges_is_unparsed_and_teaches_nothing(tmp_path):
    def judges_no_zeros(prompts, completions, **_):
        pairs = zip(prompts, completions, strict=True)
        return [None if text.endswith("#0") else float(check_answer(prompt, text)) for prompt, text in pairs]

    trainer = make_trainer(tmp_path, reward_funcs=judges_no_zeros, max_steps=3)
    trainer.train()
    rollouts = [rollout for groups in trainer.committed for group in groups for rollout in group.rollouts]
    unparsed = [rollout for rollout in rollouts if rollout.verdict == "unparsed"]
    assert unparsed
    assert not any(rollout.correct for rollout in unparsed)
    assert {"correct", "wrong"} < {rollout.verdict for rollout in rollouts}
    trainer.experience.close()


def test_completion_tables_have_a_line_for_replayed_rows_too(tmp_path):
    def reward(prompts, completions, log_extra=None, **_):
        log_extra("ending", [text[-2:] for text in completions])
        return [float(check_answer(prompt, text)) for prompt, text in zip(prompts, completions, strict=True)]

    trainer = make_trainer(tmp_path, reward_funcs=reward, log_completions=True, num_completions_to_print=0, max_steps=3)
    trainer.train()
    assert replayed(trainer)
    table = pd.read_parquet(tmp_path / "completions" / "completions_00003.parquet")
    assert len(table) == trainer.args.generation_batch_size
    assert table["ending"].isna().sum() == len(trainer.batches[-1].plan.replays)
    judged = table[table["ending"].notna()]
    assert (judged["completion"].str[-2:] == judged["ending"]).all()
    trainer.experience.close()


def test_a_run_can_go_on_from_the_experience_of_another(tmp_path):
    first = make_trainer(tmp_path / "first", max_steps=2)
    first.train()
    trajectories = first.experience.status().trajectories
    first.experience.close()
    path = str(tmp_path / "first" / "experience.sqlite")
    second = make_trainer(tmp_path / "second", experience_path=path, max_steps=1)
    assert second.experience.status().trajectories == trajectories
    second.train()
    assert second.batches[0].plan.step == 3
    assert replayed(second)
    second.experience.close()
    third = make_trainer(tmp_path / "first")
    with pytest.raises(ConfigError, match=r"(?s)earlier run.*hint"):
        third.train()
    third.experience.close()


def test_experience_in_memory_leaves_no_file(tmp_path):
    trainer = make_trainer(tmp_path, experience_path=":memory:", max_steps=2)
    trainer.train()
    assert replayed(trainer)
    assert not list(tmp_path.glob("*.sqlite*"))


def test_evaluation_goes_the_way_of_trl_and_commits_nothing(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.train()
    step = trainer.experience.status().step
    held_out = chain_dataset(EASY, seed=0, split="held_out")
    metrics = trainer.evaluate(held_out)
    assert 0 <= metrics["eval_reward"] <= 1
    assert trainer.experience.status().step == step
    assert "eval_reward" in read_metrics(tmp_path)[-1]
    trainer.experience.close()
