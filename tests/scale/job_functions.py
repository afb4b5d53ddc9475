"""What jobs of tests do, on whichever machine: functions of a module, as workers find them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UnsupportedError, UserError


def double(x: int) -> int:
    return 2 * x


def named(*, x: int, y: int) -> int:
    return x - y


def slow_double(x: int, seconds: float, log: str = "") -> int:
    """A line of the log says that it was done; appends of a line are whole."""
    time.sleep(seconds)
    if log:
        with Path(log).open("a") as stream:
            stream.write(f"{x}\n")
    return 2 * x


def raises(kind: str) -> None:
    errors: dict[str, BaseException] = {
        "ValueError": ValueError("bad", 1),
        "KeyError": KeyError("k"),
        "UserError": UserError("no", code="bad-thing", where="here", hint="try"),
        "UnsupportedError": UnsupportedError("not that"),
        "SystemExit": SystemExit(3),
        "MemoryError": MemoryError("much"),
        "Unpicklable": Unpicklable(),
        "TwoArguments": TwoArguments("a", "b"),
        "ExceptionGroup": ExceptionGroup("several", [ValueError("x")]),
    }
    raise errors[kind]


class Unpicklable(Exception):
    """An exception that no process can give to another."""

    def __init__(self) -> None:
        super().__init__("held fast")
        self.lock = threading.Lock()


class TwoArguments(Exception):
    """One that is pickled, and cannot be unpickled: a pool breaks by it."""

    def __init__(self, a: str, b: str):
        super().__init__(f"{a} and {b}")


def unpicklable_result() -> Any:
    return threading.Lock()


def function_inside() -> Any:
    return lambda: None


def huge(size: int) -> bytes:
    return b"x" * size


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    """As when somebody else ends the process: it may clean up."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def dies_once(marker: str, x: int) -> int:
    """Dies at its first call, and does what it should at the next."""
    path = Path(marker)
    if not path.exists():
        path.touch()
        dies()
    return 2 * x


def cleans_up(folder: str) -> None:
    """Holds a file until it ends, however that comes."""
    held_file = Path(folder) / f"held-{os.getpid()}"
    held_file.touch()
    try:
        time.sleep(600)
    finally:
        held_file.unlink()


def interrupted() -> None:
    raise KeyboardInterrupt


def pid() -> int:
    return os.getpid()


def arguments(*values: Any) -> tuple[Any, ...]:
    """What came, as it came."""
    return values


def recursion() -> None:
    sys.setrecursionlimit(200)
    recursion()
