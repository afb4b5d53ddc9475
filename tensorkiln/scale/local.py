"""An executor of local processes that survives the death of any of them: the default of this
package.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from tensorkiln.base.config import available_cpus
from tensorkiln.base.errors import UserError

_PATIENCE = 5.0  # seconds that a process has to clean up after itself
_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class WorkerLost(BrokenExecutor):
    """The process that ran a job died."""


class LocalExecutor(Executor):
    """A pool of processes, each with one job at a time. A process that dies fails only its own job
    (WorkerLost), and is replaced; in a ProcessPoolExecutor it would break the pool and lose every
    job. Functions are pickled by name, and a script that uses this guards its main part as for
    `multiprocessing`."""

    def __init__(self, workers: int, cpus: int = 1):
        self.workers, self.cpus = workers, cpus
        self._free: list[ProcessPoolExecutor | None] = [None] * workers  # None: not started yet
        self._busy: set[ProcessPoolExecutor] = set()
        self._waiting: deque[_Task] = deque()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of `fn(*args, **kwargs)`, called in one of the processes."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append((future, fn, args, kwargs))
        self._start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs and end the processes: after the last job or, with `cancel_futures`,
        after those that are running. Without `wait`, running jobs are ended too, and no other
        starts."""
        with self._idle:
            self._closed = True
            if cancel_futures or not wait:
                for future, *_ in self._waiting:
                    future.cancel()
                self._waiting.clear()
            while wait and (self._busy or self._waiting):
                self._idle.wait()
            pools = [*self._busy, *filter(None, self._free)]
            self._free.clear()
        if not wait:
            _end(pools)
        for pool in pools:
            pool.shutdown(wait=wait, cancel_futures=True)

    def __exit__(self, *raised: object) -> None:
        """Shut down; after an exception without waiting for results."""
        self.shutdown(wait=raised[0] is None, cancel_futures=raised[0] is not None)

    def _start(self) -> None:
        """Assign waiting jobs to idle processes."""
        while True:
            with self._lock:
                if not self._waiting or not self._free:
                    return
                future, fn, args, kwargs = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    self._idle.notify_all()
                    continue
                pool = self._free.pop() or _process()
                self._busy.add(pool)
                try:
                    inner = pool.submit(_called, fn, args, kwargs)
                except BrokenExecutor as error:  # it died between two jobs
                    inner = Future()
                    inner.set_exception(error)
            inner.add_done_callback(partial(self._finish, future, pool))

    def _finish(
        self, future: Future[Any], pool: ProcessPoolExecutor, pool_future: Future[Any]
    ) -> None:
        error = (
            pool_future.exception()
            if not pool_future.cancelled()
            else WorkerLost("the executor was closed")
        )
        broken = isinstance(error, BrokenExecutor)
        with self._idle:
            self._busy.discard(pool)
            if not self._closed or self._waiting:
                self._free.append(None if broken else pool)
            elif not broken:
                self._free.append(pool)
            self._idle.notify_all()
        if broken:
            pool.shutdown(wait=False)
            future.set_exception(WorkerLost("its process died"))
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(pool_future.result())
        self._start()


def local_executor(workers: int | None = None, *, cpus: int = 1) -> LocalExecutor:
    """An executor of `workers` processes on this machine, each of which has one job at a time, that
    may use `cpus` CPUs. By default there are as many as this process has CPUs for.

    Raises UserError for a number below 1.
    """
    require_count("cpus", cpus)
    count = max(1, available_cpus() // cpus) if workers is None else workers
    require_count("workers", count)
    return LocalExecutor(count, cpus)


def require_count(name: str, value: object) -> None:
    """Raise UserError unless `value` is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name}={value!r}, expected a whole number of at least 1")


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
    )


def _begin(parent: int) -> None:
    """Set up a new process: Ctrl-C is left to the parent; the process exits if its parent dies;
    SIGTERM ends it once its job has cleaned up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


class _Leaving(BaseException):
    """Raised in a worker process that has to exit."""


_has_job = False


def _called(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    global _has_job
    _has_job = True
    try:
        return fn(*args, **kwargs)
    except _Leaving:  # which the pool would take for an answer
        os._exit(1)
    finally:
        _has_job = False


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not _has_job:
        os._exit(1)
    raise _Leaving


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os._exit(1)


def _end(pools: Sequence[ProcessPoolExecutor]) -> None:
    """Terminate processes, and kill those that do not exit in time."""
    processes = [p for pool in pools for p in list((pool._processes or {}).values())]
    for process in processes:
        process.terminate()
    until = time.monotonic() + _PATIENCE
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
