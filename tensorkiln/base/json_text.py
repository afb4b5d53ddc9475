"""Reading JSON that somebody else may have written."""

from __future__ import annotations

import functools
import json

# Python makes up to a hundred bytes of each value and six of each byte: these bounds keep a text
# that is made to take memory below what its reader may take.
MAX_BYTES = 1 << 23
MAX_VALUES = 1 << 18
MAX_NAMES = 256  # of an object in the metadata of a library


def parse_json(
    data: bytes | memoryview, *, unique: bool = False, names: int | None = None
) -> object:
    """The value of a text in UTF-8; ValueError for what is none, or too large or deep to be read.

    At most 8 MiB, and 262,144 of the signs that begin values or stand between them. With `unique`,
    an object that has a name twice is an error: readers differ in which of them they take. One of
    more than `names` is, too: readers without memory of their own look at each pair.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes; at most {MAX_BYTES} are read")
    text = bytes(data)
    values = sum(map(text.count, (b"[", b"{", b",", b":")))
    if values > MAX_VALUES:
        raise ValueError(f"{values} values; at most {MAX_VALUES} are read")
    try:
        hook = functools.partial(_once, names) if unique else None
        return json.loads(text.decode(), object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(most: int | None, pairs: list[tuple[str, object]]) -> dict[str, object]:
    if most is not None and len(pairs) > most:
        raise ValueError(f"an object of {len(pairs)} names; at most {most} are read")
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.200} is there twice")
    return made
