"""Verifiers by name: those that ship with the package, and functions of the user's."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from exgrpo.errors import ConfigError
from exgrpo.types import Judgement
from exgrpo.verify.custom import CustomVerifier

# Imported when asked for: Math-Verify and reasoning-gym take a second.
BUILT_IN = {
    "math": "exgrpo.verify.math:MathVerifier",
    "choice": "exgrpo.verify.choice:ChoiceVerifier",
    "exact": "exgrpo.verify.exact:ExactVerifier",
    "numeric": "exgrpo.verify.exact:NumericVerifier",
    "gym": "exgrpo.verify.gym:GymVerifier",
    "chain": "exgrpo.tasks.chain:ChainVerifier",
}


class Verifier(Protocol):
    """Judges a response against a gold answer.

    It runs in a worker process, where it may hang, crash or eat memory, unless it has an attribute `bounded` that is
    true: the promise that its work is linear in the response, whatever that holds.
    """

    name: str
    version: str

    def judge(self, response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
        """Return the verdict on a response.

        Args:
            response: what the policy wrote, special tokens apart.
            answer: the gold answer.
            columns: the other columns of the question's row.
        """
        ...

    def fault_of(self, answer: str, columns: Mapping[str, Any]) -> str | None:
        """Return why no response could be judged against this gold answer, None where one can."""
        ...


def build_verifier(name: str, options: Mapping[str, Any] | None = None) -> Verifier:
    """Return a verifier.

    Args:
        name: a key of `BUILT_IN`, or `module:function` (see `CustomVerifier`).
        options: its options.

    Raises:
        ConfigError: for an unknown name, a missing package, or an option it does not have.
    """
    if name in BUILT_IN:
        make = import_object(BUILT_IN[name], "verify_with")
    elif ":" in name:
        make = partial(CustomVerifier, name, import_object(name, "verify_with"))
    else:
        known = ", ".join(BUILT_IN)
        raise ConfigError(
            "verify_with", expected=f"{known}, or module:function", found=name, hint="see docs/verifiers.md"
        )
    _check_options(name, make, options or {})
    return cast(Verifier, make(**(options or {})))


def verifier_id(verifier: Verifier) -> str:
    """Return what goes into the record: `name@version`."""
    return f"{verifier.name}@{verifier.version}"


def import_object(path: str, where: str) -> Callable[..., Any]:
    """Return what `module:name` names; modules beside the working directory are found too.

    Raises:
        ConfigError: where there is no such thing, or it cannot be called.
    """
    module_name, _, attribute = path.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            where,
            expected=f"something to call at {path}",
            found=f"{type(error).__name__}: {error}",
            hint="check the spelling, run from the folder that holds the module, and install what it imports",
        ) from error
    if not callable(found):
        raise ConfigError(where, expected=f"something to call at {path}", found=type(found).__name__, hint="name it")
    return cast(Callable[..., Any], found)


def _check_options(name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    known = list(inspect.signature(make).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(
            "verify_options",
            expected=f"options of {name}: {', '.join(known) or 'it has none'}",
            found=", ".join(unknown),
            hint="see docs/verifiers.md",
        )
