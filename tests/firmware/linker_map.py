"""What GNU ld's map file says: the bytes that each object has in flash and in RAM.

Only sections with an address in the finished image count, so what the linker threw away does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Where an output section lies. Initial values of .data are in flash and are copied to RAM.
FLASH = (".start", ".text", ".rodata", ".data", ".ARM.exidx")
RAM = (".data", ".bss")
_OUTPUT = re.compile(r"^(\.[\w.]+)(?:\s+0x[0-9a-f]+\s+0x[0-9a-f]+.*)?$")
# `.text.f  0x0 0x10 f.o`, the name on a line of its own where it is long; `*fill*` has no file.
_INPUT = re.compile(r"^ (?:\S+)?\s+0x[0-9a-f]+\s+0x([0-9a-f]+)(?:\s+(\S.*?))?\s*$")
_MEMBER = re.compile(r"(?:.*/)?([^/()]+)(?:\((.*)\))?$")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one object in one output section; a member of a library is `libc.a:memcpy.o`, and
    what lies between two objects is ''."""

    file: str
    section: str
    bytes: int


@dataclass(frozen=True, slots=True)
class LinkerMap:
    """All pieces of an image."""

    pieces: tuple[Piece, ...]

    def bytes(self, *sections: str, files: str = ".*") -> int:
        """The bytes in these output sections of files whose whole name matches an expression."""
        chosen = (p for p in self.pieces if p.section in sections and re.fullmatch(files, p.file))
        return sum(p.bytes for p in chosen)

    def flash(self, files: str = ".*") -> int:
        """Code, constants and initial values."""
        return self.bytes(*FLASH, files=files)

    def ram(self, files: str = ".*") -> int:
        """Variables, with initial values or without; the stack is not among them."""
        return self.bytes(*RAM, files=files)

    def files(self) -> tuple[str, ...]:
        """The files of all pieces, in order of first appearance."""
        return tuple(dict.fromkeys(p.file for p in self.pieces if p.bytes))


def read_linker_map(path: Path) -> LinkerMap:
    """Read a map file of GNU ld."""
    _, _, text = path.read_text().partition("\nLinker script and memory map\n")
    assert text, f"{path} is no map file of GNU ld"
    section, pieces = "", []
    for line in text.splitlines():
        if match := _OUTPUT.match(line):
            section = match[1]
        elif line.startswith("/DISCARD/"):
            section = ""
        elif section in {*FLASH, *RAM} and (match := _INPUT.match(line)):
            named = match[2] is not None or line.startswith(" *fill*")
            pieces += [Piece(_file(match[2]), section, int(match[1], 16))] * named
    return LinkerMap(tuple(pieces))


def _file(text: str | None) -> str:
    if text is None:
        return ""
    match = _MEMBER.match(text)
    assert match is not None, text
    return f"{match[1]}:{match[2]}" if match[2] else match[1]
