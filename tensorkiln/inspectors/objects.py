"""Object code: its symbols with their sizes, its sections, and its instructions.

Instructions come from the package `capstone`, which is optional.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorkiln.artifact import Artifact, Later
from tensorkiln.artifact.binary import BinaryFile, Section, Symbol
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.errors import UserError
from tensorkiln.base.packages import missing_package
from tensorkiln.inspectors.table import table_lines

_TARGET = re.compile(r"#?(0x[0-9a-f]+)\Z")
_MOST = 1 << 22  # bytes of code that are disassembled at a time


@dataclass(frozen=True, slots=True)
class ObjectFunction:
    """The code of one symbol: `size` bytes from offset `start` of its section on."""

    name: str
    section: Section
    start: int
    size: int

    @property
    def address(self) -> int:
        """The address in the linked file; in an object, the section's address is 0."""
        return self.section.address + self.start


class LinkedCode(Later):
    """The content of an artifact whose object was linked into a library: the code of some of the
    library's functions."""

    def __init__(self, binary: BinaryFile, functions: Sequence[ObjectFunction]):
        self.binary, self.functions = binary, tuple(functions)
        self.size = sum(f.size for f in functions)

    def chunks(self) -> Iterator[memoryview]:
        """Yield the code of each function."""
        for f in self.functions:
            yield code_of(self.binary, f)

    @cached_property
    def view(self) -> memoryview:
        """The code of all functions, concatenated; a copy."""
        return memoryview(b"".join(self.chunks()))


def code_of(binary: BinaryFile, f: ObjectFunction) -> memoryview:
    """The bytes of a function."""
    return binary.content(f.section)[f.start : f.start + f.size]


def functions_of(binary: BinaryFile) -> tuple[ObjectFunction, ...]:
    """All functions of the symbol table (else of the dynamic one), by section and address. A
    function without a size extends to the next one. UserError (code `bad-library`) for a function
    outside its section."""
    symbols = [s for s in binary.symbols() or binary.symbols(dynamic=True) if s.is_function]
    placed: dict[tuple[int, int], Symbol] = {}
    for s in symbols:
        if s.is_defined and s.section < len(binary.sections) and binary.sections[s.section].is_code:
            placed.setdefault((s.section, s.address), s)
    functions = []
    keys = sorted(placed)
    for i, (index, address) in enumerate(keys):
        section, s = binary.sections[index], placed[index, address]
        start = address if binary.relocatable else address - section.address
        end = section.size
        if i + 1 < len(keys) and keys[i + 1][0] == index:
            end = start + keys[i + 1][1] - address
        size = s.size or end - start
        if not 0 <= start <= start + size <= section.size:
            raise UserError(
                f"function {s.name!r} lies outside section {section.name!r}",
                code="bad-library",
                where=binary.place,
            )
        functions.append(ObjectFunction(s.name, section, start, size))
    return tuple(functions)


def _opened(artifact: Artifact) -> tuple[BinaryFile, tuple[ObjectFunction, ...]]:
    content = artifact.content
    if isinstance(content, LinkedCode):
        return content.binary, content.functions
    binary = binary_of(artifact.view, artifact.name)
    return binary, functions_of(binary)


def functions_in(artifact: Artifact) -> tuple[ObjectFunction, ...]:
    """The functions of an object, of a library, or of linked code."""
    return _opened(artifact)[1]


# -- tables ------------------------------------------------------------------------------------


def show_symbols(artifact: Artifact) -> Iterator[str]:
    """A table of all symbols: defined ones by section and address, then undefined ones."""
    rows: list[tuple[str, ...]]
    if isinstance(artifact.content, LinkedCode):
        rows = [
            (f"{f.address:x}", str(f.size), "function", "", f.section.name, f.name)
            for f in functions_in(artifact)
        ]
    else:
        binary = binary_of(artifact.view, artifact.name)
        symbols = [s for s in binary.symbols() or binary.symbols(dynamic=True) if s.name]
        symbols.sort(key=lambda s: (not s.is_defined, s.section, s.address, s.name))
        rows = [_symbol_row(binary, s) for s in symbols]
    yield from table_lines(("address", "bytes", "kind", "seen", "section", "symbol"), rows, "rr")


def _symbol_row(binary: BinaryFile, s: Symbol) -> tuple[str, ...]:
    kind = "function" if s.is_function else "data" if s.is_data else "-"
    visibility = "inside" if s.is_hidden or not s.is_global else "outside"
    if not s.is_defined:
        return "-", "-", kind, visibility, "needed", s.name
    section = binary.sections[s.section].name if s.section < len(binary.sections) else "absolute"
    return f"{s.address:x}", str(s.size), kind, visibility, section, s.name


