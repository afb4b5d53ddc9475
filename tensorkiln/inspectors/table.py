"""Rows of text as aligned lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], sides: str = ""
) -> Iterator[str]:
    """Lines with their ends, the head first. `sides` has `r` for each column that is aligned to
    the right; the last column keeps its length."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if sides[i : i + 1] == "r" else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip() + "\n"
