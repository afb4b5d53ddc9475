"""The height of a register tile: how many rows of accumulators fit the vector registers."""

from __future__ import annotations

from tensorkiln.target.target import Target


def max_rows(target: Target, vectors: int) -> int:
    """Return how many rows of accumulators fit the vector registers in the inner loop of a product,
    at least 1. A row is `vectors` registers wide.

    Besides `rows * vectors` accumulators the loop holds `vectors` registers of weights, and the
    factor they are multiplied by: one broadcast, or one register per row if the target multiplies
    by lane. If arithmetic overwrites its first operand, products and copies take three more.

    One register stays free, since LLVM spills when the register file is nearly full; with
    broadcasts two for 3 vectors, and six for 1 vector, where LLVM loads broadcasts ahead. With 32
    registers a tile of 7 x 4 runs at 0.7 of the speed of 6 x 4, and 9 x 3 spills an accumulator.
    `tests/measure/test_inner_loops.py` checks this against the assembly for every CPU level.
    """
    free = target.num_vector_registers - vectors
    if target.multiplies_by_lane:
        return max(1, (free - 1) // (vectors + 1))
    spare = {1: 7, 3: 3}.get(vectors, 2)
    copies = 3 if target.overwrites_operands else 0
    return max(1, (free - spare - copies) // vectors)
