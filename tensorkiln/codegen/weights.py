"""The constants of a compile end to end, as content that is packed while it is written."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tensorkiln.artifact.artifact import Later, write_at
from tensorkiln.artifact.metadata import ConstantInfo
from tensorkiln.base.errors import UserError
from tensorkiln.base.mapped import MappedFile
from tensorkiln.base.threads import in_threads
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.padded import Padded, parts_between
from tensorkiln.ir.relax import Constant
from tensorkiln.ir.text.print_relax import digest

ALIGN = 64
# Bytes that are packed and written at once: a huge page. Linux keeps what is written so in one, and
# maps it as one where addresses allow (link/weights_segment.py). Reading 256 MiB of weights runs at
# 29.6 GB/s then, and at 25.6 in small pages; the first time, at 27.9 for 12.3.
BLOCK = 2 << 20
_SAMPLE = 64

_NOTHING = np.frombuffer(bytes(1), np.uint8)
# Where in a block a part goes; an array, and which of its bytes in row-major order.
_Part = tuple[int, np.ndarray | Padded, int, int]


@dataclass(slots=True)
class WeightArena:
    """All constants end to end in the order of their first use, 64-byte aligned.

    In that order a kernel that prefetches past its own weights warms the next kernel's.
    """

    arrays: list[np.ndarray | Padded] = field(default_factory=list)
    size: int = 0
    constants: dict[ConstantInfo, None] = field(default_factory=dict)  # in order
    _placed: dict[int, int] = field(default_factory=dict)  # by identity, hence:
    _alive: list[np.ndarray | Padded] = field(default_factory=list)
    _alike: dict[tuple[int, bytes], np.ndarray | Padded] = field(default_factory=dict)
    _digests: dict[str, int] = field(default_factory=dict)

    def place_constant(self, c: Constant) -> int:
        """The byte offset of a constant, whose name and type the table of constants then tells."""
        at = self.place(c.data)
        shape = tuple(int_value(d) or 0 for d in c.type.shape)
        layout = str(c.type.layout or "")
        # As a script gives names back: what follows '#' tells apart those that are the same.
        name = c.name.rpartition("#")[0] or c.name or "const"
        self.constants[ConstantInfo(name, c.type.dtype.name, shape, layout, at)] = None
        return at

    def place(self, array: np.ndarray | Padded) -> int:
        """The byte offset of an array; arrays of the same bytes are one, as in the text.

        One without elements has an address, too, of a byte that nobody reads.
        """
        if not array.nbytes:
            array = _NOTHING
        if id(array) in self._placed:
            return self._placed[id(array)]
        at = self.size
        # Hashing all weights takes longer than writing them, so only what looks alike is hashed.
        first = self._alike.setdefault((array.nbytes, _sample(array)), array)
        if first is not array:
            self._digests.setdefault(digest(first), self._placed[id(first)])
            at = self._digests.setdefault(digest(array), at)
        self._placed[id(array)] = at
        self._alive.append(array)
        if at == self.size:
            self.arrays.append(array)
            self.size += -(-array.nbytes // ALIGN) * ALIGN
        return at


def _sample(array: np.ndarray | Padded) -> bytes:
    """A few elements from all over an array."""
    if array.size <= _SAMPLE:
        return np.asarray(array).tobytes()
    places = np.linspace(0, array.size - 1, _SAMPLE, dtype=np.int64)
    index = np.unravel_index(places, array.shape)
    return (array.take(index) if isinstance(array, Padded) else array[index]).tobytes()


class WeightsContent(Later):
    """The arrays of an arena, each packed to row-major order when it is written.

    Views of the model's file stay views until then. What somebody might write to is copied to a
    temporary file at once, so that it is the weights of now, and not in memory twice.
    Raises UserError where the model's file was written to in the meantime.
    """

    def __init__(self, arena: WeightArena):
        self.size = arena.size
        owners = [_owner(a) for a in arena.arrays]
        self._files = {o for o in owners if isinstance(o, MappedFile)}
        loose = [a for a, o in zip(arena.arrays, owners, strict=True) if not _is_settled(o)]
        settled = iter(_settled(loose))
        self._arrays = [
            a if _is_settled(o) else next(settled)
            for a, o in zip(arena.arrays, owners, strict=True)
        ]

    def _blocks(self) -> Iterator[tuple[int, list[_Part]]]:
        """All bytes in order: where each block goes, and what lies in it."""
        for file in self._files:
            if file.changed():
                raise UserError(
                    "the model's file was written to after it was read, and the weights are in it",
                    code="changed-file",
                    where=str(file.path),
                    hint="compile again; write models to a new file and rename that",
                )
        parts: list[_Part] = []
        block = at = 0
        for array in self._arrays:
            done = 0
            while done < array.nbytes:
                stop = min(array.nbytes, done + block + BLOCK - at)
                parts.append((at - block, array, done, stop))
                at, done = at + stop - done, stop
                if done == array.nbytes:
                    at += -at % ALIGN
                if at == block + BLOCK:
                    yield block, parts
                    block, parts = at, []
        if parts:
            yield block, parts

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in pieces, padding between arrays included."""
        for at, parts in self._blocks():
            yield _filled(np.empty(min(BLOCK, self.size - at), np.uint8), parts)

    @cached_property
    def view(self) -> memoryview:
        """The bytes in a temporary file that has no name, mapped."""
        if not self.size:
            return memoryview(b"")
        with tempfile.TemporaryFile(prefix="kiln-weights-") as stream:
            stream.truncate(self.size)
            self.write(stream.fileno(), 0)
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))

    def write(self, file: int, at: int) -> None:
        """Into a file. Copying and writing run outside Python's lock."""
        rooms: list[np.ndarray] = []  # as many as there are threads

        def one(block: tuple[int, list[_Part]]) -> None:
            n, parts = block
            room = rooms.pop() if rooms else np.empty(min(BLOCK, self.size), np.uint8)
            write_at(file, _filled(room[: self.size - n], parts), at + n)
            rooms.append(room)

        in_threads(one, self._blocks())

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self.view),)


