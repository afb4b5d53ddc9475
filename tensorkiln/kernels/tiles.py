"""Register tiles: how many rows and vectors of outputs to keep in registers at once.

The number of registers of the target limits a tile. Where each register holds one number
(`scalar_tile` in `target/registers.py`), as on microcontrollers, channels are in blocks of one and
a tile divides the image evenly, since a tile of another size would be more code.
"""

from __future__ import annotations

from tensorkiln.target import Target
from tensorkiln.target.registers import max_rows, scalar_tile


def tiles(extent: int, largest: int) -> list[tuple[int, int, int]]:
    """Cut `extent` into pieces of at most `largest`, as equal as possible: (start, count, size) for
    each of the one or two sizes, larger first.

    tiles(27, 14) is [(0, 1, 14), (14, 1, 13)]; tiles(30, 14) is [(0, 3, 10)].
    """
    pieces = -(-extent // largest)
    small, extra = divmod(extent, pieces)
    out = []
    if extra:
        out.append((0, extra, small + 1))
    if pieces > extra and small:
        out.append((extra * (small + 1), pieces - extra, small))
    return out


def tile_cycles(rows: int, vectors: int) -> float:
    """Estimated cycles that one term of the sums of a tile takes.

    There are rows * vectors multiply-adds, and rows broadcasts plus `vectors` loads; two of each
    start per cycle. Fewer than 8 multiply-adds take as long as 8, because of their latency; 0.7
    cycles are overhead.
    """
    return max(rows * vectors, rows + vectors, 8) / 2 + 0.7


def spatial_tile(
    target: Target,
    vectors: int,
    height: int,
    width: int,
    integers: bool = False,
    largest: int = 0,
) -> tuple[int, int]:
    """(rows, columns) of output pixels per register tile, with the fewest estimated cycles, of at
    most `largest` pixels (0: as many as fit the registers). Without
    vectors, the largest tile that divides the image evenly, because tiles of another size would be
    more code."""
    limit = largest or max_rows(target, vectors, integers)
    if scalar_tile(target, integers):
        sizes = [(r, c) for c in range(1, limit + 1) for r in range(1, limit // c + 1)]
        even = [(r, c) for r, c in sizes if height % r == 0 and width % c == 0]
        return max(even, key=lambda tile: (tile[0] * tile[1], tile[1]))
    best: tuple[float, int, int] | None = None
    for cols in range(1, min(width, limit) + 1):
        for rows in range(1, min(height, limit // cols) + 1):
            cost = 0.0
            for _, row_count, r in tiles(height, rows):
                for _, col_count, c in tiles(width, cols):
                    cost += row_count * col_count * tile_cycles(r * c, vectors)
            key = (cost, rows, -cols)
            if best is None or key < best:
                best = key
    assert best is not None
    return best[1], -best[2]
