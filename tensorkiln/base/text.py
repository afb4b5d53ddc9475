"""Many names in one line."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_NAMES = 24


def listed(names: Iterable[str], most: int = _MOST_NAMES) -> str:
    """Some names, in order, each once, and how many more there are."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more
