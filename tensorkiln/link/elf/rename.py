"""Rename symbols of a 64-bit ELF object, in the object itself.

Static libraries are one relocatable object whose symbols get the library's prefix, so that several
fit into one program (`static.py`). Renaming objects instead of generating other C means that shared
and static libraries consist of the same code.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tensorkiln.artifact.elf import elf_of
from tensorkiln.base.errors import InternalError

_SYMTAB = 2


def rename_elf_symbols(data: bytes | bytearray | memoryview, names: Mapping[str, str]) -> bytes:
    """Return a copy of an object file in which symbols are renamed as `names` (old -> new) says.

    A longer copy of the string table, with the new names, goes to the end of the file.
    InternalError unless the file is 64-bit and has exactly one symbol table.
    """
    elf = elf_of(memoryview(data), "object")
    tables = [s for s in elf.sections if s.kind == _SYMTAB]
    if len(tables) != 1 or not elf.wide:
        raise InternalError(f"an object of {len(tables)} symbol tables, {elf.machine}")
    symbols, out = tables[0], bytearray(data)
    strings = elf.sections[symbols.link]
    table = bytearray(out[strings.offset : strings.offset + strings.size])
    for entry in range(symbols.offset, symbols.offset + symbols.size, symbols.entry_size):
        (start,) = struct.unpack_from(f"{elf.order}I", out, entry)
        name = bytes(table[start : table.index(0, start)]).decode("utf-8", "replace")
        if name in names:
            struct.pack_into(f"{elf.order}I", out, entry, len(table))
            table += names[name].encode() + b"\0"
    (headers,) = struct.unpack_from(f"{elf.order}Q", out, 40)
    struct.pack_into(f"{elf.order}QQ", out, headers + 64 * symbols.link + 24, len(out), len(table))
    return bytes(out + table)
