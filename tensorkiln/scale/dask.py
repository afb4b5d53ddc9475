"""Dask as an executor. Dask is imported when an executor is made, not with this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from tensorkiln.base.packages import require_package


class DaskExecutor(Executor):
    """An executor whose jobs are tasks of a Dask cluster; `dask_executor` makes it. Dask's own
    `Client.get_executor()` works as well; there the caller has to close the client."""

    def __init__(self, client: Any, cpus: int):
        self.cpus = cpus
        self._client = client
        self._tasks = client.get_executor(pure=False)
        self._held: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of a task that calls `fn(*args, **kwargs)`."""
        future: Future[Any] = self._tasks.submit(_OpaqueCall(fn, args, kwargs))
        self._held.add(future)
        future.add_done_callback(self._held.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs and disconnect from the cluster, after the last job. With
        `cancel_futures`, or without `wait`, jobs that have not ended are cancelled instead. A
        cluster that this executor started is shut down."""
        if self._client is None:
            return
        if cancel_futures or not wait:
            for future in list(self._held):
                future.cancel()
        self._tasks.shutdown(wait=wait and not cancel_futures)
        client, self._client = self._client, None
        client.close()

    def __exit__(self, *raised: object) -> None:
        """Shut down; after an exception without waiting for results."""
        self.shutdown(wait=raised[0] is None, cancel_futures=raised[0] is not None)


def dask_executor(address: str | None = None, *, cpus: int = 1) -> DaskExecutor:
    """An executor whose jobs are tasks of Dask, one at a time for each thread of its workers.

    `address` is that of a scheduler, `tcp://host:8786`; None: that of Dask's configuration
    (DASK_SCHEDULER_ADDRESS), else a new cluster on this machine, of processes with one thread each.
    `cpus` is how many CPUs a job may use; Dask does not place jobs by it.

    Raises UserError without Dask (`pip install 'tensorkiln[dask]'`), and OSError where no scheduler
    answers.
    """
    require_package("distributed", "tk.scale.dask_executor")
    import dask
    from distributed import Client

    if address is None and not dask.config.get("scheduler-address", None):
        options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None}
        return DaskExecutor(Client(**options), cpus)
    return DaskExecutor(Client(address), cpus)


@dataclass(frozen=True, slots=True, eq=False)
class _OpaqueCall:
    """A function with its arguments as one opaque object. If they were arguments of the task, Dask
    would search them for futures and tasks of its own, and take some keyword arguments for its own
    options."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        return self.fn(*self.args, **self.kwargs)
