"""One contiguous range of free memory for code that is loaded without a linker.

LLVM's in-memory linker places each section wherever the process has room. In a long-running process
two sections may end up more than 2 GB apart, which references of 32 bits do not reach, and LLVM
then ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Less than references of 32 bits reach, and much more than any code.
_PIECE = 1 << 30
_PRIVATE, _ANONYMOUS, _NO_RESERVE = 0x02, 0x20, 0x4000
# By process: a child of fork() must not wait for a thread that it does not have.
_locks: dict[int, threading.Lock] = {}


@contextmanager
def one_piece() -> Iterator[None]:
    """Let this process find new memory in one piece of 1 GiB while the context lasts, on Linux.

    LLVM puts each section of an object wherever the process has room. In one that has worked for
    long that may be two places more than 2 GB apart, and LLVM ends the process where a reference of
    32 bits does not reach. Linux takes the highest place that is large enough: all places above a
    free piece are taken, without memory behind them, and given back at the end. One
    thread at a time: another would take the piece of the first.
    """
    with _locks.setdefault(os.getpid(), threading.Lock()):
        yield from _one_piece()


def _one_piece() -> Iterator[None]:
    mappings: list[tuple[int, int]] = []
    piece = _reserve(_PIECE) if sys.platform == "linux" else None
    try:
        if piece is not None:
            size = _PIECE // 2
            while size >= mmap.PAGESIZE:
                place = _reserve(size)
                if place is not None and place > piece:
                    mappings.append((place, size))
                    continue
                if place is not None:
                    _free(place, size)
                size //= 2
            _free(piece, _PIECE)
        yield
    finally:
        for place, size in mappings:
            _free(place, size)


def _reserve(size: int) -> int | None:
    """Take `size` bytes of addresses that nothing can be read from; None if there are none."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE
    place: int = libc.mmap(None, size, 0, flags, -1, 0) or 0
    return place if 0 < place < 1 << 63 else None


def _free(place: int, size: int) -> None:
    libc = ctypes.CDLL(None)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.munmap(place, size)


__all__ = ["one_piece"]
