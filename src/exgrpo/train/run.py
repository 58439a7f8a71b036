"""A training run from a configuration file: read it, check it, train, leave everything in one directory."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoTokenizer, PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from exgrpo.assets import chain_base_path
from exgrpo.errors import ConfigError
from exgrpo.tasks.chain import ChainSettings, chain_dataset, chain_reward
from exgrpo.train.callbacks import MetricsWriter, ProgressLines
from exgrpo.train.checkpoint import last_checkpoint
from exgrpo.train.compat import quiet_known_warnings
from exgrpo.train.config import ExGRPOConfig
from exgrpo.train.trainer import ExGRPOTrainer

BUILT_IN_MODELS = {"chain-base": chain_base_path}


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything that a configuration file and the command line say.

    Attributes:
        task: the questions.
        model: which model, in which precision, with which adapter (TRL's ModelConfig).
        training: everything else.
    """

    task: ChainSettings
    model: ModelConfig
    training: ExGRPOConfig

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.training.output_dir)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the configuration in a YAML file with command-line overrides, by TRL's convention (`TrlParser`).

    Args:
        path: YAML file with a flat mapping of argument names to values.
        overrides: words such as `--learning_rate 3e-5`; they win over the file.

    Raises:
        ConfigError: for a file that cannot be read, an unknown name, or a value that cannot work.
    """
    if not Path(path).is_file():
        raise ConfigError("configuration file", expected="a YAML file", found=str(path), hint="see configs/ for some")
    # Abbreviated names would hide a misspelt one, and argparse would end the process over a bad value.
    parser = TrlParser([ChainSettings, ModelConfig, ExGRPOConfig], allow_abbrev=False, exit_on_error=False)
    try:
        task, model, training, unknown = parser.parse_args_and_config(
            ["--config", str(path), *overrides], return_remaining_strings=True
        )
    except ConfigError:
        raise
    except (ValueError, TypeError, argparse.ArgumentError, yaml.YAMLError) as error:
        raise ConfigError(
            str(path), expected="values that TRL and transformers accept", found=str(error), hint="mend that value"
        ) from error
    if unknown:
        raise _unknown_name(unknown[0], [action.dest for action in parser._actions])
    return RunConfig(task, model, training)


def _unknown_name(word: str, names: Sequence[str]) -> ConfigError:
    name = word.lstrip("-").split("=")[0]
    close = difflib.get_close_matches(name, names, n=3)
    known = "the names are those of ExGRPOConfig, trl.ModelConfig and ChainSettings"
    hint = f"did you mean {' or '.join(close)}?" if close else known
    return ConfigError("configuration", expected="a known name", found=name, hint=hint)


def build_trainer(config: RunConfig, *, resume: bool = False) -> ExGRPOTrainer:
    """Return a trainer that is ready to train; its run directory exists and holds the resolved configuration."""
    quiet_known_warnings()
    disable_progress_bar()  # a model of this kind loads faster than its bar
    training, model = config.training, config.model
    if resume:
        last_checkpoint(config.directory)
    else:
        refuse_used_directory(config.directory)
    name = resolve_model(model.model_name_or_path)
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype or "float32",
    }
    training.disable_tqdm = True  # the progress lines take the bar's place
    tokenizer = AutoTokenizer.from_pretrained(
        name, revision=model.model_revision, padding_side="left", trust_remote_code=training.trust_remote_code
    )
    config.directory.mkdir(parents=True, exist_ok=True)
    trainer = ExGRPOTrainer(
        name,
        chain_reward,
        args=training,
        train_dataset=chain_dataset(config.task, seed=training.seed, split="train"),
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
        callbacks=[MetricsWriter(config.directory), ProgressLines()],
    )
    trainer.remove_callback(PrinterCallback)
    write_config(config, config.directory / "config.yaml")
    return trainer


def train(config: RunConfig, *, resume: bool = False) -> Path:
    """Train as `config` says and return the run directory, with the final model in its folder `model`.

    Args:
        config: what to do.
        resume: whether to go on from the last checkpoint in the run directory.
    """
    trainer = build_trainer(config, resume=resume)
    with trainer.experience:
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model(str(config.directory / "model"))
    return config.directory


def resolve_model(name: str | None) -> str:
    """Return the path of a model that ships with the package, or the name as it is.

    Raises:
        ConfigError: where there is no name.
    """
    if not name:
        raise ConfigError(
            "model_name_or_path",
            expected="a model folder, a hub id, or one that ships with the package",
            found="nothing",
            hint=f"the package has {', '.join(BUILT_IN_MODELS)}",
        )
    return str(BUILT_IN_MODELS[name]()) if name in BUILT_IN_MODELS else name


def refuse_used_directory(directory: Path) -> None:
    """Raise a ConfigError where a run directory holds a run already."""
    if (directory / "metrics.jsonl").exists():
        raise ConfigError(
            "output_dir",
            expected="a directory without a run",
            found=f"{directory}, which holds metrics of an earlier run",
            hint="go on with --resume, or name another output_dir",
        )


def write_config(config: RunConfig, path: Path) -> None:
    """Write every setting as YAML; `load_config` reads it back."""
    values: dict[str, Any] = {}
    for part in (config.task, config.model, config.training):
        values |= {field.name: _plain(getattr(part, field.name)) for field in dataclasses.fields(part) if field.init}
    values["generation_batch_size"] = None  # follows from steps_per_generation; TRL refuses both
    path.write_text(yaml.safe_dump(values, sort_keys=True), encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
