"""The nearest valid names: fewest single edits first, so that one typo finds its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tensorkiln.base.errors import nearest

_COUNT = 3


def suggest(name: str, valid: Iterable[str], less: Collection[str] = ()) -> str:
    """`"did you mean 'a', 'b' or 'c'?"`, or the empty string when nothing is near.

    Names in `less`, such as aliases, come after others that are as near.
    """
    if not name:
        return ""
    found = ranked(name, valid, less)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else nearest(name, valid)


def ranked(name: str, valid: Iterable[str], less: Collection[str] = ()) -> list[str]:
    """Up to three of `valid` within two edits of `name`, nearest first."""
    limit = min(2, max(1, len(name) // 2))
    rows = []
    for other in dict.fromkeys(valid):
        edits = min(distance(text, other, limit) for text in {name, name.lower()})
        if edits <= limit:
            rows.append((edits, other in less, -_shared(name, other), other))
    return [row[-1] for row in sorted(rows)[:_COUNT]]


def distance(a: str, b: str, limit: int) -> int:
    """Insertions, deletions, substitutions, swaps of neighbours from `a` to `b`.

    Anything above `limit` is told as `limit + 1`.
    """
    start = _shared(a, b)
    a, b = a[start:], b[start:]
    end = _shared(a[::-1], b[::-1])
    a, b = a[: len(a) - end], b[: len(b) - end]
    if abs(len(a) - len(b)) > limit or len(set(a) - set(b)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if older and j > 1 and x == b[j - 2] and y == a[i - 2]:
                best = min(best, older[j - 2] + 1)
            row.append(best)
        if min(row) > limit and min(before) > limit:
            return limit + 1
    return min(row[-1], limit + 1)


def _shared(a: str, b: str) -> int:
    """Characters that both begin with."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
