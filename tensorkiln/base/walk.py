"""Paths that are followed one component at a time, in folders that stay open: another process that
exchanges a component for a link meanwhile leads nowhere else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_MAX_LINKS = 40  # symbolic links in a path, as in Linux
# Opening a folder to pass through it needs no permission to read it, where the system can do that.
_PASSING = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

Identity = tuple[int, int]  # device and inode


def identity(info: os.stat_result) -> Identity:
    """The pair of numbers that identifies a file or folder."""
    return info.st_dev, info.st_ino


class Walk:
    """`with Walk(path) as walk:` follows all components of an absolute path; `folder` is then the
    open folder of its last component `name`, `info` describes that, and `passed` are the folders
    on the way, links resolved. OSError where a component is missing, or is not a folder.
    """

    def __init__(self, path: Path):
        self.passed = list[Identity]()
        self.name, self.folder = "", -1
        self.info: os.stat_result
        self._pending = list(reversed(path.parts[1:]))
        self._root = path.anchor
        self._names = list[str]()
        self._open = list[int]()
        self._links = 0

    def __enter__(self) -> Walk:
        try:
            self._enter(self._root)
            while self._pending:
                self._step(self._pending.pop())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    @property
    def path(self) -> Path:
        """The path as far as it was followed, links resolved."""
        return Path(*self._names, self.name)

    def open(self, flags: int) -> int:
        """Open the file, which is the one that `info` describes, or OSError."""
        file = os.open(self.name, flags | _NO_LINK, dir_fd=self.folder)
        if identity(os.fstat(file)) != identity(self.info):
            os.close(file)
            raise OSError(errno.ESTALE, "it changed while it was opened")
        return file

    def _step(self, part: str) -> None:
        if part in ("", "."):
            return
        if part == "..":
            if len(self._open) > 1:
                self._leave()
            return
        self.folder, self.name = self._open[-1], part
        self.info = os.stat(part, dir_fd=self.folder, follow_symlinks=False)
        if stat.S_ISLNK(self.info.st_mode):
            self._follow(os.readlink(part, dir_fd=self.folder))
        elif self._pending:
            self._enter(part)

    def _enter(self, part: str) -> None:
        folder = self._open[-1] if self._open else None
        file = os.open(part, _PASSING | _NO_LINK, dir_fd=folder)
        self._open.append(file)
        self._names.append(part)
        self.passed.append(identity(os.fstat(file)))
        self.name = ""

    def _leave(self) -> None:
        os.close(self._open.pop())
        self._names.pop()
        self.passed.pop()
        self.name = ""

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._pending += reversed(Path(target).parts)
        if self._pending[-1] == self._root:
            self._pending.pop()
            while len(self._open) > 1:
                self._leave()

    def _close(self) -> None:
        while self._open:
            os.close(self._open.pop())


def identities(folders: Iterable[str | Path]) -> set[Identity]:
    """Those of the folders that exist."""
    result = set[Identity]()
    for folder in folders:
        try:
            result.add(identity(Path(folder).stat()))
        except OSError:
            continue
    return result


__all__ = ["Walk", "identities", "identity"]
