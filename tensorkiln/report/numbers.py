"""Sizes, times and rates as text for people."""

from __future__ import annotations

import math


def bytes_text(n: int) -> str:
    """`512 B`, `12.3 KiB`, `44.7 MiB`."""
    size, unit = float(n), "B"
    for bigger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"


def time_text(seconds: float) -> str:
    """`412 µs`, `3.21 ms`, `1.50 s`; a dash for what was not measured."""
    if math.isnan(seconds):
        return "–"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def rate_text(flops: float, seconds: float) -> str:
    """GFLOP/s; a dash for what was not measured or does no arithmetic."""
    if math.isnan(seconds) or not flops or not seconds:
        return "–"
    return f"{flops / seconds / 1e9:.1f}"
