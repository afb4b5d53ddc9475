"""Sections of objects that hold data, and weights behind a library, in the words of any format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

POINTER_SIZE = 48  # of `weights_place`: the pointer, whether the weights are beside, their SHA-256

# "constant": read only, and "large constant" if it may lie further away than code can reach;
# "relocated": written by the dynamic loader, then read only; "note": found by its own header.
SectionUse = Literal["constant", "large constant", "relocated", "note"]


@dataclass(frozen=True, slots=True)
class DataSection:
    """A section of `size` bytes, which `content` yields in pieces. `words` are its relocations:
    (offset, "absolute" or "distance", index of the section whose start is the target)."""

    name: str
    use: SectionUse
    align: int
    size: int
    content: Iterable[bytes | memoryview]
    words: tuple[tuple[int, str, int], ...] = ()


def weights_pointer(name: str) -> DataSection:
    """The section that holds a `weights_place` (crt/weights.c): a pointer to the first section of
    its object, then flag and hash, which are 0."""
    words = ((0, "absolute", 0),)
    return DataSection(name, "relocated", 8, POINTER_SIZE, [bytes(POINTER_SIZE)], words)


@dataclass(frozen=True, slots=True)
class WeightsPlacement:
    """What to write before the weights, up to the file's digest (artifact/digest.py). They start at
    file offset `start`, and their SHA-256 goes to offset `hash_at`, which is in the head."""

    head: bytearray
    start: int
    hash_at: int
