"""Weights behind a linked library, as a segment of their own.

The linker sees a placeholder: the pointer `kiln_weights`, and a note that says how far from the
note the pointer is. `Placed` then turns the program header of the note into one that maps the
weights, which follow the linker's output in the file, and points the pointer there. So the linker
never reads or writes gigabytes, its output does not depend on the weights' values, and they are
written once, straight to their place. Large ones begin at a huge page in the file and in memory, so
that a kernel which holds the file in huge pages may map it in them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tensorkiln.artifact.sections import WEIGHTS, WEIGHTS_PAD
from tensorkiln.base.errors import InternalError
from tensorkiln.link.elf_object import (
    ALLOC,
    NOTE,
    PROGBITS,
    SECTION,
    WRITE,
    DataSection,
    object_chunks,
    section_header,
)

_OWNER = b"tensorkiln\0\0"  # of the note: 11 bytes, padded to a multiple of 4
HUGE_PAGE = 2 << 20
_NOTE_HEAD = struct.pack("<III", 11, 8, 1) + _OWNER
_PROGRAM = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address, physical, file, memory, align
_LOAD, _DYNAMIC, _NOTE, _READ = 1, 2, 4, 4
_RELA, _RELASZ, _RELR = 7, 8, 36
_RELATIVE = {62: 8, 183: 1027}
_RELOCATION = struct.Struct("<QQq")


def placeholder(arch: str, symbol: str = "kiln_weights") -> bytes:
    """The object that is linked in the weights' stead."""
    note = DataSection(
        ".note.kiln.weights", NOTE, ALLOC, 8, len(_NOTE_HEAD) + 8, [_NOTE_HEAD, bytes(8)],
        ((len(_NOTE_HEAD), "distance", 1),),
    )  # fmt: skip
    pointer = DataSection(
        ".data.rel.ro", PROGBITS, ALLOC | WRITE, 8, 8, [bytes(8)], ((0, "absolute", 0),)
    )
    return b"".join(object_chunks(arch, [note, pointer], symbol, 1, 8))


@dataclass(frozen=True, slots=True)
class Placed:
    """A library up to its weights, where in the file they start, and what follows their pad."""

    head: bytes
    start: int
    tail: bytes


def place_weights(linked: bytes, size: int) -> Placed:
    """What to write around `size` bytes of weights. Raises InternalError where a linker dropped the
    placeholder, or made of it what is not understood."""
    out = bytearray(linked)
    (table,) = struct.unpack_from("<Q", out, 32)
    (count,) = struct.unpack_from("<H", out, 56)
    rows = [_PROGRAM.unpack_from(out, table + i * _PROGRAM.size) for i in range(count)]
    loads = [row for row in rows if row[0] == _LOAD]
    notes = [row for row in rows if row[0] == _NOTE and linked.startswith(_NOTE_HEAD, row[2])]
    if len(notes) != 1 or not loads:
        raise _lost("no segment of notes holds it alone")
    note = notes[0]
    page = max(HUGE_PAGE if size >= 2 * HUGE_PAGE else 4096, *(row[7] for row in loads))
    start = _up(len(out), page)
    address = _up(max(row[3] + row[6] for row in loads), page)
    _point(out, rows, note, address)
    row = (_LOAD, _READ, start, address, address, size + WEIGHTS_PAD, size + WEIGHTS_PAD, page)
    # Loaders expect segments in the order of their addresses.
    rows.remove(note)
    rows.insert(rows.index(loads[-1]) + 1, row)
    for i, each in enumerate(rows):
        _PROGRAM.pack_into(out, table + i * _PROGRAM.size, *each)
    tail = _sections(out, start, address, size + WEIGHTS_PAD)
    return Placed(bytes(out), start, tail)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _lost(what: str) -> InternalError:
    return InternalError(
        f"the linker's output has no place for the weights: {what}",
        code="link-failed",
        hint="it must keep the section .note.kiln.weights",
    )


def _point(
    out: bytearray, rows: list[tuple[int, ...]], note: tuple[int, ...], address: int
) -> None:
    """Let the pointer hold `address`: in the file, and in what the loader adds its base to."""
    (distance,) = struct.unpack_from("<q", out, note[2] + len(_NOTE_HEAD))
    pointer = note[3] + len(_NOTE_HEAD) + distance
    struct.pack_into("<Q", out, _offset(rows, pointer), address)
    (machine,) = struct.unpack_from("<H", out, 18)
    dynamic = _dynamic(out, rows)
    start = _offset(rows, dynamic[_RELA]) if _RELA in dynamic else 0
    for at in range(start, start + dynamic.get(_RELASZ, 0), _RELOCATION.size):
        where, info, _ = _RELOCATION.unpack_from(out, at)
        if where == pointer and info == _RELATIVE[machine]:
            _RELOCATION.pack_into(out, at, where, info, address)
            return
    if _RELR not in dynamic:  # there the pointer itself is what the loader adds to
        raise _lost("nothing relocates their pointer")


def _offset(rows: list[tuple[int, ...]], address: int) -> int:
    """Where in the file the byte at `address` is."""
    for row in rows:
        if row[0] == _LOAD and row[3] <= address < row[3] + row[5]:
            return address - row[3] + row[2]
    raise _lost(f"address {address:#x} is in no segment")


def _dynamic(out: bytearray, rows: list[tuple[int, ...]]) -> dict[int, int]:
    """What the library tells the loader, the last value of each tag."""
    found: dict[int, int] = {}
    for row in rows:
        if row[0] == _DYNAMIC:
            found.update(struct.iter_unpack("<qQ", out[row[2] : row[2] + row[5]]))
    return found


def _sections(out: bytearray, start: int, address: int, size: int) -> bytes:
    """The table of sections with one more, and its names, as they follow the weights."""
    (table,) = struct.unpack_from("<Q", out, 40)
    _, count, names = struct.unpack_from("<HHH", out, 58)
    if count == 0:
        return b""
    rows = [list(SECTION.unpack_from(out, table + i * SECTION.size)) for i in range(count)]
    strings = bytes(out[rows[names][4] : rows[names][4] + rows[names][5]])
    name = len(strings)
    strings += WEIGHTS.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    rows[names][4:6] = start + size, len(strings)
    more = section_header(name, PROGBITS, ALLOC, start, size, address=address, align=4096)
    struct.pack_into("<Q", out, 40, start + size + len(strings))
    struct.pack_into("<H", out, 60, count + 1)
    return strings + b"".join(SECTION.pack(*row) for row in rows) + more
