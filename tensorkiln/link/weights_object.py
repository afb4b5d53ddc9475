"""Weights as an ELF object, for programs that link them in themselves.

One read-only section with the bytes and a zero pad (kernels prefetch past the end), and one pointer
to it. C code reads the pointer only, so the section may lie further away than the 2 GB that x86-64
code can address (section `.lrodata`).
"""

from __future__ import annotations

from pathlib import Path

from tensorkiln.artifact.artifact import Content, content_chunks, content_size
from tensorkiln.artifact.sections import WEIGHTS_PAD
from tensorkiln.link.elf_object import (
    ALLOC,
    PROGBITS,
    X86_LARGE,
    DataSection,
    object_chunks,
)
from tensorkiln.link.weights_segment import POINTER_SIZE, pointer_section

_LARGE = 1_900_000_000
_PAGE = 4096


def write_weights_object(path: Path, weights: Content, arch: str, symbol: str) -> None:
    """Write the object to `path`, streaming; `symbol` is the pointer's name."""
    size = content_size(weights) + WEIGHTS_PAD
    large = arch == "x86_64" and size > _LARGE
    data = DataSection(
        f"{'.lrodata' if large else '.rodata'}.{symbol}",
        PROGBITS,
        ALLOC | (X86_LARGE if large else 0),
        _PAGE,
        size,
        (part for parts in (content_chunks(weights), [bytes(WEIGHTS_PAD)]) for part in parts),
    )
    with path.open("wb") as stream:
        for part in object_chunks(arch, [data, pointer_section()], symbol, 1, POINTER_SIZE):
            stream.write(part)
