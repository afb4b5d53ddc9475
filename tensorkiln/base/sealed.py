"""Private copies of files that nobody can change: what was checked is what is used.

Another process may exchange a file between its check and its use, or write into it while it is
mapped. The copy lies in sealed memory (memfd_create), which no process can write to, this one
included. It takes as much memory as the file has bytes, which children of fork() share.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import open_plain, write_at
from tensorkiln.base.trust import private_temporary

_SEALS = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")
_PIECE = 1 << 20
_LONGEST_NAME = 200  # bytes; Linux takes 249 for memory


class SealedCopy:
    """The content of a file as it was read once. `file` is an open descriptor of it, `path` opens
    it in this process, and `sha256` are the digits of its hash.

    Where the system has no sealed memory, or no `/proc` to open it by, the copy is a file in a
    private folder, which other processes of this user could write to.
    """

    def __init__(self, original: str | Path):
        """Copy a regular file. OSError if it cannot be read, UserError (code `out-of-memory`)
        without room for the copy."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        with open_plain(original) as stream:
            self.file, self.path = self._place(Path(original).name)
            try:
                self._fill(stream.fileno(), original)
            except BaseException:
                self.close()
                raise

    def _place(self, name: str) -> tuple[int, Path]:
        try:
            plain = os.fsencode(name)[:_LONGEST_NAME].decode(errors="replace")
            file = os.memfd_create(plain, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return self._file(name)
        path = Path(f"/proc/self/fd/{file}")
        if path.exists():
            return file, path
        os.close(file)
        return self._file(name)

    def _file(self, name: str) -> tuple[int, Path]:
        self._folder = private_temporary("kiln-sealed-")
        path = Path(self._folder.name) / name
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700), path

    def _fill(self, source: int, original: str | Path) -> None:
        offset = 0
        try:
            while piece := os.pread(source, _PIECE, offset):
                write_at(self.file, memoryview(piece), offset)
                offset += len(piece)
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG):
                raise
            raise UserError(
                f"no room for a copy of {str(original)!r}: {error.strerror}",
                code="out-of-memory",
                hint="sha256= keeps a copy in memory, of which nobody can change a byte",
            ) from error
        if self._folder is None:
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, sum(getattr(fcntl, s) for s in _SEALS))
        os.lseek(self.file, 0, os.SEEK_SET)
        with open(self.file, "rb", closefd=False, buffering=0) as sealed:
            self.sha256 = hashlib.file_digest(sealed, "sha256").hexdigest()

    def close(self) -> None:
        """Give back the descriptor; what is mapped stays mapped."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        if self._folder is not None:
            self._folder.cleanup()


__all__ = ["SealedCopy"]
