"""Many jobs on an executor that others operate: each identified by its content and retried if its
worker is lost.

Engines report a lost machine differently: a process pool breaks; Ray and Dask restart the task and
give up after a while. Here it is one case: a job that was lost is submitted again, a few times. A
job that raised an exception has failed, and is not retried.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from dataclasses import dataclass
from typing import Any

from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.base.progress import Progress, watched
from tensorkiln.scale.local import local_executor

# Jobs that an executor holds at a time: enough for a thousand machines, and few enough that what
# they are made of fits into memory.
IN_FLIGHT = 1 << 13
TRIES = 3

# Errors of engines by which a job was lost, not wrong, by their package and their name; an engine
# that is not installed cannot be asked.
_LOST = {
    "distributed": ("KilledWorker", "FutureCancelledError", "CommClosedError"),
    "dask": ("KilledWorker",),
    "ray": (
        "ActorDiedError",
        "ActorUnavailableError",
        "LocalRayletDiedError",
        "NodeDiedError",
        "ObjectFetchTimedOutError",
        "ObjectLostError",
        "ObjectReconstructionFailedError",
        "OutOfMemoryError",
        "OwnerDiedError",
        "RayActorError",
        "WorkerCrashedError",
    ),
}


@dataclass(frozen=True, slots=True)
class Job:
    """A call `run(*arguments)` of a module-level function, whose arguments and result can be
    pickled and are small. `key` identifies it by its content: jobs with one key have one result, so
    only one of them is run. It may run twice, wholly or in part, since a machine may be lost after
    the work and before the answer; what it writes must be the same both times, and must be written
    atomically. `what` describes the job for people."""

    key: str
    run: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    what: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job has no result, as plain data: `kind` is the name of the exception's class, `code`
    that of a TensorkilnError, else empty, `trace` where it was raised. `lost`: every worker that
    had the job was gone before it answered."""

    kind: str
    message: str
    code: str = ""
    trace: str = ""
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job: its result or its failure. `tries` is the number of submissions,
    `seconds` the time that the last one took on its worker, 0 if no worker answered."""

    job: Job
    result: Any = None
    failure: Failure | None = None
    tries: int = 1
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Answer:
    result: Any
    failure: Failure | None
    seconds: float


def answer(run: Callable[..., Any], arguments: tuple[Any, ...]) -> _Answer:
    """The function that a worker calls: it runs the job and returns its result or its exception as
    plain data. Exceptions are not raised to the engine, since engines change their class on the way
    and one that cannot be unpickled breaks a process pool. A result that cannot be pickled is
    answered with a failure, since Dask would let its caller wait for ever."""
    start = time.perf_counter()
    result, failure = None, None
    try:
        result = run(*arguments)
        pickle.dumps(result)
    except (Exception, SystemExit) as error:
        result, failure = None, failure_of(error)
    return _Answer(result, failure, time.perf_counter() - start)


def run_jobs(
    jobs: Iterable[Job],
    executor: Executor | None = None,
    *,
    tries: int = TRIES,
    progress: Progress | None = None,
    title: str = "jobs",
) -> Iterator[Outcome]:
    """Run jobs and yield their outcomes as they complete, one for each key.

    `executor` is any `concurrent.futures.Executor`; None: processes of this machine
    (`local_executor`), which end with the iterator. A job whose worker is lost is submitted again,
    up to `tries` times in all. If the caller stops early or is interrupted, jobs that have not
    started are cancelled. Raises UserError (code `bad-executor`) for an object that is not an
    executor.
    """
    if executor is not None:
        require_executor(executor)
        yield from _run(jobs, executor, tries, progress, title)
        return
    with local_executor() as local:
        yield from _run(jobs, local, tries, progress, title)


def require_executor(executor: object, argument: str = "executor") -> None:
    """Raise UserError (code `bad-executor`) for an object that is not an executor."""
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        raise UserError(
            f"{argument} is {executor!r}, expected one of concurrent.futures",
            code="bad-executor",
            where=argument,
            hint="ProcessPoolExecutor, tk.scale.ray_executor(), or get_executor() of Dask's client",
        )


def _run(
    jobs: Iterable[Job], executor: Executor, tries: int, progress: Progress | None, title: str
) -> Iterator[Outcome]:
    monitor, queue, submitted_keys = watched(progress), iter(jobs), set[str]()
    pending: dict[Future[_Answer], tuple[Job, int]] = {}
    again: list[tuple[Job, int]] = []

    def fill() -> None:
        while len(pending) < IN_FLIGHT:
            if again:
                job, count = again.pop()
            elif (
                fresh := next((j for j in queue if j.key not in submitted_keys), None)
            ) is not None:
                job, count = fresh, 0
                submitted_keys.add(job.key)
            else:
                return
            pending[_submitted(executor, job)] = (job, count + 1)

    total = len(jobs) if isinstance(jobs, list | tuple) else 0
    monitor.phase(title, len({j.key for j in jobs}) if total else 0)
    try:
        fill()
        while pending:
            finished, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                job, count = pending.pop(future)
                answer, loss = _collected(future)
                if loss is not None and count < tries:
                    monitor.note(f"{job.what or job.key}: {loss}; once more")
                    again.append((job, count))
                    continue
                monitor.advance(1, job.what)
                yield Outcome(job, answer.result, answer.failure, count, answer.seconds)
            fill()
    finally:
        for future in pending:
            future.cancel()


def _submitted(executor: Executor, job: Job) -> Future[_Answer]:
    """The job's future. If the executor is broken it holds a lost job, and if the arguments cannot
    be pickled a failed one: neither is an error of the caller. UserError for an executor that was
    shut down."""
    try:
        return executor.submit(answer, job.run, job.arguments)
    except BrokenExecutor as error:
        return _refused(error)
    except RuntimeError as error:
        if "shutdown" in str(error):
            raise UserError(
                "the executor takes no jobs any more: it was shut down",
                code="bad-executor",
                where="executor",
            ) from error
        return _refused(error)
    except Exception as error:  # from Ray, which pickles arguments at once
        return _refused(error)


def _refused(error: Exception) -> Future[_Answer]:
    refused: Future[_Answer] = Future()
    refused.set_exception(error)
    return refused


def _collected(future: Future[_Answer]) -> tuple[_Answer, Failure | None]:
    """The answer of a finished future, and its failure if the job was lost."""
    # Nobody here has cancelled it: engines do, when a scheduler or a driver is gone.
    error = (
        CancelledError("its executor cancelled it") if future.cancelled() else future.exception()
    )
    if error is None:
        return future.result(), None
    if not isinstance(error, Exception):
        raise error
    worker_died = _is_lost(error)
    failure = failure_of(error, worker_died)
    return _Answer(None, failure, 0.0), failure if worker_died else None


def _is_lost(error: BaseException) -> bool:
    if isinstance(error, BrokenExecutor | CancelledError):
        return True
    return any(
        cls.__name__ in _LOST.get(cls.__module__.partition(".")[0], ())
        for cls in type(error).__mro__
    )


def failure_of(error: BaseException, worker_died: bool = False) -> Failure:
    """An exception as plain data."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, TensorkilnError):
        return Failure(kind, text, error.code, lost=worker_died)
    return Failure(kind, text, trace="".join(traceback.format_exception(error)), lost=worker_died)
