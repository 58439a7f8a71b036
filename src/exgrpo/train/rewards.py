"""What reward functions return, looked at before anything is learnt from it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from exgrpo.errors import DataError


def checked_rewards(reward_funcs: Any) -> Any:
    """Return reward functions as TRL takes them, the plain ones with a check of what they return.

    Models, names of models and coroutines are left as they are.
    """
    if isinstance(reward_funcs, (list, tuple)):
        return [_checked(function) for function in reward_funcs]
    return _checked(reward_funcs)


def _checked(function: Any) -> Any:
    if not callable(function) or isinstance(function, nn.Module) or inspect.iscoroutinefunction(function):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    return _Checked(function, name)


class _Checked:
    def __init__(self, function: Callable[..., Any], name: str):
        functools.update_wrapper(self, function)
        self.__name__ = name
        self._function = function

    def __call__(self, *args: Any, completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
        rewards = self._function(*args, completions=completions, **kwargs)
        where = f"reward function {self.__name__!r}"
        if not hasattr(rewards, "__len__") or len(rewards) != len(completions):
            found = f"{len(rewards)} of them" if hasattr(rewards, "__len__") else type(rewards).__name__
            raise DataError(
                where,
                expected=f"a list of {len(completions)} rewards, one per completion",
                found=found,
                hint="return None or nan where a completion has no reward",
            )
        return [self._number(reward, number, where) for number, reward in enumerate(rewards)]

    def _number(self, reward: Any, number: int, where: str) -> float | None:
        if reward is None:
            return None
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = math.inf
        if math.isinf(value):
            raise DataError(
                f"{where}, completion {number}",
                expected="a finite number, or None or nan for no reward",
                found=repr(reward),
                hint="an infinite advantage would break every weight: bound what the function returns",
            )
        return value
