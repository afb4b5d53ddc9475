"""The files of an archive in Model Library Format, from a tar file or an unpacked folder.

An archive is untrusted input: a member that is not a plain file, a name that leads out, or that two
members have, is an error, whoever reads the archive and for whatever.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Generator, Iterator
from pathlib import Path

from tensorkiln.artifact.artifact import FileContent, content_inside
from tensorkiln.artifact.tar import read_tar
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import open_plain, plain_path
from tensorkiln.base.folders import LIST

_MOST = 100_000  # files
_LONGEST = 4096  # bytes of a name
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


def archive_files(path: str | Path) -> dict[str, FileContent]:
    """The files by their names in the archive, `/` between folders. No byte of them is read.

    Raises UserError: `missing-file`, or `bad-archive` naming the member that is not plain, leads
    out, is there twice, or is cut off.
    """
    place = plain_path(path)
    if place.is_dir():
        return dict(_limited(_of_folder(place), str(path)))
    files: dict[str, FileContent] = {}
    folded: dict[str, str] = {}
    for name, content in _limited(_of_tar(place), str(path)):
        first = folded.setdefault(name.casefold(), name)
        if name in files or first != name:
            also = "" if first == name else f", and {first!r} has that name where case is ignored"
            raise _bad(f"{name!r} is there twice{also}", str(path))
        files[name] = content
    return files


def _limited(
    files: Iterator[tuple[str, FileContent]], place: str
) -> Iterator[tuple[str, FileContent]]:
    for i, row in enumerate(files):
        if i == _MOST:
            raise _bad(f"more than {_MOST} files", place)
        yield row


def _of_folder(root: Path) -> Iterator[tuple[str, FileContent]]:
    for folder, below, names in os.walk(root):
        below.sort()
        for name in sorted(names):
            relative = (Path(folder) / name).relative_to(root).as_posix()
            if relative != LIST:
                yield relative, content_inside(root, relative)


def _of_tar(path: Path) -> Iterator[tuple[str, FileContent]]:
    place = str(path)
    try:
        with open_plain(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            packed = _COMPRESSED.get(stream.read(2))
            stream.seek(0)
            if packed:
                raise UserError(
                    f"it is compressed by {packed}, and an archive is not",
                    code="bad-archive",
                    where=place,
                    hint="decompress it first",
                )
            with read_tar(stream) as tar:
                end = yield from _members(tar, path, size)
            stream.seek(min(end, size))
            tail = stream.read(1024)
    except OSError as error:
        message = f"cannot read {place!r}: {error.strerror}"
        raise UserError(message, code="missing-file") from error
    except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError) as error:
        raise _bad(f"not a tar file that can be read: {error}", place) from None
    if len(tail) < 1024 or any(tail):
        raise _bad("it is cut off, or damaged: its end is missing", place)


def _members(
    tar: tarfile.TarFile, path: Path, size: int
) -> Generator[tuple[str, FileContent], None, int]:
    """Yield the plain files; return the byte behind the last member."""
    end = 0
    for member in tar:
        name = _checked_name(member.name, str(path))
        end = member.offset_data + (-(-member.size // 512) * 512 if member.isreg() else 0)
        if member.isdir():
            continue
        if not member.isreg() or member.sparse is not None:
            raise _bad(f"{name!r} is not a plain file", str(path))
        if member.size < 0 or member.offset_data + member.size > size:
            raise _bad(f"{name!r} is not whole in it", str(path))
        yield name, FileContent(path, member.offset_data, member.size)
    return end


def metadata_member(path: Path, member_name: str) -> dict[str, FileContent]:
    """The first plain file of that name in a tar file, which may be damaged behind it."""
    try:
        with open_plain(path) as stream, read_tar(stream) as tar:
            for member in tar:
                if member.name.removeprefix("./") == member_name and member.isreg():
                    return {member_name: FileContent(path, member.offset_data, member.size)}
    except (OSError, tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError):
        pass
    return {}


def _checked_name(raw_name: str, place: str) -> str:
    """The name without `./`; UserError if it is not that of a file in the archive."""
    name = raw_name.removeprefix("./").rstrip("/")
    parts = name.split("/")
    try:
        long = len(name.encode()) > _LONGEST
    except UnicodeEncodeError:
        raise _bad(f"{raw_name!r:.200} is not a name in UTF-8", place) from None
    outside = raw_name.startswith("/") or ".." in parts or (parts[0][1:2] == ":")
    if outside or long or "\\" in name or any(ord(c) < 32 for c in name):
        raise _bad(f"{raw_name!r:.200} is not the name of a file inside of it", place)
    if name not in ("", ".") and any(p in ("", ".") for p in parts):
        raise _bad(f"{raw_name!r:.200} has an empty part", place)
    return name


def _bad(message: str, place: str) -> UserError:
    return UserError(message, code="bad-archive", where=place)
