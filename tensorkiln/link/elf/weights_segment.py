"""Append weights to a linked library, as a segment of their own.

The linker sees a placeholder: the pointer `kiln_weights`, and an ELF note that holds the distance
to the pointer. `place_weights` then turns the program header of the note into one that maps the
weights, which follow the linker's output in the file, and sets the pointer to their address. So the
linker never reads or writes gigabytes, its output does not depend on the weights' values, and they
are written once, directly to their offset in the file, behind everything else, so that all of that
can be read and checked at once (artifact/digest.py). Large weights are aligned to huge pages in
the file and in memory, so that an operating system which caches the file in huge pages can map
these, unless the library is to be small: a huge page leaves up to 2 MiB empty before them.

Weights in a separate file beside the library take no space in it: the segment reserves addresses
only, to which the runtime maps that file when the library is opened (crt/weights.c). After the
pointer follow a flag that says whether the weights are beside, and in both cases their SHA-256.
"""

from __future__ import annotations

import struct

from tensorkiln.artifact import digest
from tensorkiln.artifact.sections import WEIGHTS, WEIGHTS_PAD, WEIGHTS_SYMBOL
from tensorkiln.base.errors import InternalError
from tensorkiln.link.data_section import (
    POINTER_SIZE,
    DataSection,
    WeightsPlacement,
    weights_pointer,
)
from tensorkiln.link.elf.data_object import (
    ALLOC,
    MACHINES,
    NOBITS,
    PROGBITS,
    SECTION,
    SECTION_NAMES,
    object_chunks,
    section_header,
)

_OWNER = b"tensorkiln\0\0"  # the note's name: 11 bytes, padded to a multiple of 4
HUGE_PAGE = 2 << 20
_NOTE_HEAD = struct.pack("<III", 11, 8, 1) + _OWNER
_PROGRAM = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address, physical, file, memory, align
_LOAD, _DYNAMIC, _NOTE, _READ = 1, 2, 4, 4
_RELA, _RELASZ, _RELR = 7, 8, 36
_RELATIVE = {machine.number: machine.relative for machine in MACHINES.values()}
_RELOCATION = struct.Struct("<QQq")


def placeholder(arch: str) -> bytes:
    """The object that is linked in place of the weights."""
    note = DataSection(
        f"{SECTION_NAMES['note']}.kiln.weights",
        "note",
        8,
        len(_NOTE_HEAD) + 8,
        [_NOTE_HEAD, bytes(8)],
        ((len(_NOTE_HEAD), "distance", 1),),
    )
    pointer = weights_pointer(SECTION_NAMES["relocated"])
    return b"".join(object_chunks(arch, [note, pointer], WEIGHTS_SYMBOL, 1, POINTER_SIZE))


def place_weights(
    linked: bytes, size: int, beside: bytes | None = None, compact: bool = False
) -> WeightsPlacement:
    """Lay out the file made of the linker's output and `size` bytes of weights. `beside` is the
    SHA-256 of weights that go into a separate file: all of this file is then in the head, with that
    hash. If `compact`, large weights are not aligned to huge pages. Raises InternalError if the
    linker dropped the placeholder or changed its form."""
    out = bytearray(linked) + bytes(-len(linked) % 8)
    (table,) = struct.unpack_from("<Q", out, 32)
    (count,) = struct.unpack_from("<H", out, 56)
    rows = [_PROGRAM.unpack_from(out, table + i * _PROGRAM.size) for i in range(count)]
    loads = [row for row in rows if row[0] == _LOAD]
    note = _placeholder_note(linked, rows)
    huge = size >= 2 * HUGE_PAGE and not compact
    page = max(HUGE_PAGE if huge else 4096, *(row[7] for row in loads))
    address = _up(max(row[3] + row[6] for row in loads), page)
    hash_at = _point(out, rows, note, address, beside) + 16
    stored = size + WEIGHTS_PAD if beside is None else 0
    start = _place_sections(out, address, size + WEIGHTS_PAD, page if stored else 0)
    offset = start if stored else 0  # an empty segment's must be equal to its address modulo `page`
    row = (_LOAD, _READ, offset, address, address, stored, size + WEIGHTS_PAD, page)
    # Loaders expect segments in the order of their addresses.
    rows.remove(note)
    rows.insert(rows.index(loads[-1]) + 1, row)
    for i, program in enumerate(rows):
        _PROGRAM.pack_into(out, table + i * _PROGRAM.size, *program)
    return WeightsPlacement(out, start, hash_at)


