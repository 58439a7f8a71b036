"""What a run does: the configuration file, command-line overrides, and back to a file."""

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
from trl import ModelConfig, TrlParser

from exgrpo.assets import BUILT_IN_MODELS
from exgrpo.errors import ConfigError
from exgrpo.tasks.chain import ChainSettings
from exgrpo.tasks.settings import DataSettings
from exgrpo.train.compat import quiet_known_warnings
from exgrpo.train.config import ExGRPOConfig
from exgrpo.verify import VerifySettings


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything that a configuration file and the command line say.

    Attributes:
        data: where questions come from and how they are asked.
        chain: which chains, where a source is the chain task.
        verify: how answers are judged, and what verdicts are worth.
        model: which model, in which precision, with which adapter (TRL's ModelConfig).
        training: everything else.
    """

    data: DataSettings
    chain: ChainSettings
    verify: VerifySettings
    model: ModelConfig
    training: ExGRPOConfig

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.training.output_dir)


_PARTS: dict[str, Any] = {
    "data": DataSettings,
    "chain": ChainSettings,
    "verify": VerifySettings,
    "model": ModelConfig,
    "training": ExGRPOConfig,
}


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
    quiet_known_warnings()
    # Abbreviated names would hide a misspelt one, and argparse would end the process over a bad value.
    parser = TrlParser(list(_PARTS.values()), allow_abbrev=False, exit_on_error=False)
    try:
        *parts, unknown = parser.parse_args_and_config(
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
    return RunConfig(**dict(zip(_PARTS, parts, strict=True)))


def _unknown_name(word: str, names: Sequence[str]) -> ConfigError:
    name = word.lstrip("-").split("=")[0]
    close = difflib.get_close_matches(name, names, n=3)
    known = "docs/settings.md lists them, besides those of trl.GRPOConfig and trl.ModelConfig"
    hint = f"did you mean {' or '.join(close)}?" if close else known
    return ConfigError("configuration", expected="a known name", found=name, hint=hint)


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


def write_config(config: RunConfig, path: Path) -> None:
    """Write every setting as YAML; `load_config` reads it back."""
    values: dict[str, Any] = {}
    for part in (getattr(config, name) for name in _PARTS):
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
