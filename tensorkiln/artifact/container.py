"""The container format, version 1: artifacts as one byte sequence (docs/formats/container.md).

    header | node 0 | node 1 | ... | node `_import_tree`

A node is a loader's name and the artifacts it gets: those of one loader and target key. Node 0 is
the root, `_lib`: it has no artifacts and stands for the library that the container is part of. The
last node says in CSR form which node imports which. Little-endian. Nodes and contents begin at
multiples of 64 bytes with zeros as padding, so equal sets are equal bytes.

The reader verifies the hash before it reads any node, and checks every length against the bytes
left before it reads. The C runtime reads the format by the same rules (crt/container.c).
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tensorkiln.artifact.artifact import Content, content_chunks, content_size
from tensorkiln.base.errors import UserError

MAGIC = b"KILNSET\0"
MAJOR, MINOR = 1, 0
LIB, IMPORT_TREE = "_lib", "_import_tree"
ALIGN = 64
MAX_NAME = 1 << 12
MAX_HEADS = 1 << 21  # bytes of names, lengths, padding, imports: parsed they take up to 30 times
# magic, major, minor, zero, total length, SHA-256 of all from byte 56 on (the node count follows)
_HEAD = struct.Struct("<8sHHIQ32s")
_HASHED = _HEAD.size
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_LEAST_NODE = ALIGN  # least bytes of a node
_LEAST_FILE = 28  # least bytes of an artifact: position, three empty names, content length


@dataclass(frozen=True, slots=True)
class ContainerFile:
    """An artifact without its loader, which the node names. `position` is its index in the set."""

    position: int
    codegen_id: str
    file_name: str
    target_key: str
    content: Content


@dataclass(frozen=True, slots=True)
class Node:
    """The files for one loader: `key` is the loader's name, or `_lib`. `children` are the indices
    of the nodes that it imports, ascending."""

    key: str
    files: tuple[ContainerFile, ...] = ()
    children: tuple[int, ...] = ()


# ---- writing ------------------------------------------------------------------------------------


def pack(nodes: Sequence[Node]) -> Iterator[bytes | memoryview]:
    """Yield the container in pieces; contents are not copied, but read twice, first for the hash.

    Raises UserError (code `too-large`) if names and imports exceed MAX_HEADS.
    """
    total, digest = _HASHED, hashlib.sha256()
    for piece in _body(nodes):
        total += len(piece)
        digest.update(piece)
    heads = (
        total - _HASHED - sum(content_size(file.content) for node in nodes for file in node.files)
    )
    if heads > MAX_HEADS:
        raise UserError(
            f"names and imports take {heads} bytes; a container has room for {MAX_HEADS}",
            code="too-large",
            hint="fewer artifacts, or shorter names",
        )
    yield _HEAD.pack(MAGIC, MAJOR, MINOR, 0, total, digest.digest())
    yield from _body(nodes)


def _body(nodes: Sequence[Node]) -> Iterator[bytes | memoryview]:
    offset = _HASHED + _U64.size
    yield _U64.pack(len(nodes) + 1)
    for node in nodes:
        size = _U64.size + sum(_sizes(node, offset + _U64.size))
        yield _U64.pack(size)
        yield from _node_body(node, offset + _U64.size)
        offset += size
    tree = _string(IMPORT_TREE) + _csr(nodes)
    yield _U64.pack(_U64.size + len(tree) + -(len(tree) + _U64.size) % ALIGN)
    yield tree + bytes(-(len(tree) + _U64.size) % ALIGN)


def _sizes(node: Node, offset: int) -> Iterator[int]:
    """Yield the sizes in bytes of the pieces of `_node_body`, without reading any content."""
    head = 4 + len(node.key.encode()) + 4 * (node.key != LIB)
    yield head
    offset += head
    for file in node.files:
        names = (file.codegen_id, file.file_name, file.target_key)
        head = 4 + sum(4 + len(name.encode()) for name in names) + 8
        head += -(offset + head) % ALIGN
        yield head
        yield content_size(file.content)
        offset += head + content_size(file.content)
    yield -offset % ALIGN


def _node_body(node: Node, offset: int) -> Iterator[bytes | memoryview]:
    head = _string(node.key) + (b"" if node.key == LIB else _U32.pack(len(node.files)))
    yield head
    offset += len(head)
    for file in node.files:
        names = map(_string, (file.codegen_id, file.file_name, file.target_key))
        size = content_size(file.content)
        head = _U32.pack(file.position) + b"".join(names) + _U64.pack(size)
        yield head + bytes(-(offset + len(head)) % ALIGN)
        offset += len(head) + -(offset + len(head)) % ALIGN
        yield from content_chunks(file.content)
        offset += size
    yield bytes(-offset % ALIGN)


def _string(text: str) -> bytes:
    data = text.encode()
    return _U32.pack(len(data)) + data


def _csr(nodes: Sequence[Node]) -> bytes:
    """Return row pointers, then child indices, each preceded by their count."""
    rows, columns = [0], list[int]()
    for node in nodes:
        columns += node.children
        rows.append(len(columns))
    return struct.pack(
        f"<{len(rows) + len(columns) + 2}Q", len(rows), *rows, len(columns), *columns
    )


# ---- reading ------------------------------------------------------------------------------------


def unpack(data: memoryview) -> list[Node]:
    """Return the nodes of a container, without the import tree; contents are views into `data`.

    Raises UserError: code `bad-container` for any damage, `container-version` for another major
    version.
    """
    data = data.cast("B") if data.format != "B" or data.ndim != 1 else data
    minor = _check_head(data)
    reader = _Cursor(data, _HASHED)
    count = reader.u64("node count")
    if count < 2:
        _bad(f"{count} nodes; there are a root and the import tree at least")
    if count * _LEAST_NODE > reader.left:
        _bad(f"{count} nodes cannot fit into {reader.left} bytes")
    nodes = [reader.node(minor) for _ in range(count - 1)]
    rows, columns = reader.tree(len(nodes))
    if reader.left:
        _bad(f"trailing bytes: {reader.left} after the last node")
    tree = [tuple(columns[rows[i] : rows[i + 1]]) for i in range(len(nodes))]
    _check_tree(tree)
    return [Node(n.key, n.files, c) for n, c in zip(nodes, tree, strict=True)]


def _check_head(data: memoryview) -> int:
    """Return the minor version, after checking magic, major version, length and hash."""
    if len(data) < _HEAD.size:
        _bad(f"truncated: {len(data)} bytes, the header alone has {_HEAD.size}")
    magic, major, minor, zero, total, digest = _HEAD.unpack_from(data)
    if magic != MAGIC:
        _bad("it does not begin like an artifact container")
    if major != MAJOR:
        raise UserError(
            f"container version {major}.{minor}; this Tensorkiln reads {MAJOR}.x",
            code="container-version",
            where="artifact container",
            hint="read it with the Tensorkiln that wrote it, or a newer one",
        )
    if zero:
        _bad("its header is damaged: bytes 12 to 15 are not zero")
    if len(data) != total:
        state = "truncated" if len(data) < total else "trailing bytes"
        _bad(f"{state}: {len(data)} bytes where the header says {total}")
    if hashlib.sha256(data[_HASHED:]).digest() != digest:
        _bad("its hash does not match its content")
    return int(minor)


def _check_tree(tree: Sequence[tuple[int, ...]]) -> None:
    """Check that every node is reachable from the root and that there is no cycle."""
    for node, children in enumerate(tree):
        if list(children) != sorted(set(children)):
            _bad(f"the imports of node {node} are not in ascending order")
        if any(not 0 < child < len(tree) for child in children):
            _bad(f"node {node} imports a node that does not exist, or the root")
    importers = [0] * len(tree)
    for child in (c for children in tree for c in children):
        importers[child] += 1
    ready, visited_count = [0], 0
    while ready:  # nodes whose importers have all been seen
        visited_count += 1
        for child in tree[ready.pop()]:
            importers[child] -= 1
            if not importers[child]:
                ready.append(child)
    if visited_count != len(tree):
        _bad("its import tree has a cycle, or nodes that nobody imports")


def _bad(message: str) -> NoReturn:
    raise UserError(message, code="bad-container", where="artifact container")


class _Cursor:
    """A cursor over bytes that reports reads past their end."""

    def __init__(self, data: memoryview, start: int, end: int | None = None):
        self._data, self._at = data, start
        self._end = len(data) if end is None else end
        self._room = [MAX_HEADS]  # bytes left for anything but contents; shared by nodes' cursors

    @property
    def left(self) -> int:
        return self._end - self._at

    def take(self, size: int, label: str) -> memoryview:
        if size > self.left:
            _bad(f"{label} of {size} bytes at byte {self._at}, where {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def head(self, size: int, label: str) -> memoryview:
        """Take bytes that are not an artifact's content; they count against MAX_HEADS."""
        head_bytes = self.take(size, label)
        self._room[0] -= size
        if self._room[0] < 0:
            _bad(f"names and imports take more than {MAX_HEADS} bytes")
        return head_bytes

    def u32(self, label: str) -> int:
        value: int = _U32.unpack(self.head(4, label))[0]
        return value

    def u64(self, label: str) -> int:
        value: int = _U64.unpack(self.head(8, label))[0]
        return value

    def name(self) -> str:
        size = self.u32("name length")
        if size > MAX_NAME:
            _bad(f"a name of {size} bytes; at most {MAX_NAME} are allowed")
        name = bytes(self.head(size, "name"))
        try:
            text = name.decode()
        except UnicodeDecodeError:
            _bad(f"a name before byte {self._at} is not UTF-8")
        if name and min(name) < 32:
            _bad(f"a name before byte {self._at} has control characters")
        return text

    def pad(self) -> None:
        """Skip padding, zeros up to the next multiple of 64."""
        if any(self.head(-self._at % ALIGN, "padding")):
            _bad(f"padding before byte {self._at} is not zero")

    def inside(self) -> _Cursor:
        """Return a cursor over the next node, and move this one past the node."""
        size = self.u64("node length")
        if size < 8 or size % ALIGN:
            _bad(f"a node of {size} bytes before byte {self._at}; expected a multiple of {ALIGN}")
        self.take(size - 8, "node")
        inner = _Cursor(self._data, self._at - size + 8, self._at)
        inner._room = self._room
        return inner

    def node(self, minor: int) -> Node:
        reader = self.inside()
        key = reader.name()
        if key == LIB:
            files: tuple[ContainerFile, ...] = ()
        elif not key.startswith("_"):
            files = reader.files()
        elif minor > MINOR:
            return Node(key)  # a kind of node of a newer minor version, which readers may skip
        else:
            _bad(f"unknown node {key!r}")
        reader.pad()
        if reader.left:
            _bad(f"{reader.left} bytes too many in node {key!r}")
        return Node(key, files)

    def files(self) -> tuple[ContainerFile, ...]:
        count = self.u32("artifact count")
        if count * _LEAST_FILE > self.left:
            _bad(f"{count} artifacts cannot fit into {self.left} bytes")
        files = tuple(self.file() for _ in range(count))
        keys = {file.target_key for file in files}
        if len(keys) > 1:
            _bad(f"a node has artifacts of the target keys {sorted(keys)[:8]}, expected one")
        return files

    def file(self) -> ContainerFile:
        position = self.u32("position")
        codegen_id, file_name, target_key = self.name(), self.name(), self.name()
        size = self.u64("content length")
        self.pad()
        return ContainerFile(
            position, codegen_id, file_name, target_key, self.take(size, "content")
        )

    def tree(self, nodes: int) -> tuple[list[int], list[int]]:
        """Read the import tree: row pointers and child indices in CSR form."""
        reader = self.inside()
        key = reader.name()
        if key != IMPORT_TREE:
            _bad(f"the last node is {key!r}, expected {IMPORT_TREE!r}")
        rows = reader.numbers("row pointers")
        columns = reader.numbers("child indices")
        reader.pad()
        if reader.left:
            _bad(f"{reader.left} bytes too many in the import tree")
        if len(rows) != nodes + 1 or rows[0] != 0 or rows[-1] != len(columns):
            _bad(f"an import tree of {len(rows)} row pointers for {nodes} nodes")
        if any(a > b for a, b in itertools.pairwise(rows)):
            _bad("the row pointers of the import tree descend")
        return rows, columns

    def numbers(self, label: str) -> list[int]:
        count = self.u64(f"number of {label}")
        if count > self.left // 8:
            _bad(f"{count} {label} cannot fit into {self.left} bytes")
        return list(struct.unpack(f"<{count}Q", self.head(8 * count, label)))
