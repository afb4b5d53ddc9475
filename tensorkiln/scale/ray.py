"""Ray as an executor. Ray is imported when an executor is made, not with this module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.base.packages import require_package


class RayExecutor(Executor):
    """An executor whose jobs are tasks of a Ray cluster; `ray_executor` makes it."""

    def __init__(self, options: Mapping[str, Any], owns: bool):
        import ray

        # Within another function, so that Ray sends its code: a worker that has the runtime package
        # alone has not this module.
        def call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return fn(*args, **kwargs)

        self._task = ray.remote(call).options(**options)
        self._held: set[Future[Any]] = set()
        self.cpus = max(1, int(options.get("num_cpus") or 1))
        self._owns = owns
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future of a task that calls `fn(*args, **kwargs)`. Cancelling it cancels the task,
        also one that runs."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = _TaskFuture(self._task.remote(fn, args, kwargs))
        self._held.add(future)
        future.add_done_callback(self._held.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more jobs; disconnect from the cluster if `ray_executor` connected to it."""
        from concurrent.futures import wait as wait_for

        self._closed = True
        if cancel_futures:
            for future in list(self._held):
                future.cancel()
        if wait:
            wait_for(list(self._held))
        if self._owns and wait:
            import ray

            self._owns = False
            ray.shutdown()

    def __exit__(self, *raised: object) -> None:
        """Shut down; after an exception jobs are cancelled."""
        self.shutdown(wait=True, cancel_futures=raised[0] is not None)


class _TaskFuture(Future[Any]):
    """The future of a Ray task."""

    def __init__(self, ref: Any):
        super().__init__()
        self._ref = ref
        ref.future().add_done_callback(self._arrive)

    def cancel(self) -> bool:
        """Cancel the task, unless it has finished."""
        import ray

        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        ray.cancel(self._ref, force=True)
        return True

    def _arrive(self, ray_future: Future[Any]) -> None:
        error = ray_future.exception()
        with suppress(InvalidStateError):  # it was cancelled
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(ray_future.result())


def ray_executor(
    address: str | None = None,
    *,
    num_cpus: float = 1,
    num_gpus: float = 0,
    memory: int | None = None,
    resources: Mapping[str, float] | None = None,
    retries: int = 3,
    runtime_env: Mapping[str, Any] | None = None,
) -> RayExecutor:
    """An executor whose jobs are tasks of Ray.

    `address` is the cluster to join, as for `ray.init`; None: the one that this process has joined
    or, if it has not, that of RAY_ADDRESS or a new one on this machine. `num_cpus`, `num_gpus`,
    `memory` (bytes) and `resources` are what each job takes, by which Ray places it;
    `resources={"board": 1}` sends jobs to machines that were started with a board. `retries` is how
    often Ray starts a task again whose machine is gone. `runtime_env` is Ray's, for machines
    without this package.

    Raises UserError without Ray (`pip install 'tensorkiln[ray]'`), and where the process has joined
    another cluster than `address` (code `contradiction`).
    """
    require_package("ray", "tk.scale.ray_executor")
    import ray

    owns = not ray.is_initialized()
    if owns:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    elif address not in (None, "auto", ray.get_runtime_context().gcs_address):
        raise UserError(
            f"this process has joined the cluster {ray.get_runtime_context().gcs_address}",
            code="contradiction",
            where=f"address={address!r}",
            hint="leave it out, or call ray.shutdown() before",
        )
    options: dict[str, Any] = {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "max_retries": retries,
        "retry_exceptions": False,
    }
    if memory is not None:
        options["memory"] = memory
    if resources:
        options["resources"] = dict(resources)
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    return RayExecutor(options, owns)