def _placeholder_note(linked: bytes, rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The program header of the placeholder's note."""
    notes = [row for row in rows if row[0] == _NOTE and linked.startswith(_NOTE_HEAD, row[2])]
    if len(notes) != 1 or all(row[0] != _LOAD for row in rows):
        raise _lost("no segment of notes holds it alone")
    return notes[0]


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _lost(reason: str) -> InternalError:
    return InternalError(
        f"the linker's output has no place for the weights: {reason}",
        code="link-failed",
        hint="it must keep the section .note.kiln.weights",
    )


def _point(
    out: bytearray,
    rows: list[tuple[int, ...]],
    note: tuple[int, ...],
    address: int,
    beside: bytes | None,
) -> int:
    """Set the pointer to `address`, in its own bytes and in the addend of its relocation; return
    the file offset of the pointer."""
    (distance,) = struct.unpack_from("<q", out, note[2] + len(_NOTE_HEAD))
    pointer = note[3] + len(_NOTE_HEAD) + distance
    place = _offset(rows, pointer)
    struct.pack_into("<QQ32s", out, place, address, beside is not None, beside or b"")
    (machine,) = struct.unpack_from("<H", out, 18)
    dynamic = _dynamic(out, rows)
    start = _offset(rows, dynamic[_RELA]) if _RELA in dynamic else 0
    for entry in range(start, start + dynamic.get(_RELASZ, 0), _RELOCATION.size):
        target, info, _ = _RELOCATION.unpack_from(out, entry)
        if target == pointer and info == _RELATIVE[machine]:
            _RELOCATION.pack_into(out, entry, target, info, address)
            return place
    if _RELR not in dynamic:  # relocations in DT_RELR have no addend but the pointer's own bytes
        raise _lost("nothing relocates their pointer")
    return place


def _offset(rows: list[tuple[int, ...]], address: int) -> int:
    """The file offset of the byte that is loaded at `address`."""
    for row in rows:
        if row[0] == _LOAD and row[3] <= address < row[3] + row[5]:
            return address - row[3] + row[2]
    raise _lost(f"address {address:#x} is in no segment")


def _dynamic(out: bytearray, rows: list[tuple[int, ...]]) -> dict[int, int]:
    """The entries of the dynamic section: the last value of each tag."""
    entries: dict[int, int] = {}
    for row in rows:
        if row[0] == _DYNAMIC:
            entries.update(struct.iter_unpack("<qQ", out[row[2] : row[2] + row[5]]))
    return entries


def _place_sections(out: bytearray, address: int, size: int, page: int) -> int:
    """Append the names of the sections and the section header table, with one more section for the
    weights, to `out`, and refer to these in the ELF header. Return the file offset of the weights,
    a multiple of `page`, with room for a digest before it; if `page` is 0, they take no bytes of
    the file. A library without section header table gets none."""
    (table,) = struct.unpack_from("<Q", out, 40)
    _, count, names = struct.unpack_from("<HHH", out, 58)
    rows = [list(SECTION.unpack_from(out, table + i * SECTION.size)) for i in range(count)]
    if rows:
        strings = bytes(out[rows[names][4] : rows[names][4] + rows[names][5]])
        name = len(strings)
        strings += WEIGHTS.encode() + b"\0"
        rows[names][4:6] = len(out), len(strings)
        out += strings
        out += bytes(-len(out) % 8)
        table = len(out)
    end = table + (count + 1) * SECTION.size if rows else len(out)
    start = _up(end + digest.SIZE, page) if page else end
    if rows:
        kind = PROGBITS if page else NOBITS
        header = section_header(name, kind, ALLOC, start, size, address=address, align=4096)
        out += b"".join(SECTION.pack(*row) for row in rows) + header
        struct.pack_into("<Q", out, 40, table)
        struct.pack_into("<H", out, 60, count + 1)
    return start
