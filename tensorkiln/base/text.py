"""Lists of names, shortened for messages, and names that are not taken."""

from __future__ import annotations

from collections.abc import Container, Iterable

_MOST_NAMES = 24


def listed(names: Iterable[str], limit: int = _MOST_NAMES) -> str:
    """Return at most `limit` distinct names, in order: `"a, b, c and 7 more"`."""
    distinct = list(dict.fromkeys(names))
    tail = f" and {len(distinct) - limit} more" if len(distinct) > limit else ""
    return ", ".join(distinct[:limit]) + tail


def unused(name: str, names: Container[str], first: int = 2) -> str:
    """Return `name`, or the first of `name_2`, `name_3`, ... (from `first`) that is not taken."""
    candidate, number = name, first
    while candidate in names:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


def size_text(size: int) -> str:
    """`1234567` as `1.23 MB`."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"
