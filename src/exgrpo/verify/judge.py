"""What judges answers: a pool of processes, or this process for verifiers that need no guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from exgrpo.types import Judgement
from exgrpo.verify.pool import VerifierPool, check_lengths
from exgrpo.verify.registry import Verifier, build_verifier, verifier_id
from exgrpo.verify.settings import VerifySettings

Columns = Sequence[Mapping[str, Any]]


class Judge(Protocol):
    """Judges many answers at once."""

    id: str

    def judge(self, responses: Sequence[str], answers: Sequence[str], columns: Columns) -> list[Judgement]:
        """Return a judgement for each response [N], in order."""
        ...

    def faults_of(self, answers: Sequence[str], columns: Columns) -> list[str | None]:
        """Return for each gold answer [N] why no response could be judged against it, None where one can."""
        ...

    def close(self) -> None:
        """Let go of processes; closing twice is harmless."""
        ...


class LocalJudge:
    """Judges in this process, without limits: for verifiers whose work is bounded whatever the response holds.

    Args:
        verifier: one with `bounded`.
    """

    def __init__(self, verifier: Verifier):
        self.id = verifier_id(verifier)
        self._verifier = verifier

    def judge(self, responses: Sequence[str], answers: Sequence[str], columns: Columns) -> list[Judgement]:
        """Return a judgement for each response [N], in order (see `Judge`)."""
        check_lengths(responses, answers, columns)
        return [self._verifier.judge(*task) for task in zip(responses, answers, columns, strict=True)]

    def faults_of(self, answers: Sequence[str], columns: Columns) -> list[str | None]:
        """Return faults of gold answers [N] (see `Judge`)."""
        return [self._verifier.fault_of(*task) for task in zip(answers, columns, strict=True)]

    def close(self) -> None:
        """Do nothing: there are no processes."""


def open_judge(settings: VerifySettings, *, default: str = "math", extra: Mapping[str, Any] | None = None) -> Judge:
    """Return what judges answers as `settings` say.

    Args:
        settings: the verifier, its options and its limits.
        default: the verifier where the settings name none.
        extra: options that come from elsewhere (the template); those of the settings win.

    Raises:
        ConfigError: where the verifier cannot be built.
    """
    name, options = settings.verify_with or default, {**(extra or {}), **settings.options}
    verifier = build_verifier(name, options)
    if getattr(verifier, "bounded", False):
        return LocalJudge(verifier)
    return VerifierPool(
        name,
        options,
        num_workers=settings.verify_workers,
        timeout_s=settings.verify_timeout_s,
        memory_mb=settings.verify_memory_mb,
    )
