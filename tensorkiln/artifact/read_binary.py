"""Read object files, shared libraries and programs, by the format that their first bytes say.
Executes nothing.

Files are untrusted: offsets, counts and names are checked before use, and a malformed file is a
UserError (code `bad-library`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.artifact import FileContent
from tensorkiln.artifact.binary import BinaryFile, damaged
from tensorkiln.artifact.elf import elf_of, is_elf_object


@dataclass(frozen=True, slots=True)
class BinaryFormat:
    """A format that is read: its name, the first bytes of its files, the suffixes of shared
    libraries and object files, whether first bytes (16 or more) are those of an object file, and
    the reader, whose arguments are those of `binary_of`. What writes it is a row of
    `link/object_format.py`."""

    name: str
    magic: bytes
    shared_suffix: str
    object_suffix: str
    is_object: Callable[[bytes], bool]
    read: Callable[[memoryview, str], BinaryFile]


ELF = BinaryFormat("ELF", b"\x7fELF", ".so", ".o", is_elf_object, elf_of)
BINARY_FORMATS = (ELF,)
# First bytes of formats that are not read -> their system.
_FOREIGN = {
    b"\xcf\xfa\xed\xfe": "macOS",
    b"\xca\xfe\xba\xbe": "macOS",
    b"MZ": "Windows",
}


def binary_format(head: bytes) -> BinaryFormat | None:
    """The format of a file with these first bytes; None if it is none that is read."""
    return next((f for f in BINARY_FORMATS if head.startswith(f.magic)), None)


def read_binary(path: str | Path) -> BinaryFile:
    """Read the headers of a file, such as a shared library. UserError: code `missing-file`, or
    `bad-library` if it is not valid."""
    return binary_of(FileContent(path).view, str(path))


def binary_of(data: memoryview, place: str) -> BinaryFile:
    """Read the headers of a file in memory, called `place` in errors (code `bad-library`)."""
    head = bytes(data[:8])
    form = binary_format(head)
    if form is None:
        names = " or ".join(f.name for f in BINARY_FORMATS)
        raise damaged(f"not an {names} file{_looks_like(head)}", place)
    return form.read(data, place)


def _looks_like(head: bytes) -> str:
    if not head:
        return ": the file is empty"
    system = next((system for magic, system in _FOREIGN.items() if head.startswith(magic)), "")
    return f": this is a {system} library, which is not read yet" if system else ""
