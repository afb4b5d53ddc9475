"""Relocatable ELF objects of a few data sections, written without an assembler."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

PROGBITS, SYMTAB, STRTAB, RELA, NOTE, NOBITS = 1, 2, 3, 4, 7, 8
WRITE, ALLOC, INFO_LINK, X86_LARGE = 1, 2, 0x40, 0x10000000

# e_machine, and the types of 64-bit relocations for the address of a symbol (R_X86_64_64,
# R_AARCH64_ABS64) and the distance to one (R_X86_64_PC64, R_AARCH64_PREL64).
MACHINES = {
    "x86_64": (62, {"absolute": 1, "distance": 24}),
    "aarch64": (183, {"absolute": 257, "distance": 260}),
}

HEADER = struct.Struct("<4s12xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")


@dataclass(frozen=True, slots=True)
class DataSection:
    """A section of `size` bytes, which `content` yields in pieces; `kind` and `flags` are sh_type
    and sh_flags. `words` are its relocations: (offset, "absolute" or "distance", index of the
    section whose start is the target)."""

    name: str
    kind: int
    flags: int
    align: int
    size: int
    content: Iterable[bytes | memoryview]
    words: tuple[tuple[int, str, int], ...] = ()


def string_table(names: Iterable[str]) -> tuple[bytes, list[int]]:
    """A string table and the offset of each name."""
    table, offsets = b"\0", []
    for name in names:
        offsets.append(len(table))
        table += name.encode() + b"\0"
    return table, offsets


def section_header(
    name: int,
    kind: int,
    flags: int,
    offset: int,
    size: int,
    *,
    address: int = 0,
    link: int = 0,
    info: int = 0,
    align: int = 1,
    entry: int = 0,
) -> bytes:
    """One row (Elf64_Shdr) of the section header table."""
    return SECTION.pack(name, kind, flags, address, offset, size, link, info, align, entry)


def object_chunks(
    arch: str, sections: Sequence[DataSection], symbol: str, section: int, size: int
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of an object with the given sections. It defines one global, hidden symbol:
    `symbol`, of `size` bytes, at the start of `sections[section]`."""
    machine, kinds = MACHINES[arch]
    data = len(sections)
    relocated = [i for i, s in enumerate(sections) if s.words]
    strings, string_at = string_table([symbol])
    names = [s.name for s in sections] + [".rela" + sections[i].name for i in relocated]
    names += [".symtab", ".strtab", ".shstrtab", ".note.GNU-stack"]
    section_strings, name_at = string_table(names)
    # The null symbol, a section symbol for each section, the global symbol.
    symbols = bytes(SYMBOL.size)
    symbols += b"".join(SYMBOL.pack(0, 3, 0, i + 1, 0, 0) for i in range(data))
    symbols += SYMBOL.pack(string_at[0], 0x11, 2, section + 1, 0, size)
    tables = [
        b"".join(
            RELOCATION.pack(offset, (to + 1) << 32 | kinds[kind], 0)
            for offset, kind, to in sections[i].words
        )
        for i in relocated
    ]
    symtab = 1 + data + len(relocated)
    rows: list[bytes] = [bytes(SECTION.size)]
    at = HEADER.size
    starts = []
    for s, name in zip(sections, name_at, strict=False):
        at += -at % s.align
        starts.append(at)
        rows.append(section_header(name, s.kind, s.flags, at, s.size, align=s.align))
        at += s.size
    tail: list[bytes] = []

    def after(part: bytes, k: int, kind: int, flags: int = 0, **more: int) -> None:
        nonlocal at
        pad = bytes(-at % 8)
        at += len(pad)
        rows.append(section_header(name_at[k], kind, flags, at, len(part), **more))
        tail.extend((pad, part))
        at += len(part)

    for k, (i, table) in enumerate(zip(relocated, tables, strict=True)):
        after(
            table,
            data + k,
            RELA,
            INFO_LINK,
            link=symtab,
            info=i + 1,
            align=8,
            entry=RELOCATION.size,
        )
    after(symbols, symtab - 1, SYMTAB, link=symtab + 1, info=data + 1, align=8, entry=SYMBOL.size)
    after(strings, symtab, STRTAB)
    after(section_strings, symtab + 1, STRTAB)
    after(b"", symtab + 2, PROGBITS)
    pad = bytes(-at % 8)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = struct.pack(
        "<HHIQQQIHHHHHH",
        1,
        machine,
        1,
        0,
        0,
        at + len(pad),
        0,
        HEADER.size,
        0,
        0,
        SECTION.size,
        len(rows),
        symtab + 2,
    )
    yield ident + head
    written = HEADER.size
    for s, start in zip(sections, starts, strict=True):
        yield bytes(start - written)
        yield from s.content
        written = start + s.size
    yield from tail
    yield pad
    yield from rows
