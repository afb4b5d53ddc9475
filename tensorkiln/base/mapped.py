"""Memory-mapped files that can tell whether they were modified after mapping."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import BinaryIO


class MappedFile(mmap.mmap):
    """A read-only map of a whole file; pages are loaded on first access."""

    path: Path
    state: tuple[int, ...]

    def __new__(cls, stream: BinaryIO, path: str | Path) -> MappedFile:
        """Map the open file `stream`, which may be closed afterwards; `path` is its name.
        ValueError for an empty file."""
        self = super().__new__(cls, stream.fileno(), 0, access=mmap.ACCESS_READ)
        self.path = Path(path).absolute()
        self.state = file_state(os.fstat(stream.fileno()))
        return self

    def changed(self) -> bool:
        """Whether the mapped file was written to since it was mapped. False if another file took
        its name or it was removed: the map keeps the former file alive."""
        try:
            now = file_state(self.path.stat())
        except OSError:
            return False
        return now[:2] == self.state[:2] and now != self.state


def file_state(info: os.stat_result) -> tuple[int, ...]:
    """Return device, inode number, size in bytes and modification time in nanoseconds."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
