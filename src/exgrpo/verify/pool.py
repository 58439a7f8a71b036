"""A pool of worker processes in which verifiers run, so that no answer can stop or slow a run."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from exgrpo.errors import ConfigError, DataError
from exgrpo.types import Judgement
from exgrpo.verify import worker
from exgrpo.verify.registry import build_verifier, verifier_id

_START_LIMIT_S = 120.0


class VerifierPool:
    """Judges answers in processes that are killed at a hard wall-clock limit and replaced.

    Verdicts come back in the order of the responses; an answer that hangs, eats memory or ends its process has no
    influence on the others. Time-outs by signal, as verifiers have them built in, fail in threads and do not stop every
    expression (Math-Verify issues 50, 55 and 65).

    Args:
        name: the verifier (see `build_verifier`).
        options: its options.
        num_workers: processes.
        timeout_s: seconds an answer may take, counted from when its worker takes it.
        memory_mb: address space that a worker may take while it judges, in MiB, 0 for no limit. Linux only.

    Raises:
        ConfigError: where the verifier cannot be built, here or in a worker.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        num_workers: int = 2,
        timeout_s: float = 10.0,
        memory_mb: int = 2048,
    ):
        self.id = verifier_id(build_verifier(name, options))
        self._timeout_s = timeout_s
        context = _Context()
        # The server imports once what every worker needs; a replacement then takes milliseconds.
        context.set_forkserver_preload(["exgrpo.verify.worker", "math_verify"])
        self._pool = ProcessPool(
            max_workers=num_workers,
            initializer=worker.start,
            initargs=(name, dict(options or {}), memory_mb, list(sys.path)),
            context=context,
        )
        atexit.register(self.close)
        self._check_start(memory_mb)

    def judge(
        self, responses: Sequence[str], answers: Sequence[str], columns: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Judgement]:
        """Return a judgement for each response [N], in order.

        Args:
            responses: [N] texts.
            answers: [N] gold answers.
            columns: [N] other columns of each question's row.

        Raises:
            DataError: where the three are not of one length.
        """
        rows = columns if columns is not None else [{}] * len(responses)
        check_lengths(responses, answers, rows)
        tasks = zip(responses, answers, rows, strict=True)
        return [self._outcome(future) for future in self._schedule(worker.judge, tasks)]

    def faults_of(self, answers: Sequence[str], columns: Sequence[Mapping[str, Any]] | None = None) -> list[str | None]:
        """Return for each gold answer [N] why no response could be judged against it, None where one can."""
        rows = columns if columns is not None else [{}] * len(answers)
        faults: list[str | None] = []
        for future in self._schedule(worker.fault_of, zip(answers, rows, strict=True)):
            try:
                faults.append(future.result())
            except TimeoutError:
                faults.append(f"judging it against itself took more than {self._timeout_s:g} s")
            except ProcessExpired:
                faults.append("judging it against itself ended the worker process")
        return faults

    def close(self) -> None:
        """End the worker processes; closing twice is harmless."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()
        atexit.unregister(self.close)

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _schedule(self, function: Any, tasks: Any) -> list[ProcessFuture[Any]]:
        return [self._pool.schedule(function, args=task, timeout=self._timeout_s) for task in tasks]

    def _outcome(self, future: ProcessFuture[Judgement]) -> Judgement:
        try:
            judgement: Judgement = future.result()
        except TimeoutError:
            return Judgement("timed_out", 0.0, None, f"more than {self._timeout_s:g} s")
        except ProcessExpired as error:
            return Judgement("crashed", 0.0, None, f"the worker process ended with exit code {error.exitcode}")
        except KeyboardInterrupt:
            self.close()
            raise
        return judgement

    def _check_start(self, memory_mb: int) -> None:
        try:
            self._pool.schedule(worker.warm_up, timeout=_START_LIMIT_S).result()
        except (TimeoutError, ProcessExpired, RuntimeError, MemoryError) as error:
            self.close()
            raise ConfigError(
                "verifier pool",
                expected="worker processes that start",
                found=f"{type(error).__name__}: {error}",
                hint=f"if memory is short, raise verify_memory_mb above {memory_mb}; else the message stands above",
            ) from error


def check_lengths(responses: Sequence[str], answers: Sequence[str], columns: Sequence[Mapping[str, Any]]) -> None:
    """Raise a DataError unless there is one answer and one row for each response."""
    if not len(responses) == len(answers) == len(columns):
        raise DataError(
            "verification",
            expected="as many answers and rows as responses",
            found=f"{len(responses)} responses, {len(answers)} answers, {len(columns)} rows",
            hint="pass one of each per response",
        )


class _WorkerProcess(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802 - the name that multiprocessing calls
        with _without_main():
            return ForkServerProcess._Popen(process_obj)


class _Context(ForkServerContext):
    """Starts workers from a clean server process: a fork of the trainer would inherit its threads' locks."""

    Process = _WorkerProcess


_main_lock = threading.Lock()


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new process from running the user's script again.

    multiprocessing imports the main module in each child, which in a training script without the `__main__` guard would
    train again. Workers need nothing of it.
    """
    main = sys.modules["__main__"]
    with _main_lock:
        hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
        main.__spec__ = None
        try:
            yield
        finally:
            vars(main).update(hidden)
