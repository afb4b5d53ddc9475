"""Measure a kernel in another way than by a clock: with a function of the user's, on the worker
that has what it needs."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tensorkiln.base.errors import TensorkilnError
from tensorkiln.base.trust import private_temporary
from tensorkiln.runtime.timing import ERROR, HANG, OK, WRONG, Verdict, machine_name
from tensorkiln.runtime.trial import Trial, WrongResult

T = TypeVar("T")


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


class TookTooLongError(Exception):
    """Raised in a thread whose time is over, and for its caller."""


def measure_kernel(trial: Trial, library: bytes, measure: Measure) -> Verdict:
    """Measure a kernel as `measure` does; whatever that raises is the verdict."""
    with private_temporary("kiln-measure-") as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(library)
        time_limit = 2 * trial.limit + 10 * trial.seconds
        try:
            number = float(within(time_limit, measure, path, trial))
        except TookTooLongError:
            return Verdict(HANG, f"measuring it takes more than {time_limit:g} s")
        except WrongResult as error:
            return Verdict(WRONG, error.message)
        except Exception as error:
            state = getattr(error, "state", ERROR)
            words = str(error) if isinstance(error, TensorkilnError) else repr(error)
            return Verdict(state, words)
    if not 0 < number < math.inf:
        return Verdict(ERROR, f"measure returned {number!r}, expected a number above 0")
    machine = getattr(measure, "machine", "") or machine_name()
    return Verdict(OK, "", number, number, number, 1.0, measure.unit, machine)


def within(seconds: float, f: Callable[..., T], *arguments: Any) -> T:
    """`f(*arguments)`. TookTooLongError if that takes longer: it is told so at the next step of
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
        exception = ctypes.py_object(TookTooLongError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), exception)
        raise TookTooLongError
    if raised:
        raise raised[0]
    return result[0]
