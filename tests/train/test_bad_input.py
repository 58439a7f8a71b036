"""Bad input gets one clear error, with a hint, before anything is trained."""

from __future__ import annotations

import copy

import pytest
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig

from exgrpo import ExGRPOConfig
from exgrpo.assets import chain_base_path
from exgrpo.errors import ConfigError, DataError, ExGRPOError, StoreError, StoreMismatchError

from .conftest import SMALL, make_trainer

CHAIN = [{"prompt": f"{n}+{m}=", "answer": str((n + m) % 10)} for n in range(10) for m in range(10)]


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"replay_ratio": 1.0}, "replay_ratio"),
        ({"replay_ratio": -0.1}, "replay_ratio"),
        ({"num_generations": 1}, "num_generations"),
        ({"num_generations": 5}, "steps_per_generation"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 50}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"generation_kwargs": {"top_p": 0.5}}, "top_p"),
        ({"beta": 0.04}, "beta"),
        ({"use_vllm": True}, "use_vllm"),
        ({"loss_type": "cispo"}, "loss_type"),
        ({"bucket_sigma": 0.0}, "bucket_sigma"),
        ({"bucket_mean": 1.5}, "bucket_mean"),
        ({"trajectory_selection": "lowest"}, "trajectory_selection"),
        ({"start_rule": "window", "start_window": 0}, "start_window"),
        ({"max_uses": 0}, "max_uses"),
        ({"entropy_scoring": "cached", "uncertainty": "negative_log_prob"}, "entropy_scoring"),
        ({"replay_shaping_beta": 0.0}, "shaping_beta"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_setting_that_cannot_work_is_refused_before_a_model_is_loaded(tmp_path, settings, where):
    with pytest.raises(ConfigError, match=r"(?s)expected .* found .*hint: ") as caught:
        ExGRPOConfig(output_dir=str(tmp_path), **{**SMALL, **settings})
    assert where in caught.value.where


def test_a_misspelt_choice_is_answered_with_the_choices(tmp_path):
    with pytest.raises(ConfigError, match="lowest_entropy"):
        ExGRPOConfig(output_dir=str(tmp_path), **{**SMALL, "trajectory_selection": "lowest"})


def refused(tmp_path, error, **settings):
    with pytest.raises(error, match=r"(?s)expected .* found .*hint: ") as caught:
        make_trainer(tmp_path / "refused", **settings)
    return str(caught.value)


def test_a_plain_grpo_config_is_refused(tmp_path):
    def plain(**settings):
        settings.pop("start_rule")
        return GRPOConfig(**settings)

    assert "ExGRPOConfig" in refused(tmp_path, ConfigError, config_class=plain)


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (Dataset.from_list([{"question": "3+4="}] * 20), "column 'prompt'"),
        (Dataset.from_list(CHAIN[:5]), "distinct questions"),
        (Dataset.from_list([CHAIN[0]] * 50), "distinct questions"),
        (Dataset.from_list(CHAIN).to_iterable_dataset(), "IterableDataset"),
        (Dataset.from_list([{**row, "image": "a.png"} for row in CHAIN]), "image"),
    ],
    ids=["no prompt", "too few", "all alike", "a stream", "images"],
)
def test_a_data_set_that_cannot_be_replayed_from_is_refused(tmp_path, dataset, says):
    assert says in refused(tmp_path, DataError, train_dataset=dataset)


def test_an_id_column_that_is_missing_or_has_holes_is_refused(tmp_path):
    data = Dataset.from_list([{**row, "id": None if n == 3 else f"q{n}"} for n, row in enumerate(CHAIN)])
    assert "'uid'" in refused(tmp_path, DataError, train_dataset=data, question_id_column="uid").replace("uid", "'uid'")
    assert "row 3" in refused(tmp_path, DataError, train_dataset=data, question_id_column="id")


def test_a_store_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "experience.sqlite"
    path.write_bytes(b"this is no database" * 100)
    assert str(path) in refused(tmp_path, StoreError, experience_path=str(path))


def test_a_store_in_use_by_another_run_is_refused(tmp_path):
    path = str(tmp_path / "experience.sqlite")
    trainer = make_trainer(tmp_path / "one", experience_path=path)
    try:
        refused(tmp_path, StoreError, experience_path=path)
    finally:
        trainer.experience.close()


def filled_store(tmp_path):
    path = tmp_path / "experience.sqlite"
    trainer = make_trainer(tmp_path / "filler", experience_path=str(path), max_steps=1)
    trainer.train()
    trainer.experience.close()
    return str(path)


def test_a_store_of_another_tokenizer_template_data_set_verifier_or_group_size_is_refused(tmp_path):
    path = filled_store(tmp_path)
    longer, spoken = (AutoTokenizer.from_pretrained(chain_base_path()) for _ in range(2))
    longer.add_tokens(["seven"])
    spoken.chat_template = "{{ messages[0].content }}"
    others = {
        "tokenizer": {"processing_class": longer},
        "template": {"processing_class": spoken},
        "dataset": {"train_dataset": Dataset.from_list(CHAIN)},
        "verifier": {"verifier": "chain@2"},
        "num_rollouts": {"num_generations": 8},
    }
    for field, settings in others.items():
        said = refused(tmp_path, StoreMismatchError, experience_path=path, **copy.copy(settings))
        assert field in said


def test_tools_and_environments_are_refused(tmp_path):
    from exgrpo.train import ExGRPOTrainer

    for name in ("tools", "environment_factory", "rollout_func"):
        with pytest.raises(ExGRPOError, match="one prompt and one response"):
            ExGRPOTrainer(
                str(chain_base_path()),
                lambda completions, **_: [0.0] * len(completions),
                args=ExGRPOConfig(output_dir=str(tmp_path), **SMALL),
                train_dataset=Dataset.from_list(CHAIN),
                **{name: [print]},
            )
