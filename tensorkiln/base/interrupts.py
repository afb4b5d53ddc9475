"""Deferring Ctrl-C (SIGINT) while code runs that must not be interrupted half-way."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import CodeType, FrameType, TracebackType

# Code objects of context managers: KeyboardInterrupt raised while one is entered or left could skip
# its clean-up.
_EDGES: set[CodeType] = set()


class HeldInterrupts:
    """Defer SIGINT until the end of a `with` block, except between `release` and `hold`.

        with HeldInterrupts() as held:
            open_resource()
            held.release()  # from here on an interrupt is raised at once
            work()
            held.hold()
            close_resource()  # an interrupt is raised after the block

    Only the first interrupt after `release` is raised; later ones are deferred, so that they do
    not interrupt the clean-up. Does nothing outside of the main thread, where Python runs no signal
    handlers, or if SIGINT has no handler in Python (ignored, default, or installed from C).
    """

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
        """Raise interrupts from here on, and at once one that is pending."""
        self._released = True
        if self._waits:
            self._arrives(signal.SIGINT, None)

    def hold(self) -> None:
        """Defer interrupts again."""
        self._released = False

    def _arrives(self, number: int, frame: FrameType | None) -> None:
        self._waits = not self._released or (frame is not None and _is_edge(frame.f_code))
        if not self._waits and callable(self._before):
            self._released = False  # the clean-up is not interrupted again
            self._before(number, frame)
            self._released = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._released = False
        if callable(self._before):
            if signal.getsignal(signal.SIGINT) == self._arrives:
                signal.signal(signal.SIGINT, self._before)
            if self._waits:
                self._before(signal.SIGINT, None)


def edge(code: CodeType) -> None:
    """Register the code of a context manager, in which interrupts are always deferred."""
    _EDGES.add(code)


def _is_edge(code: CodeType) -> bool:
    return code in _EDGES or code.co_filename == contextlib.__file__


for _method in (HeldInterrupts.hold, HeldInterrupts.__exit__):
    edge(_method.__code__)
