"""Files that ship with the package."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def chain_base_path() -> Path:
    """Return the folder of the chain task's small base policy, in the Transformers format."""
    return _HERE / "chain_base"


def quickstart_config() -> Path:
    """Return the configuration of the quick start."""
    return _HERE / "chain.yaml"


def paper_suite() -> Path:
    """Return the suite file of the paper's nine benchmarks."""
    return _HERE / "paper_suite.yaml"


# Name that stands for a model in a configuration or on the command line -> where it is.
BUILT_IN_MODELS = {"chain-base": chain_base_path}
