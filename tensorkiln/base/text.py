"""Long lists of names, shortened for messages."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_NAMES = 24


def listed(names: Iterable[str], most: int = _MOST_NAMES) -> str:
    """Return at most `most` distinct names, in order: `"a, b, c and 7 more"`."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more
