"""Dask as an executor. Dask is imported when it is asked for, and not before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from tensorkiln.base.packages import require_package


class DaskExecutor(Executor):
    """Tasks of a Dask cluster. `dask_executor` makes it. Dask's own `Client.get_executor()` serves
    as well; it leaves the client to its caller."""

    def __init__(self, client: Any, cpus: int):
        self.cpus = cpus
        self._client = client
        self._tasks = client.get_executor(pure=False)
        self._held: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of a task that calls `fn(*args, **kwargs)`."""
        future: Future[Any] = self._tasks.submit(_Call(fn, args, kwargs))
        self._held.add(future)
        future.add_done_callback(self._held.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs, and leave the cluster: after the last job, unless they are cancelled
        or nobody waits. A cluster that was started here ends."""
        if self._client is None:
            return
        if cancel_futures or not wait:
            for future in list(self._held):
                future.cancel()
        self._tasks.shutdown(wait=wait and not cancel_futures)
        client, self._client = self._client, None
        client.close()

    def __exit__(self, *raised: object) -> None:
        """With an exception, nobody waits for results."""
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
class _Call:
    """A call as one object: among the arguments of a task, Dask would look for its own futures and
    tasks, and for its own options among those with names."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        return self.fn(*self.args, **self.kwargs)
