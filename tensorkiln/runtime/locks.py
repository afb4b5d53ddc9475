"""Locks that a child of fork() finds open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any


class ProcessLock:
    """A lock of `make()` for a module. Whoever held it is not there in a child of fork(): that gets
    a new one."""

    def __init__(self, make: Callable[[], Any]):
        self._make = make
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = self._make()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Whether it was taken."""
        return bool(self._lock.acquire(blocking=blocking))

    def release(self) -> None:
        """The other end of `acquire`; nothing in a child that was forked in between."""
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()
