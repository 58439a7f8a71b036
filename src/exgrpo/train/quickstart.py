"""The quick start: a small model learns to reason from its own past successes, and is measured before and after."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from exgrpo.assets import quickstart_config
from exgrpo.evaluation.benchmarks import Suite
from exgrpo.evaluation.chain import ChainScores, chain_suite, evaluate_chain
from exgrpo.evaluation.engines import TransformersEngine
from exgrpo.train.run import build_trainer
from exgrpo.train.run_config import load_config
from exgrpo.train.trainer import ExGRPOTrainer

EVALUATION_SAMPLES = 4  # responses per held-out question


@dataclass(frozen=True, slots=True)
class QuickstartSummary:
    """What the quick start measured.

    Attributes:
        before, after: scores on held-out questions of the base policy and of the trained one.
        training_s: seconds of training, evaluation apart.
        steps: updates made.
        directory: the run directory.
    """

    before: ChainScores
    after: ChainScores
    training_s: float
    steps: int
    directory: Path

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as plain values, for JSON."""
        return asdict(self) | {"directory": str(self.directory)}

    def as_text(self) -> str:
        """Return the summary as a table for a person, with the files that the run left."""
        rows = [
            ("Pass@1 on held-out questions", self.before.pass_at_1, self.after.pass_at_1),
            ("valid reasoning among right answers", self.before.valid_share, self.after.valid_share),
        ]
        lines = [f"{'':36}{'before':>22}{'after':>22}"]
        lines += [f"{name:36}{before!s:>22}{after!s:>22}" for name, before, after in rows]
        minutes, seconds = divmod(round(self.training_s), 60)
        return "\n".join(
            [
                "",
                *lines,
                f"\n95 % intervals over {self.after.pass_at_1.n} questions.",
                f"{self.steps} steps in {minutes}:{seconds:02d} minutes.",
                f"\nThe run is in {self.directory}:",
                "  model/             the trained policy",
                "  checkpoint-*/      where exgrpo train config.yaml --resume goes on from",
                "  config.yaml        every setting; exgrpo train runs it again",
                "  metrics.jsonl      a line per step; timing.jsonl has the seconds",
                "  experience.sqlite  questions, trajectories and their history",
                "  held-out/          every answer before and after; exgrpo compare reads both",
                "  held-out.yaml      the questions, for exgrpo eval",
                "  summary.json       this table",
            ]
        )


def quickstart(overrides: Sequence[str] = ()) -> QuickstartSummary:
    """Train the packaged base policy on the chain task, measure it before and after, and return the figures.

    Args:
        overrides: command-line words that change the packaged configuration, such as `--seed 1`.

    Raises:
        ConfigError: for a setting that cannot work, before anything is trained.
    """
    config = load_config(quickstart_config(), ["--output_dir", _unused_directory(), *overrides])
    suite = chain_suite(config.chain, seed=config.training.seed, num_samples=EVALUATION_SAMPLES)
    _say("Questions such as 3+7-5= are worked step by step, modulo 10: 3+7=0;0-5=5;#5")
    with ExitStack() as stack:
        trainer = build_trainer(config, stack)
        suite.write(config.directory / "held-out.yaml")
        _say("Measuring the base policy on questions it will never train on ...")
        before = _evaluate(trainer, suite, config.directory / "held-out" / "before")
        _say(f"  Pass@1 {before.pass_at_1}, valid reasoning {before.valid_share}")
        _say("Training. pass@1 is that of fresh rollouts; once it passes the threshold, past successes are replayed.")
        began = time.monotonic()
        trainer.train()
        training_s = time.monotonic() - began
        trainer.save_model(str(config.directory / "model"))
        _say("Measuring the trained policy on the same questions ...")
        after = _evaluate(trainer, suite, config.directory / "held-out" / "after")
    summary = QuickstartSummary(before, after, training_s, trainer.state.global_step, config.directory)
    (config.directory / "summary.json").write_text(json.dumps(summary.as_dict(), indent=2), encoding="utf-8")
    return summary


def _evaluate(trainer: ExGRPOTrainer, suite: Suite, directory: Path) -> ChainScores:
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task("  responses", total=None)
        return evaluate_chain(
            TransformersEngine(trainer.model, trainer.tokenizer),
            suite,
            directory,
            model=directory.name,
            progress=lambda _, done, total: bars.update(bar, completed=done, total=total),
        )


def _unused_directory() -> str:
    taken = {path.name for path in Path("runs").glob("quickstart-*")}
    return str(Path("runs") / next(name for n in count(1) if (name := f"quickstart-{n}") not in taken))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
