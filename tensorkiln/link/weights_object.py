"""Weights as an object, for programs that link them in themselves.

One read-only section with the bytes and a zero pad (kernels prefetch past the end), and one pointer
to it. C code reads the pointer only, so the section may lie further away than the 2 GB that x86-64
code can address.
"""

from __future__ import annotations

from pathlib import Path

from tensorkiln.artifact.artifact import Content, content_chunks, content_size
from tensorkiln.artifact.sections import WEIGHTS_PAD
from tensorkiln.link.data_section import POINTER_SIZE, DataSection, SectionUse, weights_pointer
from tensorkiln.link.object_format import format_of, library_arch

_LARGE = 1_900_000_000
_PAGE = 4096


def write_weights_object(path: Path, weights: Content, triple: str, symbol: str) -> None:
    """Write the object to `path`, streaming; `symbol` is the pointer's name."""
    arch, row = library_arch(triple), format_of(triple)
    size = content_size(weights) + WEIGHTS_PAD
    use: SectionUse = "large constant" if arch == "x86_64" and size > _LARGE else "constant"
    data = DataSection(
        f"{row.section_names[use]}.{symbol}",
        use,
        _PAGE,
        size,
        (part for parts in (content_chunks(weights), [bytes(WEIGHTS_PAD)]) for part in parts),
    )
    pointer = weights_pointer(row.section_names["relocated"])
    with path.open("wb") as stream:
        for part in row.data_object(arch, [data, pointer], symbol, 1, POINTER_SIZE):
            stream.write(part)
