"""Locks that are free in a child of fork()."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any


class ProcessLock:
    """A lock from `make()` that lives as long as the process. A child of fork() gets a new one, as
    the thread that held it does not exist there."""

    def __init__(self, make: Callable[[], Any]):
        self._make = make
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = self._make()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Acquire the lock; return whether it was acquired."""
        return bool(self._lock.acquire(blocking=blocking))

    def release(self) -> None:
        """Release the lock; no effect in a child that was forked since `acquire`."""
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()
