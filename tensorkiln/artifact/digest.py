"""The digest that a library has of its own file, to find damage before the dynamic loader reads it.

It covers everything but the weights, and comes right behind it and the section header table:

    32 bytes  `NAME`
     8        size of the file
     8        sum of all bytes before these

Weights inside the file follow, with the zeros that fill their pages; they have a hash of their own
(`artifact/weights_check.py`), which is not compared at each load. Tools that write a library anew,
such as `strip`, leave the digest out, and a file without one is not checked.

The sum finds accidents. It does not keep anybody from making a file on purpose, who can compute it
as well: `sha256=` of `tk.load` is for that. A load takes a millisecond, the sum of 180 KB 40
microseconds, SHA-256 120 where the processor has instructions for it. The bytes are read as words
of 64 bits, little-endian. Word i is added to total i % 256, and to total
256 + i % 255, since what changed its place may stay in one of them. Each of the 511 totals, with
its number times `_STEP` added, is scrambled by the finalizer of SplitMix64; the sum is the XOR of
these. Other bytes have the same sum with a probability of 2**-64, unless all totals are the same,
for which words at four places or more must change by amounts that cancel out.
`hosts/kiln_digest.h` and Rust's `digest.rs` compute it too.
"""

from __future__ import annotations

import os
import struct

import numpy as np

NAME = b"tensorkiln: digest of this file\n"
SIZE = 48  # bytes of name, size and sum
_ROWS = (256, 255)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_NUMBERS = np.arange(sum(_ROWS), dtype=np.uint64) * _STEP
_SCRAMBLE = tuple(
    (np.uint64(shift), np.uint64(factor))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
)
_LAST_SHIFT = np.uint64(31)

Data = bytes | bytearray | memoryview


def digest_place(data: Data) -> int | None:
    """Where the digest of a library is, if it has one: at the next multiple of 8 behind its section
    header table. None for a file of another format, and without such a table."""
    if len(data) < 64 or data[:4] != b"\x7fELF" or data[5] != 1:
        return None
    table, entry, count = (
        struct.unpack_from("<Q10xHH", data, 40)
        if data[4] == 2
        else struct.unpack_from("<I10xHH", data, 32)
    )
    return -(-(table + entry * count) // 8) * 8 if count else None


def digest_of(head: Data, size: int) -> bytes:
    """The digest to write behind `head`, all of a library but its weights, for a file of `size`
    bytes with the digest. Empty where none would be found: if the section header table is not the
    last of `head`, at a multiple of 8, as it is of common linkers."""
    if digest_place(head) != len(head):
        return b""
    start = NAME + size.to_bytes(8, "little")
    return start + _sum(bytes(head) + start).to_bytes(8, "little")


def read_head(file: int, size: int) -> bytes:
    """All bytes that the digest of a library covers, and the digest, of an open file of `size`
    bytes; empty if it has no digest."""
    place = digest_place(os.pread(file, 64, 0))
    if place is None or place + SIZE > size or not _is_named(os.pread(file, len(NAME), place)):
        return b""
    return os.pread(file, place + SIZE, 0)


def damage(data: Data, size: int) -> str | None:
    """How a library of `size` bytes, which `data` are or begin with, contradicts its digest, as the
    end of a sentence; empty if it does not. None if it has no digest."""
    place = digest_place(data)
    if place is None or place + SIZE > len(data):
        return None
    if not _is_named(bytes(data[place : place + len(NAME)])):
        return None
    expected_size, expected = struct.unpack_from("<QQ", data, place + len(NAME))
    if _sum(data, place + SIZE - 8) != expected:
        return "its bytes are not those that were written"
    if size != expected_size:
        return f"it has {size} bytes, and was written with {expected_size}"
    return ""


def _is_named(name: bytes) -> bool:
    """Whether these bytes are `NAME`, or what damage has left of it: a word of it."""
    return any(name[i : i + 8] == NAME[i : i + 8] for i in range(0, len(NAME), 8))


def _sum(data: Data, end: int | None = None) -> int:
    """The sum of the first `end` bytes, all by default; a multiple of 8."""
    words = np.frombuffer(data, "<u8", (len(data) if end is None else end) // 8)
    totals, first = np.zeros(sum(_ROWS), np.uint64), 0
    for length in _ROWS:
        part, whole = totals[first : first + length], len(words) // length * length
        np.add.reduce(words[:whole].reshape(-1, length), axis=0, out=part)
        part[: len(words) - whole] += words[whole:]
        first += length
    totals += _NUMBERS
    for shift, factor in _SCRAMBLE:
        totals ^= totals >> shift
        totals *= factor
    totals ^= totals >> _LAST_SHIFT
    return int(np.bitwise_xor.reduce(totals))


__all__ = ["NAME", "SIZE", "damage", "digest_of", "digest_place", "read_head"]