def show_sections(artifact: Artifact) -> Iterator[str]:
    """A table of all sections: address in memory, offset in the file, size."""
    binary = binary_of(artifact.view, artifact.name)
    rows = [
        (
            f"{s.address:x}",
            f"{s.offset:x}",
            str(s.size),
            "code" if s.is_code else "memory" if s.allocated else "file only",
            s.name,
        )
        for s in binary.sections
        if s.kind
    ]
    yield from table_lines(("address", "offset", "bytes", "kind", "section"), rows, "rrr")


# -- instructions ------------------------------------------------------------------------------


def show_instructions(artifact: Artifact) -> Iterator[str]:
    """Yield the disassembly of each function, with the names of branch targets and relocations.

    Code without symbols is disassembled section by section. Raises UserError: `missing-package`
    without capstone, `unknown-machine` for an architecture that it is not set up for.
    """
    binary, functions = _opened(artifact)
    engine = _engine(binary)
    if not functions:
        functions = tuple(
            ObjectFunction(s.name, s, 0, s.size) for s in binary.sections if s.is_code
        )
    named_functions = (
        functions if not isinstance(artifact.content, LinkedCode) else functions_of(binary)
    )
    names = _Names(binary, named_functions)
    yield f"# {artifact.name}: {binary.machine}, {sum(f.size for f in functions)} bytes of code\n"
    for f in functions:
        yield f"\n{f.name}:  # {f.size} bytes in {f.section.name}\n"
        code = code_of(binary, f)
        for start in range(0, len(code), _MOST):
            # An instruction across the end of a piece would be cut; no known function is that long.
            piece = bytes(code[start : start + _MOST])
            yield "".join(_lines(engine, piece, f.address + start, f.section, names))


def _lines(
    engine: Any, code: bytes, address: int, section: Section, names: _Names
) -> Iterator[str]:
    for position, size, word, operands in engine.disasm_lite(code, address):
        note = names.relocated(section, position, size)
        target = _TARGET.match(operands)
        if not note and target:
            note = names.at(int(target[1], 16))
        line = f"{position:8x}  {word:<12} {operands}".rstrip()
        yield f"{line}  # {note}\n" if note else f"{line}\n"


class _Names:
    """Names for addresses: functions of a linked file, relocations of an object."""

    def __init__(self, binary: BinaryFile, functions: Sequence[ObjectFunction]):
        self._binary = binary
        self._functions = (
            sorted(functions, key=lambda f: f.address) if not binary.relocatable else []
        )
        self._starts = [f.address for f in self._functions]
        self._relocations: dict[str, list[tuple[int, str]]] = {}

    def at(self, address: int) -> str:
        """`name+3f` for an address inside a function; empty for others."""
        i = bisect.bisect_right(self._starts, address) - 1
        if i < 0 or address >= self._starts[i] + max(1, self._functions[i].size):
            return ""
        distance = address - self._starts[i]
        return self._functions[i].name + (f"+{distance:x}" if distance else "")

    def relocated(self, section: Section, offset: int, size: int) -> str:
        """The symbol and addend of the first relocation in the `size` bytes at `offset`; empty if
        there is none, and for linked files."""
        if not self._binary.relocatable:
            return ""
        if section.name not in self._relocations:
            relocations = self._binary.relocations(section)
            self._relocations[section.name] = [
                (r.offset, r.symbol + (f"{r.addend:+#x}" if r.addend else "")) for r in relocations
            ]
        rows = self._relocations[section.name]
        i = bisect.bisect_left(rows, (offset, ""))
        return rows[i][1] if i < len(rows) and rows[i][0] < offset + size else ""


def _engine(binary: BinaryFile) -> Any:
    try:
        import capstone
    except ImportError:
        otherwise = "look at symbols, sections or hexdump"
        raise missing_package("capstone", "disassembly", otherwise, where=binary.place) from None
    machines = {
        "x86_64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
        "i386": (capstone.CS_ARCH_X86, capstone.CS_MODE_32),
        "aarch64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_LITTLE_ENDIAN),
        "arm": (capstone.CS_ARCH_ARM, capstone.CS_MODE_ARM),
        "riscv32": (capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV32 | capstone.CS_MODE_RISCVC),
        "riscv64": (capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC),
    }
    if binary.machine not in machines:
        raise UserError(
            f"instructions of machine {binary.machine!r} are not known",
            code="unknown-machine",
            where=binary.place,
            hint=f"known: {', '.join(machines)}",
        )
    engine = capstone.Cs(*machines[binary.machine])
    engine.skipdata = True
    if binary.machine in ("x86_64", "i386"):
        engine.syntax = capstone.CS_OPT_SYNTAX_ATT  # as LLVM writes assembly
    return engine
