"""Tar archives with nothing in them but names and bytes: equal files give equal archives. Archives
of others are read with a bound on what their headers take.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import BinaryIO

from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.base.files import atomic_open, folder_beside, plain_path

_HEADER = 1 << 16  # bytes of the headers of one member, among them its name
# Python looks for a record behind each digit of these headers, so many in a row take long.
_DIGITS = re.compile(rb"[0-9]{101}")


class _Headers:
    """A stream of which `tarfile` reads headers: one that claims gigabytes is refused before they
    are read."""

    def __init__(self, stream: BinaryIO):
        self._stream, self._room = stream, _HEADER

    def read(self, size: int = -1) -> bytes:
        """Read part of a header."""
        self._room -= size
        if size < 0 or self._room < 0:
            raise tarfile.ReadError(f"a header of more than {_HEADER} bytes")
        data = self._stream.read(size)
        if _DIGITS.search(data):
            raise tarfile.ReadError("a number of more than 100 digits")
        return data

    def tell(self) -> int:
        """The position, which `tarfile` asks for at the beginning of each header."""
        self._room = _HEADER
        return self._stream.tell()

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to another header."""
        return self._stream.seek(position, whence)


def read_tar(stream: BinaryIO) -> tarfile.TarFile:
    """The members of an uncompressed archive, for iteration: none can be extracted. Raises
    tarfile.TarError also where the headers of one member take more than 64 KiB."""
    return tarfile.open(fileobj=_Headers(stream), mode="r:")  # type: ignore[call-overload, no-any-return]


def write_tar(artifacts: ArtifactSet, path: str | Path) -> Path:
    """Write the files of `ArtifactSet.save` as an uncompressed archive; return its path.

    Equal sets give equal bytes. Raises the UserErrors of `save`.
    """
    target = plain_path(path)
    with (
        atomic_open(target) as stream,  # first, for its error message if the folder is missing
        folder_beside(target) as folder,
    ):
        artifacts.save(folder / "set")
        write_folder(folder / "set", stream)
    return target


def write_folder(root: Path, stream: BinaryIO) -> None:
    """Write all files below a folder as an uncompressed archive. Entries are sorted and have no
    owner and time."""
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            entry = tarfile.TarInfo(file.relative_to(root).as_posix())
            entry.size, entry.mode = file.stat().st_size, 0o644
            with file.open("rb") as content:
                archive.addfile(entry, content)
