"""How many sums of a product the registers of a processor hold at once."""

from __future__ import annotations

from tensorkiln.target.target import Target


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
