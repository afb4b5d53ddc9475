"""Room on Python's stack for all calls that one call leads to."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
# Values that the frame of a call with room claims and does not touch: one MiB, where a frame of a
# compiler's function has a few hundred bytes and Python lets a thousand be nested.
_CLAIMED_VALUES = 1 << 17


def with_frame_room(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose calls and all that they call find their frames' memory in one piece.

    CPython takes memory for frames from the system in chunks of 16 KiB, a power of two times that
    for a frame that needs more, and gives a chunk back as soon as it is empty. Where the end of a
    chunk lies between a loop and what it calls, each of the calls is a `mmap`, a page fault and a
    `munmap`: some 10 microseconds in place of less than one, a fifth of the time of compiles that a
    test calls. A frame that claims one MiB is given a chunk of two MiB, and the second is there for
    what it calls.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=_CLAIMED_VALUES)  # type: ignore[attr-defined]
    return call


__all__ = ["with_frame_room"]
