"""Ctrl-C (SIGINT), SIGTERM and SIGHUP: deferred while code runs that must not be interrupted
half-way, and reported as shells count them."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType

# Code objects of context managers: KeyboardInterrupt raised while one is entered or left could skip
# its clean-up.
_EDGES: set[CodeType] = set()
# The exit codes of shells: of Ctrl-C, and what is added to the number of another signal.
INTERRUPTED, _SIGNALLED = 130, 128


class Terminated(KeyboardInterrupt):
    """Another process asked this one to end: the argument is the number of the signal."""


def report_interrupt(interrupt: KeyboardInterrupt) -> int:
    """Say on standard error what ended the command, and return the exit code."""
    if not isinstance(interrupt, Terminated):
        print("kiln: interrupted", file=sys.stderr)
        return INTERRUPTED
    number = interrupt.args[0]
    print(f"kiln: ended by {signal.Signals(number).name}", file=sys.stderr)
    return _SIGNALLED + int(number)


@contextlib.contextmanager
def terminations() -> Iterator[None]:
    """Raise Terminated for the first SIGTERM or SIGHUP, so that temporary files are removed; a
    second one ends the process at once. Signals that are ignored (`nohup`) or have a handler stay
    as they are."""
    main = threading.current_thread() is threading.main_thread()
    numbers = [s for s in _ENDS if main and signal.getsignal(s) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) == _terminate:
                signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise Terminated(number)


_ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HELD = (signal.SIGINT, *_ENDS)


class HeldInterrupts:
    """Defer SIGINT, and the signals of `terminations`, until the end of a `with` block, except
    between `release` and `hold`.

        with HeldInterrupts() as held:
            open_resource()
            held.release()  # from here on an interrupt is raised at once
            work()
            held.hold()
            close_resource()  # an interrupt is raised after the block

    Only the first interrupt after `release` is raised; later ones are deferred, so that they do
    not interrupt the clean-up. Does nothing outside of the main thread, where Python runs no signal
    handlers, and for signals without a handler in Python (ignored, default, or installed from C).
    """

    def __init__(self) -> None:
        self._released = False
        self._waiting: int | None = None  # a signal
        self._before: dict[int, Callable[[int, FrameType | None], object]] = {}

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _HELD:
                before = signal.getsignal(number)
                if callable(before):
                    self._before[number] = before
                    signal.signal(number, self._arrives)
        return self

    def release(self) -> None:
        """Raise interrupts from here on, and at once one that is pending."""
        self._released = True
        if self._waiting is not None:
            self._arrives(self._waiting, None)

    def hold(self) -> None:
        """Defer interrupts again."""
        self._released = False

    def _arrives(self, number: int, frame: FrameType | None) -> None:
        if not self._released or (frame is not None and _is_edge(frame.f_code)):
            self._waiting = number
            return
        self._waiting = None
        self._released = False  # the clean-up is not interrupted again
        self._before[number](number, frame)
        self._released = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._released = False
        for number, before in self._before.items():
            if signal.getsignal(number) == self._arrives:
                signal.signal(number, before)
        if self._waiting is not None:
            self._before[self._waiting](self._waiting, None)


def edge(code: CodeType) -> None:
    """Register the code of a context manager, in which interrupts are always deferred."""
    _EDGES.add(code)


def _is_edge(code: CodeType) -> bool:
    return code in _EDGES or code.co_filename == contextlib.__file__


for _method in (HeldInterrupts.hold, HeldInterrupts.__exit__):
    edge(_method.__code__)
