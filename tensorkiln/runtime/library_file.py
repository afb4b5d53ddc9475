"""Reading a library as a file: machine and metadata, with no code of it running."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UserError

_SECTION = b".kiln.meta"
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 40: "arm", 3: "i386"}
_MAX_SECTIONS = 4096
_MAX_METADATA = 64 << 20
METADATA_VERSION = 1

Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """What the file itself says."""

    path: Path
    machine: str
    metadata: Metadata


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{str(path)!r} is no library of ours: {what}", code="not-a-library")


def _metadata_bytes(path: Path, raw: mmap.mmap) -> bytes:
    """Content of the metadata section; every offset is checked against the file's size."""
    if raw[4] != 2 or raw[5] != 1:
        raise _damaged(path, "not a 64-bit little-endian ELF file")
    table, entry, count, names = struct.unpack_from("<Q10xHHH", raw, 40)
    if entry != 64 or not 0 < count <= _MAX_SECTIONS or table + 64 * count > len(raw):
        raise _damaged(path, "its section table is damaged or cut off")
    if names >= count:
        raise _damaged(path, "its section names are damaged")
    sections = [struct.unpack_from("<IIQQQQ", raw, table + 64 * i) for i in range(count)]
    start = sections[names][4]
    for name, kind, _flags, _address, offset, size in sections:
        at = start + name
        if at + len(_SECTION) >= len(raw) or kind == 8:
            continue
        if raw[at : at + len(_SECTION) + 1] == _SECTION + b"\0":
            if offset + size > len(raw) or size > _MAX_METADATA:
                raise _damaged(path, "its metadata is cut off")
            return raw[offset : offset + size].rstrip(b"\0")
    raise _damaged(path, "it has no section .kiln.meta")


def read_library_file(path: str | Path) -> LibraryFile:
    """Machine and metadata of a library; UserError for a file that is none, or newer than us."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            head = stream.read(64)
            if len(head) < 64 or head[:4] != b"\x7fELF":
                raise _damaged(file, "not an ELF shared library")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                text = _metadata_bytes(file, raw)
    except FileNotFoundError:
        raise UserError(f"no such file: {str(file)!r}", code="no-file") from None
    except OSError as error:
        raise UserError(f"cannot read {str(file)!r}: {error.strerror}", code="no-file") from error
    (machine,) = struct.unpack_from("<H", head, 18)
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        raise _damaged(file, "its metadata is not JSON") from None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("functions"), list):
        raise _damaged(file, "its metadata lists no functions")
    if metadata.get("format") != METADATA_VERSION:
        raise UserError(
            f"{str(file)!r} has metadata version {metadata.get('format')!r}, "
            f"this Tensorkiln reads version {METADATA_VERSION}",
            code="library-version",
        )
    return LibraryFile(file, _MACHINES.get(machine, f"ELF machine {machine}"), metadata)


def read_metadata(path: str | Path) -> Metadata:
    """The metadata of a library, read from the file: no code is loaded."""
    return read_library_file(path).metadata
