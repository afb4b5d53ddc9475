"""Jobs whose workers have the runtime package alone: what they run is handed to them as it is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from contextlib import suppress
from typing import Any

from tensorkiln.scale.jobs import answer


class Direct(Executor):
    """`run_jobs` on another executor, whose workers need not have `tensorkiln.scale`: an answer is
    made of what they give here, not there."""

    def __init__(self, executor: Executor):
        self._executor = executor

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of `answer(run, arguments)`; of any other function as the executor does."""
        if fn is not answer:
            return self._executor.submit(fn, *args, **kwargs)
        run, arguments = args
        outer = _Answered(self._executor.submit(run, *arguments))
        return outer


class _Answered(Future[Any]):
    """The answer to a job whose result another future has."""

    def __init__(self, inner: Future[Any]):
        super().__init__()
        self._inner = inner
        inner.add_done_callback(self._arrive)

    def cancel(self) -> bool:
        """Cancel the job, unless it runs."""
        return self._inner.cancel() and super().cancel()

    def _arrive(self, pool_future: Future[Any]) -> None:
        with suppress(InvalidStateError):  # it was cancelled
            if pool_future.cancelled():
                self.set_exception(CancelledError("its executor cancelled it"))
            elif (error := pool_future.exception()) is not None:
                self.set_exception(error)
            else:
                self.set_result(answer(lambda: pool_future.result(), ()))
