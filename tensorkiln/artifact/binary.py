"""What object files, shared libraries and programs have in any format: sections, symbols,
relocations, the libraries that they need. `artifact/read_binary.py` reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tensorkiln.base.errors import UserError


@dataclass(frozen=True, slots=True)
class Section:
    """A run of bytes with a name. `kind` and the indices `link` and `info` mean what the format
    says; `size` is that in memory: `.bss` has a size but takes no bytes in the file."""

    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    entry_size: int
    allocated: bool
    is_code: bool
    in_file: bool  # whether the section has bytes in the file


@dataclass(frozen=True, slots=True)
class Symbol:
    """A defined or undefined symbol. `address` is an offset in `section` in a relocatable object,
    else a virtual address relative to the load address."""

    name: str
    address: int
    size: int
    section: int
    is_function: bool
    is_data: bool
    is_global: bool
    is_defined: bool
    is_hidden: bool
    is_weak: bool = False


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place (byte offset in a section) that the linker fills from a symbol's address. `symbol` is
    the name of a section if the relocation refers to a section symbol."""

    offset: int
    symbol: str
    addend: int


@dataclass(frozen=True, slots=True)
class BinaryFile(ABC):
    """The headers of a file of code, and its bytes in `data`.

    `place` names the file in errors; `machine` is its architecture as in triples; `relocatable`
    says that it is an object file; `wide` means 64-bit, and `order` is the byte order as `struct`
    spells it, `<` or `>`. The methods raise UserError (code `bad-library`) for damaged tables.
    """

    place: str
    data: memoryview
    machine: str
    relocatable: bool
    wide: bool
    order: str
    sections: tuple[Section, ...]

    def section(self, name: str) -> Section | None:
        """Return the first section of that name, or None."""
        return next((s for s in self.sections if s.name == name), None)

    def content(self, section: Section) -> memoryview:
        """Return the bytes of a section, without a copy; empty for one without bytes in the
        file."""
        if not section.in_file:
            return self.data[:0]
        return self.data[section.offset : section.offset + section.size]

    @abstractmethod
    def symbols(self, *, dynamic: bool = False) -> tuple[Symbol, ...]:
        """Return the symbol table of linkers, or with `dynamic` the one of the dynamic loader;
        empty if the file has no such table."""

    @abstractmethod
    def group_names(self) -> tuple[str, ...]:
        """Return the names of an object's groups of sections (COMDAT); of several groups with one
        name a linker keeps the first."""

    @abstractmethod
    def relocations(self, section: Section) -> tuple[Relocation, ...]:
        """Return the relocations of a section of a 64-bit object, sorted by offset; empty for
        32-bit files."""

    @abstractmethod
    def needed(self) -> tuple[str, ...]:
        """Return the libraries that the dynamic loader must find, in order."""

    @abstractmethod
    def soname(self) -> str:
        """Return the library's own name, or the empty string."""

    @abstractmethod
    def run_paths(self) -> tuple[str, ...]:
        """Return the folders in which the dynamic loader looks for needed libraries first, as they
        stand there: `$ORIGIN` is the folder of the file."""


def damaged(message: str, place: str) -> UserError:
    """The error for a file that is not a valid binary: code `bad-library`."""
    return UserError(message, code="bad-library", where=place)
