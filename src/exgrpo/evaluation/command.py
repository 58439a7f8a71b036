"""An evaluation from names: load the model and the suite, evaluate, write tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from exgrpo.assets import BUILT_IN_MODELS
from exgrpo.errors import ConfigError
from exgrpo.evaluation.benchmarks import load_suite
from exgrpo.evaluation.engines import TransformersEngine
from exgrpo.evaluation.evaluate import evaluate
from exgrpo.evaluation.summary import SuiteScores
from exgrpo.evaluation.vllm_engine import VLLMEngine


def evaluate_model(
    model: str,
    suite: str,
    *,
    directory: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    limit: int | None = None,
    batch_size: int = 256,
    engine: Literal["transformers", "vllm"] = "transformers",
) -> tuple[SuiteScores, Path]:
    """Return the scores of a model on a suite, and the directory with its responses and tables.

    Args:
        model: a run directory, a model folder, a hub id, or a model that ships with the package.
        suite: see `load_suite`.
        directory: of the evaluation; a stopped one goes on there. Default: `evaluations/<model>-<suite>`.
        overrides: values that win over the suite's.
        limit: at most this many questions per benchmark.
        batch_size: rows that Transformers generates at once. The samples depend on it.
        engine: what writes the responses. Samples of two engines differ, also with one seed.

    Raises:
        ConfigError: for a model or suite that does not exist, or a directory with another evaluation.
        DataError: for questions that cannot be read.
    """
    loaded = load_suite(suite, overrides)
    name = model_path(model)
    directory = directory or Path("evaluations") / f"{model.strip('/').replace('/', '-')}-{loaded.name}"
    writer = VLLMEngine(name) if engine == "vllm" else _transformers_engine(name, batch_size)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, Any] = {}

        def show(benchmark: str, done: int, total: int) -> None:
            if benchmark not in tasks:
                tasks[benchmark] = bars.add_task(benchmark, total=total)
            bars.update(tasks[benchmark], completed=done)

        scores = evaluate(writer, loaded, directory, model=model, engine=engine, limit=limit, progress=show)
    scores.write(directory)
    return scores, directory


def model_path(model: str) -> str:
    """Return what Transformers loads for a run directory, a folder, a hub id, or a built-in name."""
    if model in BUILT_IN_MODELS:
        return str(BUILT_IN_MODELS[model]())
    inside = Path(model) / "model"
    return str(inside) if inside.is_dir() else model


def _transformers_engine(name: str, batch_size: int) -> TransformersEngine:
    disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
        policy = AutoModelForCausalLM.from_pretrained(name, dtype="auto").to(_device())
    except (OSError, ValueError) as error:
        raise ConfigError(
            "model",
            expected="a run directory, a model folder or a hub id that Transformers loads",
            found=f"{name}: {str(error).splitlines()[0]}",
            hint="check the spelling, and the connection for a hub id",
        ) from error
    return TransformersEngine(policy, tokenizer, batch_size=batch_size)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
