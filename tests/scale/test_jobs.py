"""Jobs on executors: each outcome once, whatever jobs, workers, callers and executors do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures import ThreadPoolExecutor as Threads
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.base.progress import Progress
from tensorkiln.scale import Failure, Job, Outcome, jobs, local_executor, run_jobs
from tensorkiln.scale.local import LocalExecutor
from tests.scale import job_functions as f

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalExecutor]:
    with local_executor(2) as executor:
        yield executor


def pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def job(key: str, run: Callable[..., Any], *arguments: Any) -> Job:
    return Job(key, run, arguments, f"the job {key}")


def results(outcomes: Iterator[Outcome]) -> dict[str, Any]:
    """By key; each comes once."""
    by_key: dict[str, Any] = {}
    for outcome in outcomes:
        assert outcome.job.key not in by_key, "delivered twice"
        assert (outcome.failure is None) or outcome.result is None
        by_key[outcome.job.key] = outcome.failure or outcome.result
    return by_key


# -- what jobs do ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "local", "pool"])
def test_results(kind: str, local: LocalExecutor) -> None:
    many = [job(str(i), f.double, i) for i in range(50)]
    expected = {str(i): 2 * i for i in range(50)}
    if kind == "local":
        assert results(run_jobs(many, local)) == expected
        return
    with Threads(4) if kind == "threads" else pool() as executor:
        assert results(run_jobs(many, executor)) == expected
        assert results(run_jobs(iter(many), executor)) == expected, "of any iterable"


def test_without_an_executor_there_is_one() -> None:
    assert results(run_jobs([job("a", f.pid)])) != {"a": os.getpid()}
    assert list(run_jobs([])) == []


def test_arguments_come_as_they_are(local: LocalExecutor) -> None:
    values = (None, (f.double, 2), [1, (2,)], {"key": f.double}, b"x" * 10, Job("k", f.double))
    assert results(run_jobs([job("a", f.arguments, *values)], local)) == {"a": values}


RAISED = {
    "ValueError": ("ValueError", "('bad', 1)", ""),
    "KeyError": ("KeyError", "'k'", ""),
    "UserError": ("UserError", "here: no\n  hint: try", "bad-thing"),
    "UnsupportedError": (
        "UnsupportedError",
        "1 unsupported or malformed item(s):\n  not that",
        "unsupported",
    ),
    "SystemExit": ("SystemExit", "3", ""),
    "MemoryError": ("MemoryError", "much", ""),
    "Unpicklable": ("Unpicklable", "held fast", ""),
    "TwoArguments": ("TwoArguments", "a and b", ""),
    "ExceptionGroup": ("ExceptionGroup", "several (1 sub-exception)", ""),
}


@pytest.mark.parametrize("kind", ["threads", "local"])
def test_a_job_that_raises_has_failed(kind: str, local: LocalExecutor) -> None:
    """At once: nobody tries it again. The error comes home as data, with its place."""
    with Threads(1) as threads:
        executor: Executor = threads if kind == "threads" else local
        many = [job(name, f.raises, name) for name in RAISED] + [job("good", f.double, 1)]
        outcomes = {o.job.key: o for o in run_jobs(many, executor)}
    assert outcomes.pop("good").result == 2
    for name, (kind_name, message, code) in RAISED.items():
        outcome = outcomes.pop(name)
        failure = outcome.failure
        assert failure is not None and outcome.tries == 1
        assert (failure.kind, failure.message, failure.code) == (kind_name, message, code)
        assert not failure.lost and str(failure) == f"{kind_name}: {message}"
        assert ("job_functions.py" in failure.trace) == (not code)
    assert not outcomes


@pytest.mark.parametrize("function", [f.unpicklable_result, f.function_inside])
def test_a_result_that_cannot_be_pickled(function: Callable[[], Any], local: LocalExecutor) -> None:
    outcomes = results(run_jobs([job("bad", function), job("good", f.double, 3)], local))
    assert outcomes["good"] == 6
    assert isinstance(outcomes["bad"], Failure) and not outcomes["bad"].lost
    assert "pickle" in outcomes["bad"].message


@pytest.mark.parametrize("kind", ["threads", "local", "at once"])
def test_arguments_that_cannot_be_pickled(kind: str, local: LocalExecutor) -> None:
    """Refused by the executor's own thread, or when they are submitted, as Ray does."""

    class AtOnce(Threads):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            if any(isinstance(a, tuple) and lock in a for a in args):
                raise TypeError("cannot pickle '_thread.lock' object")
            return super().submit(*args, **kwargs)

    lock = threading.Lock()
    many = [job("bad", f.arguments, lock), job("good", f.double, 3)]
    with AtOnce(1) as at_once, Threads(1) as threads:
        executor: Executor = {"threads": threads, "local": local, "at once": at_once}[kind]
        outcomes = results(run_jobs(many, executor))
    assert outcomes["good"] == 6
    # In threads it is the result, which is this argument.
    assert isinstance(outcomes["bad"], Failure) and "pickle" in outcomes["bad"].message


