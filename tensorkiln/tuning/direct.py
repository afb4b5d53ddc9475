"""Jobs for workers on which only the runtime package is installed, not this compiler.

A job of `tensorkiln.scale` arrives on a worker as a call of `scale.jobs.answer`, which such a
worker cannot import. `Direct` submits the job's own function in its place, and turns what that
returns or raises into an answer on this side.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from contextlib import suppress
from typing import Any

from tensorkiln.scale.jobs import answer


class Direct(Executor):
    """An executor for `run_jobs` that wraps another one, whose workers need not have
    `tensorkiln.scale`: the answer is built in this process from what the worker returned."""

    def __init__(self, executor: Executor):
        self._executor = executor

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of an answer. A call of `scale.jobs.answer` becomes a call of the job's own
        function; any other function is passed to the wrapped executor unchanged."""
        if fn is not answer:
            return self._executor.submit(fn, *args, **kwargs)
        run, arguments = args
        outer = _Answered(self._executor.submit(run, *arguments))
        return outer


class _Answered(Future[Any]):
    """The future of a job's answer, completed when the wrapped executor's future is."""

    def __init__(self, inner: Future[Any]):
        super().__init__()
        self._inner = inner
        inner.add_done_callback(self._arrive)

    def cancel(self) -> bool:
        """Cancel the job unless it is running."""
        return self._inner.cancel() and super().cancel()

    def _arrive(self, pool_future: Future[Any]) -> None:
        with suppress(InvalidStateError):  # it was cancelled
            if pool_future.cancelled():
                self.set_exception(CancelledError("its executor cancelled it"))
            elif (error := pool_future.exception()) is not None:
                self.set_exception(error)
            else:
                self.set_result(answer(lambda: pool_future.result(), ()))
