"""The reader of ELF, the format of Linux (`artifact/read_binary.py`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tensorkiln.artifact.binary import BinaryFile, Relocation, Section, Symbol, damaged

_MACHINES: dict[int, str] = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}
_NOBITS, _DYNAMIC, _SYMTAB, _DYNSYM, _RELA = 8, 6, 2, 11, 4
_GROUP = 17
_COMMON = 0xFFF2  # SHN_COMMON: tentative definitions, which the linker merges
_UNIQUE = 10  # STB_GNU_UNIQUE: several files may define it, a process has one definition
_CODE = 4  # SHF_EXECINSTR
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29
_MAX_SECTIONS = 1 << 16
_MAX_SYMBOLS = 1 << 18


@dataclass(frozen=True, slots=True)
class Elf(BinaryFile):
    """An ELF file. Docstrings of methods are those of `BinaryFile`, with names of its tables."""

    def symbols(self, *, dynamic: bool = False) -> tuple[Symbol, ...]:
        """Return the symbol table (`.symtab`), or with `dynamic` the one of the dynamic loader
        (`.dynsym`); empty if the file has no such table."""
        kind = _DYNSYM if dynamic else _SYMTAB
        table = next((s for s in self.sections if s.kind == kind), None)
        return () if table is None else tuple(self._symbols(table))

    def group_names(self) -> tuple[str, ...]:
        """Return the signatures of an object's section groups (COMDAT); of several groups with one
        signature a linker keeps the first."""
        symbols = self.symbols()
        groups = [s for s in self.sections if s.kind == _GROUP]
        if any(g.info >= len(symbols) for g in groups):
            raise damaged("a group is named by a symbol that does not exist", self.place)
        return tuple(filter(None, (symbols[g.info].name for g in groups)))

    def _symbols(self, table: Section) -> list[Symbol]:
        names = self._strings(table)
        layout = struct.Struct(self.order + ("IBBHQQ" if self.wide else "IIIBBH"))
        data = self.content(table)
        if len(data) > layout.size * _MAX_SYMBOLS:
            raise damaged(f"more than {_MAX_SYMBOLS} symbols", self.place)
        symbols = []
        for offset in range(0, len(data) - layout.size + 1, layout.size):
            row = layout.unpack_from(data, offset)
            if self.wide:
                name, info, visibility, index, address, size = row
            else:
                name, address, size, info, visibility, index = row
            symbols.append(
                Symbol(
                    name=names.text(name),
                    address=address,
                    size=size,
                    section=index,
                    is_function=info & 15 == 2,
                    is_data=info & 15 == 1,
                    is_global=info >> 4 in (1, 2, _UNIQUE),
                    is_defined=index != 0,
                    is_hidden=visibility & 3 in (1, 2),
                    is_weak=info >> 4 in (2, _UNIQUE) or index == _COMMON,
                )
            )
        return symbols

    def relocations(self, section: Section) -> tuple[Relocation, ...]:
        """Return the relocations of a section of a 64-bit object, sorted by offset; empty for
        32-bit files and for REL tables."""
        section_index = self.sections.index(section)
        table = next(
            (s for s in self.sections if s.kind == _RELA and s.info == section_index), None
        )
        if table is None or not self.wide:
            return ()
        symbols, data, rows = self.symbols(), self.content(table), []
        for offset, info, addend in struct.iter_unpack(
            self.order + "QQq", data[: len(data) // 24 * 24]
        ):
            if info >> 32 >= len(symbols):
                raise damaged(f"{table.name!r} names a symbol that does not exist", self.place)
            symbol = symbols[info >> 32]
            inside = symbol.section < len(self.sections) and not symbol.name
            name = self.sections[symbol.section].name if inside else symbol.name
            rows.append(Relocation(offset, name, addend))
        return tuple(sorted(rows, key=lambda r: r.offset))

    def needed(self) -> tuple[str, ...]:
        """Return the libraries that the dynamic loader must find (DT_NEEDED), in order."""
        return self._dynamic(_NEEDED)

    def soname(self) -> str:
        """Return the library's own name (DT_SONAME), or the empty string."""
        return next(iter(self._dynamic(_SONAME)), "")

    def run_paths(self) -> tuple[str, ...]:
        """Return the folders in which the dynamic loader looks for them first (DT_RPATH and
        DT_RUNPATH), as they stand there: `$ORIGIN` is the folder of the file."""
        texts = (*self._dynamic(_RPATH), *self._dynamic(_RUNPATH))
        return tuple(folder for text in texts for folder in text.split(":") if folder)

    def _dynamic(self, tag: int) -> tuple[str, ...]:
        table = next((s for s in self.sections if s.kind == _DYNAMIC), None)
        if table is None:
            return ()
        names = self._strings(table)
        layout = struct.Struct(self.order + ("qQ" if self.wide else "iI"))
        data = self.content(table)
        ends = range(layout.size, len(data) + 1, layout.size)
        rows = (layout.unpack_from(data, end - layout.size) for end in ends)
        return tuple(names.text(value) for key, value in rows if key == tag)

    def _strings(self, table: Section) -> _StringTable:
        if table.link >= len(self.sections):
            raise damaged(
                f"section {table.name!r} names a string table that does not exist", self.place
            )
        return _StringTable(self.content(self.sections[table.link]), len(self.data), self.place)


