"""Rows of text as aligned lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def bar(part: int, whole: int, width: int) -> str:
    """A bar, in eighths of a character, as long as `part` of the longest, which is `whole` and has
    `width` characters; blank only for 0."""
    eighths = -(-part * width * 8 // (whole or 1))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], sides: str = ""
) -> Iterator[str]:
    """Yield lines, each with a line end, the head first. `sides` has `r` at the position of each
    column that is aligned to the right: "lr". Trailing spaces are removed."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if sides[i : i + 1] == "r" else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip() + "\n"
