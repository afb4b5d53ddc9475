"""Relocatable ELF objects of a few data sections, written without an assembler."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorkiln.link.data_section import DataSection, SectionUse

PROGBITS, SYMTAB, STRTAB, RELA, NOTE, NOBITS = 1, 2, 3, 4, 7, 8
WRITE, ALLOC, INFO_LINK, X86_LARGE = 1, 2, 0x40, 0x10000000

SECTION_NAMES: Mapping[SectionUse, str] = {
    "constant": ".rodata",
    "large constant": ".lrodata",
    "relocated": ".data.rel.ro",
    "note": ".note",
}
# sh_type and sh_flags. Only x86-64 has a flag for what code does not reach.
_KINDS: Mapping[SectionUse, tuple[int, int]] = {
    "constant": (PROGBITS, ALLOC),
    "large constant": (PROGBITS, ALLOC | X86_LARGE),
    "relocated": (PROGBITS, ALLOC | WRITE),
    "note": (NOTE, ALLOC),
}


class Machine(NamedTuple):
    """e_machine, e_flags of an object without code, and the types of 64-bit relocations for the
    address of a symbol and for the distance to one: of two types, the first adds the address of
    the symbol, the second takes off that of the word. In linked files `relative` is the type for
    the address at which the file is loaded, and a distance."""

    number: int
    flags: int
    relative: int
    relocations: Mapping[str, tuple[int, ...]]


# R_*_RELATIVE; R_X86_64_64, R_X86_64_PC64; R_AARCH64_ABS64, R_AARCH64_PREL64; R_RISCV_64,
# R_RISCV_ADD64 and R_RISCV_SUB64. The flag is EF_RISCV_FLOAT_ABI_DOUBLE: floats are passed in
# registers.
MACHINES = {
    "x86_64": Machine(62, 0, 8, {"absolute": (1,), "distance": (24,)}),
    "aarch64": Machine(183, 0, 1027, {"absolute": (257,), "distance": (260,)}),
    "riscv64": Machine(243, 4, 3, {"absolute": (2,), "distance": (35, 39)}),
}

HEADER = struct.Struct("<4s12xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")


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
    machine = MACHINES[arch]
    data = len(sections)
    relocated = [i for i, s in enumerate(sections) if s.words]
    strings, string_offsets = string_table([symbol])
    names = [s.name for s in sections] + [".rela" + sections[i].name for i in relocated]
    names += [".symtab", ".strtab", ".shstrtab", ".note.GNU-stack"]
    section_strings, name_offsets = string_table(names)
    # The null symbol, a section symbol for each section, the global symbol.
    symbols = bytes(SYMBOL.size)
    symbols += b"".join(SYMBOL.pack(0, 3, 0, i + 1, 0, 0) for i in range(data))
    symbols += SYMBOL.pack(string_offsets[0], 0x11, 2, section + 1, 0, size)
    tables = [
        b"".join(
            RELOCATION.pack(offset, (section_index + 1) << 32 | relocation, addend)
            for offset, kind, to in sections[i].words
            for relocation, section_index, addend in zip(
                machine.relocations[kind], (to, i), (0, offset), strict=False
            )
        )
        for i in relocated
    ]
    symtab = 1 + data + len(relocated)
    rows: list[bytes] = [bytes(SECTION.size)]
    position = HEADER.size
    starts = []
    for s, name in zip(sections, name_offsets, strict=False):
        position += -position % s.align
        starts.append(position)
        rows.append(section_header(name, *_KINDS[s.use], position, s.size, align=s.align))
        position += s.size
    tail: list[bytes] = []

    def after(part: bytes, k: int, kind: int, flags: int = 0, **fields: int) -> None:
        nonlocal position
        pad = bytes(-position % 8)
        position += len(pad)
        rows.append(section_header(name_offsets[k], kind, flags, position, len(part), **fields))
        tail.extend((pad, part))
        position += len(part)

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
    pad = bytes(-position % 8)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = struct.pack(
        "<HHIQQQIHHHHHH",
        1,
        machine.number,
        1,
        0,
        0,
        position + len(pad),
        machine.flags,
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
