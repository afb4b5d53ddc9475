"""Text for people: sizes, times, columns."""

from __future__ import annotations

from collections.abc import Sequence


def time_text(seconds: float) -> str:
    """Seconds with a suitable unit: `12.30 ms`, `4.5 us`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def dims_text(dims: Sequence[int | str] | None) -> str:
    """`[1, 3, "h"]` as `1 x 3 x h`, an empty shape as `scalar`; empty for None, which stands for an
    argument that is not a tensor."""
    return "" if dims is None else " x ".join(map(str, dims)) or "scalar"


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Rows as lines of aligned columns; the last column is not padded."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append((indent + "  ".join([*cells, row[-1]])).rstrip())
    return "\n".join(lines)
