"""Suppress what torch's exporter prints, logs and warns about, but no output of other threads."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, TextIO, cast

# One thread at a time: the exporter patches torch while it runs, and Python's warning filters are
# global to the process.
_one_thread = threading.RLock()


class _Muted:
    """A stream that discards what the thread that created it writes, and forwards the rest."""

    def __init__(self, stream: Any):
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Write `text`, or discard it; return the number of characters either way."""
        if threading.get_ident() == self._thread:
            return len(text)
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress output, log records and warnings of this thread while the block runs.

    Warnings of other threads may be ignored for that time too, since the filters are global.
    """
    thread = threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return threading.get_ident() != thread

    with _one_thread, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handlers = _handlers()
        before = sys.stdout, sys.stderr
        for handler in handlers:
            handler.addFilter(of_others)
        sys.stdout, sys.stderr = (cast(TextIO, s and _Muted(s)) for s in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for handler in handlers:
                handler.removeFilter(of_others)


def _handlers() -> list[logging.Handler]:
    """The handlers of all loggers, and the one of last resort."""
    entries = [*logging.Logger.manager.loggerDict.values()]
    loggers = [logging.root, *(entry for entry in entries if isinstance(entry, logging.Logger))]
    last = [logging.lastResort] if logging.lastResort is not None else []
    return [*last, *(handler for logger in loggers for handler in logger.handlers)]