def _owner(array: np.ndarray | Padded) -> object:
    """What an array is a view of, at the end."""
    owner: object = array.array if isinstance(array, Padded) else array
    while True:
        if isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        elif isinstance(owner, memoryview):
            owner = owner.obj
        else:
            return owner


def _is_settled(owner: object) -> bool:
    """Whether nobody can write to it any more."""
    if isinstance(owner, np.ndarray):
        return not owner.flags.writeable
    return isinstance(owner, MappedFile | bytes)


def _settled(arrays: list[np.ndarray | Padded]) -> list[np.ndarray]:
    """Copies of arrays, views of one temporary file without a name."""
    total = sum(a.nbytes for a in arrays)
    if not total:
        return [np.asarray(a) for a in arrays]
    with tempfile.TemporaryFile(prefix="kiln-weights-") as stream:
        for a in arrays:
            for start in range(0, a.nbytes, BLOCK):
                parts = [(0, a, start, min(start + BLOCK, a.nbytes))]
                stream.write(_filled(np.empty(parts[0][3] - start, np.uint8), parts))
        stream.flush()
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    out, at = [], 0
    for a in arrays:
        out.append(np.frombuffer(mapped, np.uint8, a.nbytes, at))
        at += a.nbytes
    return out


def _filled(room: np.ndarray, parts: list[_Part]) -> memoryview:
    """A block of bytes: its parts, and zeros between them."""
    room[:] = 0
    for at, array, start, stop in parts:
        for part in parts_between(array, start, stop):
            there = room[at : at + part.nbytes].view(part.dtype)
            np.copyto(there.reshape(part.shape), part)
            at += part.nbytes
    return room.data
