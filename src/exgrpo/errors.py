"""The exception tree: an error says where, what was expected, what was found, and what to do next."""

from __future__ import annotations


class ExGRPOError(Exception):
    """An error with a place, an expectation, a finding and a hint.

    Args:
        where: the setting, file or call at fault, as the user knows it (`replay_ratio`, `runs/a/experience.sqlite`).
        expected: what would have been accepted.
        found: what was there instead.
        hint: the next action that mends it.
    """

    exit_status = 1  # of the command line

    def __init__(self, where: str, *, expected: str, found: object, hint: str):
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint
        super().__init__(f"{where}: expected {expected}, found {found}\n  hint: {hint}")


class ConfigError(ExGRPOError, ValueError):
    """A setting has a value that cannot work, or does not exist."""


class DataError(ExGRPOError, ValueError):
    """A data set, a question or a rollout is not of the form that the method needs."""


class StoreError(ExGRPOError):
    """The experience store cannot be read, written or opened."""


class StoreLockedError(StoreError):
    """Another process owns the store for writing."""


class StoreMismatchError(StoreError):
    """The store was made with another tokenizer, data set, verifier or group size than this run has."""


class StepOrderError(StoreError):
    """A commit or a rollback names a step that does not follow the store's own."""


class NotFiniteError(ExGRPOError):
    """Training has come to numbers that are not finite, and does not get away from them."""


class AlarmError(ExGRPOError):
    """An alarm went off that stops the run."""


class StoppedError(ExGRPOError):
    """A run was asked to stop and did so after a whole step, with a checkpoint."""

    exit_status = 143  # what a shell reports for SIGTERM