class _StringTable:
    """A string table. Names in it may overlap, but may not add up to more than the file's size
    (`room`): a malicious table of long overlapping names would exhaust memory."""

    def __init__(self, table: memoryview, room: int, place: str):
        self._table, self._room, self._where = table, room, place

    def text(self, offset: int) -> str:
        """Return the zero-terminated name that begins at byte `offset`, of at most 4,095 bytes."""
        if offset >= len(self._table):
            if offset == 0:
                return ""
            raise damaged("a name lies outside its string table", self._where)
        window = bytes(self._table[offset : offset + 4096])
        end = window.find(b"\0")
        if end < 0:
            raise damaged("a name without a terminator", self._where)
        self._room -= end
        if self._room < 0:
            raise damaged("its names are longer than the file", self._where)
        return window[:end].decode("utf-8", "replace")


def is_elf_object(head: bytes) -> bool:
    """Whether a file with these first bytes is an object file, of either byte order."""
    return head[16:18] in (b"\1\0", b"\0\1")


def elf_of(data: memoryview, place: str) -> Elf:
    """Read the headers of a file that begins with ELF's magic bytes."""
    if len(data) < 64 or data[4] not in (1, 2) or data[5] not in (1, 2):
        raise damaged("truncated or malformed ELF header", place)
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    kind, machine = struct.unpack_from(order + "HH", data, 16)
    if wide:
        table: int = struct.unpack_from(order + "Q", data, 0x28)[0]
        entry, count, names = struct.unpack_from(order + "HHH", data, 0x3A)
    else:
        table = struct.unpack_from(order + "I", data, 0x20)[0]
        entry, count, names = struct.unpack_from(order + "HHH", data, 0x2E)
    sections = _sections(data, (wide, order), (table, entry, count, names), place)
    name = _MACHINES.get(machine, str(machine))
    if name == "riscv":
        name += "64" if wide else "32"
    return Elf(place, data, name, kind == 1, wide, order, sections)


def _sections(
    data: memoryview, form: tuple[bool, str], header: tuple[int, int, int, int], place: str
) -> tuple[Section, ...]:
    (wide, order), (table, entry, count, names) = form, header
    layout = struct.Struct(order + ("IIQQQQIIQQ" if wide else "IIIIIIIIII"))
    if count == 0 or count > _MAX_SECTIONS or entry < layout.size or names >= count:
        raise damaged("no section headers (stripped too far, or truncated)", place)
    if table + entry * count > len(data):
        raise damaged(f"truncated: section headers lie beyond its {len(data)} bytes", place)
    rows = [layout.unpack_from(data, table + entry * index) for index in range(count)]
    for row in rows:
        if row[1] != _NOBITS and row[4] + row[5] > len(data):
            raise damaged(f"truncated: a section lies beyond its {len(data)} bytes", place)
    strings = _StringTable(data[rows[names][4] : rows[names][4] + rows[names][5]], len(data), place)
    return tuple(
        Section(
            name=strings.text(row[0]),
            kind=row[1],
            address=row[3],
            offset=row[4],
            size=row[5],
            link=row[6],
            info=row[7],
            entry_size=row[9],
            allocated=bool(row[2] & 2),
            is_code=bool(row[2] & _CODE),
            in_file=row[1] != _NOBITS,
        )
        for row in rows
    )
