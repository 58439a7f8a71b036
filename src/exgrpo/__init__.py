"""ExGRPO: reinforcement learning of reasoning models that learn from their own experience (arXiv 2510.02245).

The public names load on first use, so that importing the package needs neither torch nor TRL.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exgrpo.experience import ExperienceReplay, ReplaySettings
    from exgrpo.train import ExGRPOConfig, ExGRPOTrainer

__version__ = version("exgrpo")
__all__ = ["ExGRPOConfig", "ExGRPOTrainer", "ExperienceReplay", "ReplaySettings"]

_HOME = {
    "ExGRPOConfig": "exgrpo.train",
    "ExGRPOTrainer": "exgrpo.train",
    "ExperienceReplay": "exgrpo.experience",
    "ReplaySettings": "exgrpo.experience",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
