"""A training run from a configuration: check everything, train, leave everything in one directory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trl import get_peft_config, get_quantization_config

from exgrpo.errors import ConfigError
from exgrpo.tasks.questions import to_dataset
from exgrpo.train.callbacks import MetricsWriter, ProgressLines
from exgrpo.train.checkpoint import last_checkpoint
from exgrpo.train.prepare import PreparedData, load_tokenizer, open_run_judge, prepare_data, smoke_rollout
from exgrpo.train.run_config import RunConfig, resolve_model, write_config
from exgrpo.train.termination import StopOnTermination
from exgrpo.train.trainer import ExGRPOTrainer
from exgrpo.verify import Judge, reward_functions


def train(config: RunConfig, *, resume: bool = False) -> Path:
    """Train as `config` says and return the run directory, with the final model in its folder `model`.

    Args:
        config: what to do.
        resume: whether to go on from the last checkpoint in the run directory.
    """
    with ExitStack() as stack:
        trainer = build_trainer(config, stack, resume=resume)
        stop = StopOnTermination(trainer)
        trainer.add_callback(stop)
        with stop.listening():
            trainer.train(resume_from_checkpoint=resume)
        stop.raise_if_stopped()
        trainer.save_model(str(config.directory / "model"))
    return config.directory


def build_trainer(config: RunConfig, stack: ExitStack, *, resume: bool = False) -> ExGRPOTrainer:
    """Return a trainer that is ready to train; its run directory exists and holds the resolved configuration.

    Args:
        config: what to do.
        stack: closes what the trainer holds (worker processes, the experience) when it is left.
        resume: whether the run goes on from a checkpoint.

    Raises:
        ConfigError: for settings that cannot work, or a run directory that is used already.
        DataError: for questions that cannot be asked or judged, or a smoke rollout in which nothing parses.
    """
    disable_progress_bar()  # a model of this kind loads faster than its bar
    if resume:
        last_checkpoint(config.directory)
    else:
        refuse_used_directory(config.directory)
    tokenizer = load_tokenizer(config)
    judge = open_run_judge(config)
    stack.callback(judge.close)
    data = prepare_data(config, judge, tokenizer)
    trainer = _trainer(config, data, judge, tokenizer)
    stack.callback(trainer.experience.close)
    trainer.remove_callback(PrinterCallback)
    if not resume:
        smoke_rollout(config, data.train, judge, trainer.model, tokenizer)
    write_config(config, config.directory / "config.yaml")
    return trainer


def refuse_used_directory(directory: Path) -> None:
    """Raise a ConfigError where a run directory holds a run already."""
    if (directory / "metrics.jsonl").exists():
        raise ConfigError(
            "output_dir",
            expected="a directory without a run",
            found=f"{directory}, which holds metrics of an earlier run",
            hint="go on with --resume, or name another output_dir",
        )


def _trainer(config: RunConfig, data: PreparedData, judge: Judge, tokenizer: PreTrainedTokenizerBase) -> ExGRPOTrainer:
    training, model = config.training, config.model
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype or "float32",
    }
    training.disable_tqdm = True  # the progress lines take the bar's place
    training.question_id_column = "id"  # prepared questions have one
    functions, training.reward_weights = reward_functions(
        judge, config.verify, max_tokens=training.max_completion_length, thinks=data.thinks, boxed=data.boxed
    )
    config.directory.mkdir(parents=True, exist_ok=True)
    return ExGRPOTrainer(
        resolve_model(model.model_name_or_path),
        functions,
        args=training,
        train_dataset=to_dataset(data.train),
        eval_dataset=to_dataset(data.validation) if data.validation and training.eval_strategy != "no" else None,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
        callbacks=[MetricsWriter(config.directory), ProgressLines()],
    )
