"""The files in a static library (`ar`) or a tar file, as (name, offset, size), without copies."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from tensorkiln.artifact.tar import read_tar
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import open_plain

AR_MAGIC = b"!<arch>\n"
_HEAD = 60
Member = tuple[str, int, int]  # name, offset in the archive, size in bytes


def ar_members(data: memoryview, place: str) -> Iterator[Member]:
    """Yield the files of a static library, with GNU or BSD names; symbol tables are left out.
    Raises UserError (code `bad-archive`) for a malformed or truncated archive."""
    offset, names = len(AR_MAGIC), b""
    while offset < len(data):
        head = bytes(data[offset : offset + _HEAD])
        size_text = head[48:58].strip()
        if len(head) < _HEAD or head[58:60] != b"`\n" or not size_text.isdigit():
            raise _bad(f"no file header at byte {offset}", place)
        start, size = offset + _HEAD, int(size_text)
        if start + size > len(data):
            raise _bad(f"truncated: a file ends at byte {start + size} of {len(data)}", place)
        offset = start + size + size % 2
        name = head[:16].rstrip()
        if name == b"//":
            names = bytes(data[start : start + size])
        elif name not in (b"/", b"/SYM64/") and not name.startswith(b"__.SYMDEF"):
            text, skip = _ar_name(name, names, data[start : start + size], place)
            if not text.startswith("__.SYMDEF"):
                yield text, start + skip, size - skip


def _ar_name(name: bytes, names: bytes, content: memoryview, place: str) -> tuple[str, int]:
    """(the name of a file, how many bytes it takes at the start of the content, as BSD has it)."""
    if name.startswith(b"#1/") and name[3:].isdigit():
        size = int(name[3:])
        if size > len(content):
            raise _bad("a name is longer than its file", place)
        return bytes(content[:size]).rstrip(b"\0").decode("utf-8", "replace"), size
    if name.startswith(b"/") and name[1:].isdigit():
        start = int(name[1:])
        end = names.find(b"\n", start)
        if start >= len(names) or end < 0:
            raise _bad("a name lies outside the table of names", place)
        name = names[start:end]
    return name.removesuffix(b"/").decode("utf-8", "replace"), 0


def tar_members(path: Path) -> Iterator[Member]:
    """Yield the regular files of an uncompressed tar file; links and devices are left out. Raises
    UserError (code `bad-archive`) for a malformed archive, or a sparse or truncated file in it."""
    try:
        with open_plain(path) as stream, read_tar(stream) as tar:
            size = path.stat().st_size
            for info in tar:
                if info.isreg():
                    if info.sparse is not None or info.offset_data + info.size > size:
                        raise _bad(f"{info.name!r} is not whole in it", str(path))
                    yield info.name, info.offset_data, info.size
    except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError) as error:
        raise _bad(f"not a tar file that can be read: {error}", str(path)) from None


def _bad(message: str, place: str) -> UserError:
    return UserError(message, code="bad-archive", where=place)
