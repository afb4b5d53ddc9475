"""The container format, version 1: artifacts as one run of bytes.

    magic "KILNSET" + version byte | total length u64 | sha256 of the body | body
    body = node count u32, then per node: four names (u32 length + UTF-8), content (u64 + bytes)

Little-endian. Every length is checked against what is left before anything is read, and the hash
before any node is.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

from tensorkiln.base.errors import UserError

MAGIC = b"KILNSET"
VERSION = 1
_HEAD = struct.Struct("<7sBQ32s")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MAX_NAME = 1 << 12

Names = tuple[str, str, str, str]


def pack(nodes: Sequence[tuple[Names, memoryview]]) -> Iterator[bytes | memoryview]:
    """The container of `nodes` (names, content) in pieces; contents are passed on uncopied."""
    total, digest = _HEAD.size, hashlib.sha256()
    for piece in _body(nodes):
        total += len(piece)
        digest.update(piece)
    yield _HEAD.pack(MAGIC, VERSION, total, digest.digest())
    yield from _body(nodes)


def _body(nodes: Sequence[tuple[Names, memoryview]]) -> Iterator[bytes | memoryview]:
    yield _U32.pack(len(nodes))
    for names, content in nodes:
        encoded = [name.encode() for name in names]
        yield b"".join(_U32.pack(len(name)) + name for name in encoded)
        yield _U64.pack(len(content))
        yield content


def unpack(data: memoryview) -> list[tuple[Names, memoryview]]:
    """The nodes of a container; contents are views into `data`. UserError for any damage."""
    data = data.cast("B") if data.format != "B" or data.ndim != 1 else data
    if len(data) < _HEAD.size:
        raise _bad(f"truncated: {len(data)} bytes, the header alone has {_HEAD.size}")
    magic, version, total, digest = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise _bad("it does not begin like an artifact container")
    if version != VERSION:
        raise _bad(f"version {version}; this version reads {VERSION}")
    if len(data) != total:
        state = "truncated" if len(data) < total else "trailing bytes"
        raise _bad(f"{state}: {len(data)} bytes where the header says {total}")
    if hashlib.sha256(data[_HEAD.size :]).digest() != digest:
        raise _bad("its hash does not match its content")
    reader = _Reader(data, _HEAD.size)
    count = reader.u32("node count")
    if count * 24 > reader.left:  # four names and a length, all empty
        raise _bad(f"{count} nodes cannot fit into {reader.left} bytes")
    nodes = [reader.node() for _ in range(count)]
    if reader.left:
        raise _bad(f"trailing bytes: {reader.left} after the last node")
    return nodes


def _bad(message: str) -> UserError:
    return UserError(message, code="bad-container", where="artifact container")


class _Reader:
    """A cursor that cannot leave its bytes."""

    def __init__(self, data: memoryview, at: int):
        self._data, self._at = data, at

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int, what: str) -> memoryview:
        if size > self.left:
            raise _bad(f"{what} of {size} bytes at byte {self._at}, where {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def u32(self, what: str) -> int:
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def name(self) -> str:
        size = self.u32("name length")
        if size > _MAX_NAME:
            raise _bad(f"a name of {size} bytes; at most {_MAX_NAME} are allowed")
        try:
            return bytes(self.take(size, "name")).decode()
        except UnicodeDecodeError:
            raise _bad(f"a name before byte {self._at} is not UTF-8") from None

    def node(self) -> tuple[Names, memoryview]:
        names = (self.name(), self.name(), self.name(), self.name())
        size: int = _U64.unpack(self.take(8, "content length"))[0]
        return names, self.take(size, "content")
