"""Without replay the trainer is TRL's: same losses, same weights, through both trainers' real training loops."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from exgrpo.assets import chain_base_path

from .conftest import make_trainer

ONE_UPDATE: dict[str, int] = {}
TWO_UPDATES = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_generation": 4}


def train(directory, trainer_class, config_class, **settings):
    # Without shuffling both draw the questions in the order of the data set.
    trainer = make_trainer(
        directory, trainer_class=trainer_class, config_class=config_class, shuffle_dataset=False, **settings
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return losses, weights, trainer


@pytest.mark.parametrize("loss_type", ["dr_grpo", "grpo", "bnpo", "dapo"])
@pytest.mark.parametrize("updates", [ONE_UPDATE, TWO_UPDATES], ids=["one update", "two updates"])
def test_ratio_zero_equals_grpo_trainer(tmp_path, loss_type, updates):
    shared = {
        "loss_type": loss_type,
        "max_steps": 4,
        "entropy_coef": 0.01,
        "lr_scheduler_type": "constant",
        # Plain gradient descent: weights differ as gradients do, while Adam makes much of rounding errors near zero.
        "optim": "sgd",
        "learning_rate": 0.1,
        "scale_rewards": "none" if loss_type == "dr_grpo" else "group",
        **updates,
    }
    ours, our_weights, trainer = train(
        tmp_path / "ours", _ours(), _our_config(), replay_ratio=0.0, logging_steps=1, **shared
    )
    trainer.experience.close()
    shared["logging_steps"] = 1
    theirs, their_weights, _ = train(tmp_path / "theirs", GRPOTrainer, _plain_config(), **shared)
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert any(loss != 0 for loss in theirs)
    torch.testing.assert_close(our_weights, their_weights, atol=1e-6, rtol=0)
    assert (their_weights - untrained()).abs().max() > 1e-4


def untrained():
    model = AutoModelForCausalLM.from_pretrained(chain_base_path())
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _ours():
    from exgrpo.train import ExGRPOTrainer

    return ExGRPOTrainer


def _our_config():
    from exgrpo.train import ExGRPOConfig

    return ExGRPOConfig


def _plain_config():
    def make(**settings):
        settings.pop("start_rule")
        return GRPOConfig(**settings)

    return make
