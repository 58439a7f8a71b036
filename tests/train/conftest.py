"""A small but real run: the policy that ships, a few chain questions, every step through `trainer.train()`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

from exgrpo.assets import chain_base_path
from exgrpo.tasks.chain import ChainSettings, chain_dataset, chain_reward
from exgrpo.train import ExGRPOConfig, ExGRPOTrainer, MetricsWriter

SMALL: dict[str, Any] = {
    "num_generations": 4,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 40,
    "max_steps": 3,
    "learning_rate": 1e-4,
    "start_rule": "immediate",
    "entropy_coef": 0.0,
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 5,
}
EASY = ChainSettings(chain_min_terms=2, chain_max_terms=4, chain_num_questions=24, chain_num_held_out=8)


class WatchedTrainer(ExGRPOTrainer):
    """The real trainer, which also notes what goes through it."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.batches: list[Any] = []
        self.loss_inputs: list[dict[str, torch.Tensor]] = []
        self.losses: list[float] = []
        self.committed: list[Any] = []

    def rows_ready(self, rows: Any, output: dict[str, Any]) -> dict[str, Any]:
        self.batches.append(self._batch)
        return super().rows_ready(rows, output)

    def policy_loss(self, log_probs: Any, entropies: Any, mask: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.loss_inputs.append({name: value.clone() for name, value in inputs.items() if torch.is_tensor(value)})
        loss = super().policy_loss(log_probs, entropies, mask, inputs)
        self.losses.append(loss.item())
        return loss

    def _commit(self) -> None:
        batch = self._batch
        self.committed.append(batch.groups(success_reward=self.args.success_reward, is_truncated=self.is_truncated))
        super()._commit()


def make_trainer(
    directory: Path, *, trainer_class: Any = WatchedTrainer, config_class: Any = ExGRPOConfig, **overrides: Any
) -> Any:
    """Return a trainer on easy chain questions that is ready to train."""
    dataset = overrides.pop("train_dataset", None) or chain_dataset(EASY, seed=0, split="train")
    extra = {name: overrides.pop(name) for name in ("peft_config", "experience") if name in overrides}
    reward = overrides.pop("reward_funcs", chain_reward)
    tokenizer = overrides.pop("processing_class", None) or AutoTokenizer.from_pretrained(chain_base_path())
    args = config_class(output_dir=str(directory), **{**SMALL, **overrides})
    trainer = trainer_class(
        AutoModelForCausalLM.from_pretrained(chain_base_path()),
        reward,
        args=args,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[MetricsWriter(directory)],
        **extra,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Six steps with replay from the first on; shared by the tests that only look at it."""
    trainer = make_trainer(tmp_path_factory.mktemp("mixed"), max_steps=6)
    trainer.train()
    yield trainer
    trainer.experience.close()


def read_metrics(directory: str | Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return the lines of a metrics file."""
    return [json.loads(line) for line in (Path(directory) / name).read_text().splitlines()]
