"""The height of a register tile: how many rows of accumulators fit the registers.

Where registers hold one number each (`scalar_tile`), as on microcontrollers, there are no vectors
to fill: channels are in blocks of one, integers are multiplied one by one, and Winograd's
algorithm, whose weights are larger, is left out.
"""

from __future__ import annotations

from tensorkiln.target.dots import integer_dot, sums_word_pairs
from tensorkiln.target.target import Target

_MANY_REGISTERS = 32


def scalar_tile(target: Target, integers: bool) -> int:
    """How many sums a register tile has at most where registers hold one number each; 0 where they
    are vectors. Integers share the general registers with addresses."""
    if target.vector_lanes("float32") > 1:
        return 0
    return 4 if integers or target.num_vector_registers < 32 else 24


def has_few_registers(target: Target) -> bool:
    """Whether tiles of vectors are small for want of registers: they have few multiply-adds for
    each byte that they read, and wait for the caches."""
    return target.vector_lanes("float32") > 1 and target.num_vector_registers < _MANY_REGISTERS


def highest(target: Target, vectors: int, integers: bool = False) -> int:
    """The height of the largest register tile that may be worth a measurement: its accumulators
    fill the registers, so that something has to be kept in memory; code beyond only grows."""
    if limit := scalar_tile(target, integers):
        return max(1, limit // vectors)
    return max(1, target.num_vector_registers // vectors)


def max_rows(target: Target, vectors: int, integers: bool = False) -> int:
    """Return how many rows of accumulators fit the vector registers in the inner loop of a product,
    at least 1. A row is `vectors` registers wide.

    Besides `rows * vectors` accumulators the loop holds `vectors` registers of weights, and the
    factor they are multiplied by: one broadcast, or one register per row if the target multiplies
    by lane. If arithmetic overwrites its first operand, products and copies take three more.

    One register stays free, since LLVM spills when the register file is nearly full; with
    broadcasts two for 3 vectors, and six for 1 vector, where LLVM loads broadcasts ahead. With 32
    registers a tile of 7 x 4 runs at 0.7 of the speed of 6 x 4, and 9 x 3 spills an accumulator.
    Where a product of integers and its addition are two instructions, products take two registers
    of a tile of 2 vectors: 5 x 2 takes 0.96 of the time of 6 x 2 (Zen 3), 3 x 3 as long.
    `tests/measure/test_inner_loops.py` checks this against the assembly for every CPU level.
    """
    if limit := scalar_tile(target, integers):
        return max(1, limit // vectors)
    free = target.num_vector_registers - vectors
    if target.multiplies_by_lane:
        return max(1, (free - 1) // (vectors + 1))
    spare = {1: 7, 3: 3}.get(vectors, 2)
    if target.overwrites_operands:
        spare += 3
    elif integers and vectors == 2 and _multiplies_first(target):
        spare += 2
    return max(1, (free - spare) // vectors)


def _multiplies_first(target: Target) -> bool:
    """Whether an x86-64 CPU multiplies vectors of integers by one instruction, and adds the
    products by another."""
    bits = 32 * target.vector_lanes("float32")
    return sums_word_pairs(target, bits) and not integer_dot(target, bits)
