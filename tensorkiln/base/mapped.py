"""Files mapped into memory, which remember what they were."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import BinaryIO


class MappedFile(mmap.mmap):
    """A whole file, read-only; pages come in as they are touched."""

    path: Path
    state: tuple[int, ...]

    def __new__(cls, stream: BinaryIO, path: str | Path) -> MappedFile:
        """Map the open file `path`; it may be closed then. ValueError for an empty one."""
        self = super().__new__(cls, stream.fileno(), 0, access=mmap.ACCESS_READ)
        self.path = Path(path).absolute()
        self.state = file_state(os.fstat(stream.fileno()))
        return self

    def changed(self) -> bool:
        """Whether it was written to since. A file that was replaced by another one was not: the
        map keeps the former alive."""
        try:
            now = file_state(self.path.stat())
        except OSError:
            return False
        return now[:2] == self.state[:2] and now != self.state


def file_state(info: os.stat_result) -> tuple[int, ...]:
    """Which file it is (device and number), its size and when it was written to."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
