"""Lists of names, shortened for messages, and names that are not taken."""

from __future__ import annotations

from collections.abc import Container, Iterable

_MOST_NAMES = 24


def listed(names: Iterable[str], most: int = _MOST_NAMES) -> str:
    """Return at most `most` distinct names, in order: `"a, b, c and 7 more"`."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def unused(name: str, taken: Container[str], first: int = 2) -> str:
    """Return `name`, or the first of `name_2`, `name_3`, ... (from `first`) that is not taken."""
    found, number = name, first
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def size_text(size: int) -> str:
    """`1234567` as `1.23 MB`."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"
