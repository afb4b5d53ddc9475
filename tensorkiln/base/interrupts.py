"""Ctrl-C between the lines that must not be torn apart."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import CodeType, FrameType, TracebackType

# Where a context manager is entered and left: an interrupt that is raised there would skip its end.
_EDGES: set[CodeType] = set()


class HeldInterrupts:
    """`with HeldInterrupts() as held:` an interrupt waits until the end, but between `release` and
    `hold`, where it is raised as ever, once. Does nothing outside of the main thread, which is the
    only one that is interrupted, and where a program deals with signals in C."""

    def __init__(self) -> None:
        self._released = self._waits = False
        self._before: object = None

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._arrives)
        return self

    def release(self) -> None:
        """Interrupts are raised from here on, one that has come already at once."""
        self._released = True
        if self._waits:
            self._arrives(signal.SIGINT, None)

    def hold(self) -> None:
        """Interrupts wait again."""
        self._released = False

    def _arrives(self, number: int, frame: FrameType | None) -> None:
        self._waits = not self._released or (frame is not None and _is_edge(frame.f_code))
        if not self._waits and callable(self._before):
            self._released = False  # what it leads to is not torn apart by another one
            self._before(number, frame)
            self._released = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._released = False
        if callable(self._before):
            if signal.getsignal(signal.SIGINT) == self._arrives:
                signal.signal(signal.SIGINT, self._before)
            if self._waits:
                self._before(signal.SIGINT, None)


def edge(code: CodeType) -> None:
    """The code of a context manager in which interrupts always wait."""
    _EDGES.add(code)


def _is_edge(code: CodeType) -> bool:
    return code in _EDGES or code.co_filename == contextlib.__file__


for _method in (HeldInterrupts.hold, HeldInterrupts.__exit__):
    edge(_method.__code__)