def test_large_results(local: LocalExecutor) -> None:
    size = 30 << 20
    outcomes = results(run_jobs([job(str(i), f.huge, size) for i in range(3)], local))
    assert [len(outcomes[str(i)]) for i in range(3)] == [size] * 3


def test_one_of_each_key(local: LocalExecutor, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    many = [job("a", f.slow_double, 1, 0.0, log), job("b", f.slow_double, 2, 0.0, log)] * 5
    assert results(run_jobs(many, local)) == {"a": 2, "b": 4}
    assert sorted((tmp_path / "log").read_text().split()) == ["1", "2"]


def test_few_jobs_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten million jobs, those are made that are about to run."""
    monkeypatch.setattr(jobs, "IN_FLIGHT", 8)
    drawn = 0

    def endless() -> Iterator[Job]:
        nonlocal drawn
        while True:
            drawn += 1
            yield job(str(drawn), f.double, drawn)

    with Threads(2) as executor:
        outcomes = run_jobs(endless(), executor)
        first_outcomes = [next(outcomes) for _ in range(100)]
        outcomes.close()  # type: ignore[attr-defined]
    assert len({o.job.key for o in first_outcomes}) == 100 and drawn <= 120


# -- what workers do -------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [f.dies, f.terminated], ids=lambda x: x.__name__)
def test_a_job_whose_worker_dies_is_lost(function: Callable[[], Any], local: LocalExecutor) -> None:
    """After three tries; others lose nothing."""
    many = [job("bad", function), *(job(str(i), f.double, i) for i in range(10))]
    outcomes = {o.job.key: o for o in run_jobs(many, local)}
    bad = outcomes.pop("bad")
    assert bad.failure is not None and bad.failure.lost and bad.tries == 3
    assert bad.failure.kind == "WorkerLost"
    assert {k: o.result for k, o in outcomes.items()} == {str(i): 2 * i for i in range(10)}
    assert all(o.tries == 1 for o in outcomes.values())


def test_a_job_whose_worker_dies_once(local: LocalExecutor, tmp_path: Path) -> None:
    many = [job(str(i), f.dies_once, str(tmp_path / str(i)), i) for i in range(2)]
    outcomes = list(run_jobs(many, local))
    assert {o.job.key: (o.result, o.tries) for o in outcomes} == {
        str(i): (2 * i, 2) for i in range(2)
    }


def test_tries_are_the_callers(local: LocalExecutor, tmp_path: Path) -> None:
    (outcome,) = run_jobs([job("a", f.dies_once, str(tmp_path / "a"), 1)], local, tries=1)
    assert outcome.failure is not None and outcome.failure.lost and outcome.tries == 1


def test_a_pool_of_processes_breaks() -> None:
    """All that it has is lost, and said to be: such a pool takes nothing again."""
    with pool() as executor:
        many = [job("bad", f.dies), job("other", f.slow_double, 1, 0.5)]
        outcomes = results(run_jobs(many, executor))
    assert all(isinstance(x, Failure) and x.lost for x in outcomes.values())
    assert len(outcomes) == 2


class Cancels(Executor):
    """An engine that loses its scheduler: it cancels the first `count` futures by itself."""

    def __init__(self, count: int):
        self.count, self.submitted = count, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted += 1
        if self.submitted <= self.count:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_what_an_engine_cancels_is_lost() -> None:
    assert results(run_jobs([job("a", f.double, 1)], Cancels(2))) == {"a": 2}
    outcomes = results(run_jobs([job("a", f.double, 1), job("b", f.double, 2)], Cancels(99)))
    assert all(isinstance(x, Failure) and x.lost for x in outcomes.values()) and len(outcomes) == 2
    assert outcomes["a"].kind == "CancelledError"


class Engine(Executor):
    """One whose futures raise what engines raise."""

    def __init__(self, error: BaseException):
        self.error = error

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(self.error)
        return future


LOST = [f"{package}.{name}" for package, names in jobs._LOST.items() for name in names]


@pytest.mark.parametrize("name", LOST)
def test_errors_of_engines_by_which_a_job_is_lost(name: str) -> None:
    package, _, kind = name.partition(".")
    error = type(kind, (Exception,), {"__module__": f"{package}.exceptions"})("gone")
    (outcome,) = run_jobs([job("a", f.double, 1)], Engine(error))
    assert outcome.failure is not None and outcome.failure.lost and outcome.tries == 3
    stranger = type(kind, (Exception,), {"__module__": "another.exceptions"})("gone")
    (outcome,) = run_jobs([job("a", f.double, 1)], Engine(stranger))
    assert outcome.failure is not None and not outcome.failure.lost and outcome.tries == 1


@pytest.mark.parametrize("name", LOST)
def test_engines_have_these_errors(name: str) -> None:
    """By the names that are looked for; a later version may rename them."""
    package, _, kind = name.partition(".")
    module = pytest.importorskip(
        {"ray": "ray.exceptions", "dask": "distributed"}.get(package, package),
        reason=f"{'ray' if package == 'ray' else 'distributed'} is not installed",
    )
    places = [module, getattr(module, "client", None), getattr(module, "comm", None)]
    import importlib

    if package == "distributed":
        places += [importlib.import_module(f"distributed.{n}") for n in ("scheduler", "client")]
    assert any(hasattr(place, kind) for place in places), name


# -- what callers do -------------------------------------------------------------------------------


def test_a_caller_who_stops_early(tmp_path: Path) -> None:
    """What has not begun is cancelled."""
    log = tmp_path / "log"
    many = [job(str(i), f.slow_double, i, 0.05, str(log)) for i in range(100)]
    with local_executor(1) as executor:
        outcomes = run_jobs(many, executor)
        next(outcomes)
        outcomes.close()  # type: ignore[attr-defined]
        assert results(run_jobs([job("more", f.double, 1)], executor)) == {"more": 2}
    assert len(log.read_text().split()) < 50


def test_progress(local: LocalExecutor, tmp_path: Path) -> None:
    class Recorded(Progress):
        items: list[str] = []  # noqa: RUF012

        def advance(self, count: int = 1, item: str = "") -> None:
            super().advance(count, item)
            self.items.append(item)

    progress = Recorded()
    many = [
        *(job(str(i), f.double, i) for i in range(3)),
        job("2", f.double, 2),
        job("once", f.dies_once, str(tmp_path / "x"), 1),
        job("bad", f.raises, "KeyError"),
    ]
    results(run_jobs(many, local, progress=progress, title="my jobs"))
    assert (progress.name, progress.total, progress.done) == ("my jobs", 5, 5)
    assert sorted(progress.items) == [f"the job {k}" for k in ("0", "1", "2", "bad", "once")]
    (note,) = progress.notes
    assert note.startswith("the job once: WorkerLost") and "once more" in note


def test_a_progress_that_raises(local: LocalExecutor) -> None:
    class Broken(Progress):
        def advance(self, count: int = 1, item: str = "") -> None:
            raise ValueError("no bar")

    with pytest.raises(UserError, match="progress Broken"):
        list(run_jobs([job("a", f.double, 1)], local, progress=Broken()))
    assert results(run_jobs([job("a", f.double, 1)], local)) == {"a": 2}


# -- what executors are ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [5, "local", [], f.double, object(), Threads],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_what_is_no_executor(wrong: Any) -> None:
    with pytest.raises(UserError) as caught:
        list(run_jobs([job("a", f.double, 1)], wrong))
    assert caught.value.code == "bad-executor"


@pytest.mark.parametrize("make", [lambda: local_executor(1), lambda: Threads(1), pool])
def test_an_executor_that_was_shut_down(make: Callable[[], Executor]) -> None:
    executor = make()
    executor.shutdown()
    with pytest.raises(UserError, match="it was shut down") as caught:
        list(run_jobs([job("a", f.double, 1)], executor))
    assert caught.value.code == "bad-executor"


def test_a_broken_executor() -> None:
    class Broken(Threads):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            raise BrokenExecutor("no more")

    (outcome,) = run_jobs([job("a", f.double, 1)], Broken(1))
    assert outcome.failure is not None and outcome.failure.lost and outcome.tries == 3
