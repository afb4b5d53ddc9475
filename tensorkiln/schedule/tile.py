"""Register tiles: how many rows and vectors of outputs to keep in registers at once."""

from __future__ import annotations

from tensorkiln.target import Target


def max_rows(target: Target, vectors: int) -> int:
    """Rows of accumulators that fit beside `vectors` weights and one broadcast.

    One register stays free for the compiler: LLVM spills when the file is exactly full
    (7 x 4 accumulators on 32 registers run at 0.7 of 6 x 4).
    """
    return max(1, (target.num_vector_registers - 2 - vectors) // vectors)


def spatial_tile(target: Target, vectors: int, height: int, width: int) -> tuple[int, int]:
    """(rows, columns) of output pixels per register tile with the fewest estimated cycles.

    A step of one input channel costs rows * columns * vectors multiply-adds and rows * columns
    broadcasts plus `vectors` loads, two of each a cycle; a tile costs some overhead.
    """
    limit = max_rows(target, vectors)
    best: tuple[float, int, int] | None = None
    for cols in range(1, min(width, limit) + 1):
        for rows in range(1, min(height, limit // cols) + 1):
            cost = 0.0
            for row_count, r in _pieces(height, rows):
                for col_count, c in _pieces(width, cols):
                    pixels = r * c
                    step = max(pixels * vectors, pixels + vectors, 8) / 2 + 0.7
                    cost += row_count * col_count * step
            key = (cost, rows, -cols)
            if best is None or key < best:
                best = key
    assert best is not None
    return best[1], -best[2]


def _pieces(extent: int, size: int) -> list[tuple[int, int]]:
    pieces = -(-extent // size)
    small, extra = divmod(extent, pieces)
    return [(extra, small + 1), (pieces - extra, small)]


def row_tile(target: Target, vectors: int, rows: int) -> int:
    """Rows per register tile for a matrix product with `rows` rows, evenly cut."""
    limit = max_rows(target, vectors)
    return -(-rows // -(-rows // limit))
