"""What workers do for a search: prepare a workload, compile a candidate, measure one. All of them
take and give plain data of some hundred kilobytes, and may be done twice."""

from __future__ import annotations

import ctypes
import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tensorkiln.base.errors import TensorkilnError
from tensorkiln.base.trust import private_temporary
from tensorkiln.kernels.knobs import text_of
from tensorkiln.runtime.timing import ERROR, HANG, OK, WRONG, Verdict, machine_name, time_kernel
from tensorkiln.runtime.trial import Trial, WrongResult
from tensorkiln.scale import Job
from tensorkiln.target import Target
from tensorkiln.tuning.workloads import Workload, library_of, trial_for

T = TypeVar("T")
COMPILING = 60.0  # seconds that a candidate may take to compile


class Measure(Protocol):
    """A way to measure kernels other than by a clock: for machines that are not here, or by what
    they execute. It is called on a worker, for the untuned kernel once and for each candidate.
    An attribute `machine` says in words where, if that is not the worker's."""

    @property
    def unit(self) -> str:
        """The unit of its numbers, such as "cycles"."""
        ...

    def __call__(self, library: Path, trial: Trial) -> float:
        """What a call of the kernel in a library costs: less is better.

        `trial` has its operands and says what has to come out: `Trial.check` raises WrongResult.
        Any other error is a candidate that failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload that can be measured: its trial, and the library of the untuned kernel."""

    trial: Trial
    library: bytes


@dataclass(frozen=True, slots=True)
class Compiled:
    """The library of a candidate, or why there is none."""

    library: bytes
    state: str = OK
    reason: str = ""


class _TookTooLongError(Exception):
    """Raised in a thread whose time is over."""


def prepare_job(w: Workload, options: Mapping[str, float | int]) -> Job:
    """The job of a Prepared workload."""
    given = tuple(sorted(options.items()))
    return Job(
        _key("prepare", w.text, w.target, given, w.sizes),
        prepare,
        (w.text, w.target.to_json(), w.family.op_class, w.sizes, given),
        f"prepare {w.name}",
    )


def compile_job(w: Workload, chosen: Mapping[str, int]) -> Job:
    """The job of a Compiled candidate."""
    rows = tuple(sorted(chosen.items()))
    return Job(
        _key("compile", w.text, w.target, rows),
        compile_candidate,
        (w.text, w.target.to_json(), w.family.op_class, rows),
        f"compile {w.name} {text_of(chosen)}",
    )


def measure_job(
    w: Workload, prepared: Prepared, library: bytes, run: int, what: str, measure: Measure | None
) -> Job:
    """The job of a Verdict on a candidate; the run tells repeated ones from each other."""
    trial = prepared.trial
    digest = hashlib.sha256(library).hexdigest()
    return Job(
        _key("measure", w.key, w.target, trial.seconds, trial.seed, digest, run),
        measure_candidate,
        (trial, prepared.library, library, measure),
        f"measure {w.name} {what}",
    )


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def prepare(
    text: str,
    target: Mapping[str, object],
    family: str,
    sizes: tuple[tuple[str, int], ...],
    options: tuple[tuple[str, float | int], ...],
) -> Prepared:
    """Compile a workload untuned, and compute what has to come out."""
    library, symbol = library_of(text, Target(dict(target)), family)
    return Prepared(trial_for(text, symbol, dict(sizes), dict(options)), library)


def compile_candidate(
    text: str, target: Mapping[str, object], family: str, chosen: tuple[tuple[str, int], ...]
) -> Compiled:
    """Compile a workload with the values of its knobs."""
    try:
        library, _ = within(COMPILING, library_of, text, Target(dict(target)), family, chosen)
    except _TookTooLongError:
        return Compiled(b"", HANG, f"compiling it takes more than {COMPILING:g} s")
    except Exception as error:
        # Any error of a schedule costs its candidate alone.
        return Compiled(b"", ERROR, f"compiling it: {type(error).__name__}: {error}")
    return Compiled(library)


def measure_candidate(
    trial: Trial, untuned: bytes, library: bytes, measure: Measure | None
) -> Verdict:
    """Measure a candidate: by a clock beside the untuned kernel, else as `measure` does."""
    if measure is None:
        return time_kernel(trial, untuned, library)
    with private_temporary("kiln-measure-") as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(library)
        most = 2 * trial.limit + 10 * trial.seconds
        try:
            number = float(within(most, measure, path, trial))
        except _TookTooLongError:
            return Verdict(HANG, f"measuring it takes more than {most:g} s")
        except WrongResult as error:
            return Verdict(WRONG, error.message)
        except Exception as error:
            state = getattr(error, "state", ERROR)
            words = str(error) if isinstance(error, TensorkilnError) else repr(error)
            return Verdict(state, words)
    if not 0 < number < math.inf:
        return Verdict(ERROR, f"measure returned {number!r}, expected a number above 0")
    machine = getattr(measure, "machine", "") or machine_name()
    return Verdict(OK, "", number, number, number, measure.unit, machine)


def within(seconds: float, f: Callable[..., T], *arguments: Any) -> T:
    """`f(*arguments)`. _TookTooLongError if that takes longer: it is told so at the next step of
    Python that it takes, and nobody waits for it."""
    result: list[T] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            result.append(f(*arguments))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        told = ctypes.py_object(_TookTooLongError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), told)
        raise _TookTooLongError
    if raised:
        raise raised[0]
    return result[0]
