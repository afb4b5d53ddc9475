"""The constants of a compile, concatenated, as content that is packed while it is written."""

from __future__ import annotations

import hashlib
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
from tensorkiln.ir.plan import Plan
from tensorkiln.ir.relax import Constant
from tensorkiln.ir.text.print_relax import digest

ALIGN = 64
# Bytes that are packed and written at once: one huge page. Linux caches data that is written so in
# a huge page, and maps that as one if the addresses are aligned (link/elf/weights_segment.py).
# Reading 256 MiB of weights then runs at 29.6 GB/s instead of 25.6 in small pages; the first time
# at 27.9 instead of 12.3.
BLOCK = 2 << 20
_SAMPLE = 64

_NOTHING = np.frombuffer(bytes(1), np.uint8)
# Offset in a block, array, and the range of the array's bytes, in row-major order, that go there.
_Part = tuple[int, np.ndarray | Padded, int, int]


@dataclass(slots=True)
class WeightArena:
    """All constants end to end in the order of their first use, 64-byte aligned.

    In that order a kernel that prefetches past its own weights warms the next kernel's.
    """

    arrays: list[np.ndarray | Padded] = field(default_factory=list)
    size: int = 0
    constants: dict[ConstantInfo, None] = field(default_factory=dict)  # in order
    # id(array) -> offset. The arrays are kept alive, so that no id is used again.
    _placed: dict[int, int] = field(default_factory=dict)
    _alive: list[np.ndarray | Padded] = field(default_factory=list)
    # Size and sample -> the first array with these.
    _alike: dict[tuple[int, bytes], np.ndarray | Padded] = field(default_factory=dict)
    _digests: dict[str, int] = field(default_factory=dict)
    _told_apart: dict[str, None] = field(default_factory=dict)  # digests of arrays alike, not equal

    def place_constant(self, c: Constant) -> int:
        """Place a constant and return its byte offset; its name and type are added to the table
        `constants`."""
        offset = self.place(c.data)
        shape = tuple(int_value(d) or 0 for d in c.type.shape)
        layout = str(c.type.layout or "")
        # Without what follows '#', by which a script tells constants of one name apart.
        name = c.name.rpartition("#")[0] or c.name or "const"
        self.constants[ConstantInfo(name, c.type.dtype.name, shape, layout, offset)] = None
        return offset

    def place_plan(self, plan: Plan) -> None:
        """Place the constants of a graph function, in the order in which its calls read them."""
        for _, c in plan.constants_read():
            self.place_constant(c)

    @property
    def identity(self) -> str:
        """A hexadecimal digest that tells these constants from others: of all names, types and
        offsets, and of a few elements of each array, since hashing all takes longer than writing
        it. Whether equal arrays are one object or several does not count: text does not say it."""
        digest_state = hashlib.sha256(
            repr((tuple(self.constants), tuple(self._told_apart))).encode()
        )
        for size, sample in self._alike:
            digest_state.update(size.to_bytes(8, "little") + sample)
        return digest_state.hexdigest()

    def place(self, array: np.ndarray | Padded) -> int:
        """Place an array and return its byte offset; arrays with the same bytes share one.

        An array without elements gets the offset of a byte that is never read.
        """
        if not array.nbytes:
            array = _NOTHING
        if id(array) in self._placed:
            return self._placed[id(array)]
        offset = self.size
        # Hashing all weights takes longer than writing them, so only what looks alike is hashed.
        first = self._alike.setdefault((array.nbytes, _sample(array)), array)
        if first is not array:
            self._digests.setdefault(digest(first), self._placed[id(first)])
            offset = self._digests.setdefault(digest(array), offset)
            if offset == self.size:
                self._told_apart |= {digest(first): None, digest(array): None}
        self._placed[id(array)] = offset
        self._alive.append(array)
        if offset == self.size:
            self.arrays.append(array)
            self.size += -(-array.nbytes // ALIGN) * ALIGN
        return offset


def _sample(array: np.ndarray | Padded) -> bytes:
    """The bytes of at most _SAMPLE elements, evenly spaced over an array."""
    if array.size <= _SAMPLE:
        return np.asarray(array).tobytes()
    places = np.linspace(0, array.size - 1, _SAMPLE, dtype=np.int64)
    index = np.unravel_index(places, array.shape)
    return (array.take(index) if isinstance(array, Padded) else array[index]).tobytes()


class WeightsContent(Later):
    """The arrays of an arena, each packed to row-major order when it is written.

    Views of the model's file stay views until then. Arrays that a caller could still write to are
    copied at once, to a temporary file, so that they are not in memory twice. Writing raises
    UserError (code `changed-file`) if the model's file was written to in the meantime.
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
        """Yield the offset and the parts of each block of at most BLOCK bytes, in order."""
        for file in self._files:
            if file.changed():
                raise UserError(
                    "the model's file was written to after it was read, and the weights are in it",
                    code="changed-file",
                    where=str(file.path),
                    hint="compile again; write models to a new file and rename that",
                )
        parts: list[_Part] = []
        block = offset = 0
        for array in self._arrays:
            begin = 0
            while begin < array.nbytes:
                stop = min(array.nbytes, begin + block + BLOCK - offset)
                parts.append((offset - block, array, begin, stop))
                offset, begin = offset + stop - begin, stop
                if begin == array.nbytes:
                    offset += -offset % ALIGN
                if offset == block + BLOCK:
                    yield block, parts
                    block, parts = offset, []
        if parts:
            yield block, parts

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in pieces, padding between arrays included."""
        for offset, parts in self._blocks():
            yield _filled(np.empty(min(BLOCK, self.size - offset), np.uint8), parts)

    @cached_property
    def view(self) -> memoryview:
        """All bytes, as a mapping of an unnamed temporary file."""
        if not self.size:
            return memoryview(b"")
        with tempfile.TemporaryFile(prefix="kiln-weights-") as stream:
            stream.truncate(self.size)
            self.write(stream.fileno(), 0)
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))

    def write(self, file: int, offset: int) -> None:
        """Write all bytes to an open file from byte `offset` on, in several threads: copying and
        writing release Python's global lock."""
        rooms: list[np.ndarray] = []  # buffers to use again, at most one per thread

        def one(block: tuple[int, list[_Part]]) -> None:
            n, parts = block
            room = rooms.pop() if rooms else np.empty(min(BLOCK, self.size), np.uint8)
            write_at(file, _filled(room[: self.size - n], parts), offset + n)
            rooms.append(room)

        in_threads(one, self._blocks())

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self.view),)


def _owner(array: np.ndarray | Padded) -> object:
    """The object that owns an array's memory: the last of the chain of its bases."""
    owner: object = array.array if isinstance(array, Padded) else array
    while True:
        if isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        elif isinstance(owner, memoryview):
            owner = owner.obj
        else:
            return owner


def _is_settled(owner: object) -> bool:
    """Whether no caller can write to memory of this owner any more."""
    if isinstance(owner, np.ndarray):
        return not owner.flags.writeable
    return isinstance(owner, MappedFile | bytes)


def _settled(arrays: list[np.ndarray | Padded]) -> list[np.ndarray]:
    """Copies of arrays as bytes: views of one mapping of an unnamed temporary file."""
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
    out, offset = [], 0
    for a in arrays:
        out.append(np.frombuffer(mapped, np.uint8, a.nbytes, offset))
        offset += a.nbytes
    return out


def _filled(room: np.ndarray, parts: list[_Part]) -> memoryview:
    """Fill `room` with the parts of a block, and zeros between them."""
    room[:] = 0
    for position, array, start, stop in parts:
        for part in parts_between(array, start, stop):
            view = room[position : position + part.nbytes].view(part.dtype)
            np.copyto(view.reshape(part.shape), part)
            position += part.nbytes
    return room.data
