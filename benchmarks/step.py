"""What a training step costs against TRL's own trainer on the chain task, and with replay against without.

    python benchmarks/step.py [--json] [--rounds 3]

Trainers run in turn in one process, several steps a turn: the same base policy, questions, batch and length limit. The
learning rate is zero, so that all stay as good as they are and generate alike; replay is on from the second step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from itertools import pairwise
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

from exgrpo.assets import chain_base_path
from exgrpo.tasks.chain import ChainSettings, chain_dataset, chain_reward
from exgrpo.train import ExGRPOConfig, ExGRPOTrainer
from exgrpo.train.compat import quiet_known_warnings

SHARED: dict[str, Any] = {
    "num_generations": 8,
    "per_device_train_batch_size": 64,
    "gradient_accumulation_steps": 8,
    "max_completion_length": 64,
    "learning_rate": 0.0,
    "loss_type": "dr_grpo",
    "scale_rewards": "none",
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "logging_steps": 1,
}


class Clock(TrainerCallback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


def seconds_a_step(name: str, steps: int) -> float:
    """Median seconds of a step of one trainer, its first two left out."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {**SHARED, "output_dir": folder, "max_steps": steps}
        if name == "TRL":
            trainer_class, args = GRPOTrainer, GRPOConfig(**settings)
        else:
            trainer_class = ExGRPOTrainer
            args = ExGRPOConfig(
                **settings, start_rule="immediate", replay_ratio=0.5 if name == "replay" else 0.0, entropy_coef=0.0
            )
        trainer = trainer_class(
            AutoModelForCausalLM.from_pretrained(chain_base_path()),
            chain_reward,
            args=args,
            train_dataset=chain_dataset(ChainSettings(), seed=0, split="train"),
            processing_class=AutoTokenizer.from_pretrained(chain_base_path()),
        )
        trainer.remove_callback(PrinterCallback)
        clock = Clock()
        trainer.add_callback(clock)
        trainer.train()
        if name != "TRL":
            trainer.experience.close()
    return statistics.median(after - before for before, after in pairwise(clock.ends[1:]))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each trainer")
    parser.add_argument("--steps", type=int, default=6, help="steps a turn")
    arguments = parser.parse_args()
    quiet_known_warnings()
    disable_progress_bar()
    times: dict[str, list[float]] = {"TRL": [], "on-policy": [], "replay": []}
    for _ in range(arguments.rounds):
        for name, values in times.items():
            values.append(seconds_a_step(name, arguments.steps))
    ratios = {
        f"{name} / {other}": [a / b for a, b in zip(times[name], times[other], strict=True)]
        for name, other in (("on-policy", "TRL"), ("replay", "TRL"), ("replay", "on-policy"))
    }
    if arguments.json:
        print(json.dumps({"seconds": times, "ratios": ratios}, indent=2))
        return
    for name, values in times.items():
        print(f"{name:22}{statistics.median(values):8.2f} s a step   [{min(values):.2f}, {max(values):.2f}]")
    for name, values in ratios.items():
        print(f"{name:22}{statistics.median(values):8.2f}            [{min(values):.2f}, {max(values):.2f}]")


if __name__ == "__main__":
    main()
