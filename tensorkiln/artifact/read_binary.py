"""Read object files, shared libraries and programs, by the format that their first bytes say.
Executes nothing.

Files are untrusted: offsets, counts and names are checked before use, and a malformed file is a
UserError (code `bad-library`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tensorkiln.artifact.artifact import FileContent
from tensorkiln.artifact.binary import Binary, damaged
from tensorkiln.artifact.elf import elf_of

# Name of a format -> its first bytes, and its reader.
READERS: Mapping[str, tuple[bytes, Callable[[memoryview, str], Binary]]] = {
    "ELF": (b"\x7fELF", elf_of),
}
# First bytes of formats that have no reader.
_FOREIGN = {
    b"\xcf\xfa\xed\xfe": "macOS",
    b"\xca\xfe\xba\xbe": "macOS",
    b"MZ": "Windows",
}


def format_name(head: bytes) -> str:
    """The name of the format of a file with these first bytes, as in READERS; empty if it is of
    none of them."""
    return next((name for name, (magic, _) in READERS.items() if head.startswith(magic)), "")


def read_binary(path: str | Path) -> Binary:
    """Read the headers of a file, such as a shared library. UserError: code `missing-file`, or
    `bad-library` if it is not valid."""
    return binary_of(FileContent(path).view, str(path))


def binary_of(data: memoryview, place: str) -> Binary:
    """Read the headers of a file in memory, called `place` in errors (code `bad-library`)."""
    head = bytes(data[:8])
    name = format_name(head)
    if not name:
        raise damaged(f"not an {' or '.join(READERS)} file{_looks_like(head)}", place)
    return READERS[name][1](data, place)


def _looks_like(head: bytes) -> str:
    if not head:
        return ": the file is empty"
    system = next((system for magic, system in _FOREIGN.items() if head.startswith(magic)), "")
    return f": this is a {system} library, which is not read yet" if system else ""
