"""Register tiles: how many rows and vectors of outputs to keep in registers at once."""

from __future__ import annotations

from tensorkiln.schedule.build import tiles
from tensorkiln.target import Target


def max_rows(target: Target, vectors: int) -> int:
    """Rows of accumulators that fit beside `vectors` weights and what they are multiplied by: one
    broadcast, or a register of each row where lanes are multiplied; and beside products and
    copies, where the first operand is overwritten.

    One register stays free for the compiler, two with three vectors, and more with one, for LLVM
    loads its broadcasts ahead. It spills when the file is nearly full: 7 x 4 accumulators of 32
    registers run at 0.7 of 6 x 4, 9 x 3 keep one on the stack. `tests/tune/test_inner_loops.py`
    holds this against the assembly of every level.
    """
    free = target.num_vector_registers - vectors
    if target.multiplies_by_lane:
        return max(1, (free - 1) // (vectors + 1))
    spare = {1: 7, 3: 3}.get(vectors, 2)
    copies = 3 if target.overwrites_operands else 0
    return max(1, (free - spare - copies) // vectors)


def tile_cycles(rows: int, vectors: int) -> float:
    """Estimated cycles that one term of the sums of a tile takes.

    There are rows * vectors multiply-adds, and rows broadcasts plus `vectors` loads, two of each a
    cycle; a tile costs some overhead.
    """
    return max(rows * vectors, rows + vectors, 8) / 2 + 0.7


def spatial_tile(target: Target, vectors: int, height: int, width: int) -> tuple[int, int]:
    """(rows, columns) of output pixels per register tile with the fewest estimated cycles."""
    limit = max_rows(target, vectors)
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
