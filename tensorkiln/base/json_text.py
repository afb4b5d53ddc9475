"""Reading untrusted JSON within bounds of size and nesting."""

from __future__ import annotations

import functools
import json

# Parsed JSON takes up to about 100 bytes per value and 6 per byte of text: these bounds keep the
# memory for a hostile text small.
MAX_BYTES = 1 << 23
MAX_VALUES = 1 << 18
MAX_NAMES = 256  # names of one object in the metadata of a library


def parse_json(
    data: bytes | memoryview, *, unique: bool = False, names: int | None = None
) -> object:
    """Parse JSON text in UTF-8.

    Raises ValueError for text that is not valid JSON, is nested too deeply, has more than 8 MiB, or
    more than 262,144 of the characters `[`, `{`, `,` and `:`. With `unique`, an object that has the
    same name twice is an error, since readers differ in which of the two values they take, and so
    is an object of more than `names` names: hosts/kiln_json.h, which allocates no memory, finds
    duplicates by comparing all pairs.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes; at most {MAX_BYTES} are read")
    text = bytes(data)
    # A shorter text cannot have as many: counting would take a quarter of the time of parsing.
    values = sum(map(text.count, (b"[", b"{", b",", b":"))) if len(text) > MAX_VALUES else 0
    if values > MAX_VALUES:
        raise ValueError(f"{values} values; at most {MAX_VALUES} are read")
    try:
        hook = functools.partial(_once, names) if unique else None
        return json.loads(text.decode(), object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(limit: int | None, pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    count = len(pairs)
    if len(mapping) == count and (limit is None or count <= limit):
        return mapping
    if limit is not None and count > limit:
        raise ValueError(f"an object of {count} names; at most {limit} are read")
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"{twice!r:.200} occurs twice")
