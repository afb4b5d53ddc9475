"""Weights as an ELF object, written directly: no assembler, no second copy in memory.

Layout of the object: one read-only section with the bytes and a zero pad (kernels prefetch past
the end), and one pointer `kiln_weights` to it. C code reads the pointer only, so the section may
lie further away than the 2 GB that x86-64 code can address (section `.lrodata`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

PAD = 65536  # KILN_WEIGHTS_PAD in crt.h
_LARGE = 1_900_000_000
_MACHINE = {"x86_64": (62, 1), "aarch64": (183, 257)}  # e_machine, its 64-bit absolute relocation
_PAGE = 4096

Buffer = bytes | bytearray | memoryview

_PROGBITS, _SYMTAB, _STRTAB, _RELA = 1, 2, 3, 4
_WRITE, _ALLOC, _INFO_LINK, _X86_LARGE = 1, 2, 0x40, 0x10000000


def weights_size(weights: Path | Sequence[Buffer]) -> int:
    """Bytes of a weights file, or of buffers laid end to end."""
    if isinstance(weights, Path):
        return weights.stat().st_size
    return sum(memoryview(part).nbytes for part in weights)


def _copy(stream: BinaryIO, weights: Path | Sequence[Buffer]) -> None:
    if isinstance(weights, Path):
        with weights.open("rb") as source:
            while chunk := source.read(1 << 24):
                stream.write(chunk)
    else:
        for part in weights:
            stream.write(memoryview(part).cast("B"))


def _section(
    name: int,
    kind: int,
    flags: int,
    offset: int,
    size: int,
    *,
    link: int = 0,
    info: int = 0,
    align: int = 1,
    entry: int = 0,
) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, kind, flags, 0, offset, size, link, info, align, entry)


def _strings(names: Iterable[str]) -> tuple[bytes, list[int]]:
    """A string table and the offset of each name."""
    table, offsets = b"\0", []
    for name in names:
        offsets.append(len(table))
        table += name.encode() + b"\0"
    return table, offsets


def write_weights_object(
    path: Path, weights: Path | Sequence[Buffer], arch: str, symbol: str = "kiln_weights"
) -> None:
    """Write the object to `path`, streaming; `symbol` is the pointer's name."""
    machine, absolute = _MACHINE[arch]
    size = weights_size(weights) + PAD
    large = arch == "x86_64" and size > _LARGE
    data_name = ".lrodata.kiln_weights" if large else ".rodata.kiln_weights"
    names = (
        data_name,
        ".data.rel.ro",
        ".rela.data.rel.ro",
        ".symtab",
        ".strtab",
        ".shstrtab",
        ".note.GNU-stack",
    )
    strings, string_at = _strings([symbol])
    section_strings, name_at = _strings(names)
    # Symbols: none, the data section, and the hidden global pointer.
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    symbols += struct.pack("<IBBHQQ", 0, 3, 0, 1, 0, 0)
    symbols += struct.pack("<IBBHQQ", string_at[0], 0x11, 2, 2, 0, 8)
    relocation = struct.pack("<QQq", 0, 1 << 32 | absolute, 0)

    at = [_PAGE, _PAGE + size + -size % 8]
    for part in (b"\0" * 8, relocation, symbols, strings, section_strings):
        at.append(at[-1] + len(part) + -len(part) % 8)
    flags = _ALLOC | (_X86_LARGE if large else 0)
    headers = [
        bytes(64),
        _section(name_at[0], _PROGBITS, flags, at[0], size, align=_PAGE),
        _section(name_at[1], _PROGBITS, _ALLOC | _WRITE, at[1], 8, align=8),
        _section(name_at[2], _RELA, _INFO_LINK, at[2], 24, link=4, info=2, align=8, entry=24),
        _section(name_at[3], _SYMTAB, 0, at[3], len(symbols), link=5, info=2, align=8, entry=24),
        _section(name_at[4], _STRTAB, 0, at[4], len(strings)),
        _section(name_at[5], _STRTAB, 0, at[5], len(section_strings)),
        _section(name_at[6], _PROGBITS, 0, at[6], 0),
    ]
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 1, machine, 1, 0, 0, at[6], 0, 64, 0, 0, 64, 8, 6)
    with path.open("wb") as stream:
        stream.write(head.ljust(_PAGE, b"\0"))
        _copy(stream, weights)
        stream.write(bytes(PAD + -size % 8))
        for part in (b"\0" * 8, relocation, symbols, strings, section_strings):
            stream.write(part.ljust(len(part) + -len(part) % 8, b"\0"))
        for header in headers:
            stream.write(header)
