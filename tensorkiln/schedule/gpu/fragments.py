"""Expressions of one thread of a warp: the fragments that it loads from a tile in shared memory
(`schedule/intrin/fragments.py`), and their products on tensor cores.
"""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.device_instructions import WARP_THREADS
from tensorkiln.ir.expr import Broadcast, Expr, Shuffle, intrin
from tensorkiln.schedule.build import lane_ramp
from tensorkiln.schedule.intrin.fragments import Digit, mma_name, mma_parts, place_of, shape_for


def loaded(
    b: Buffer, transposed: bool, digits: tuple[Digit, ...], t: Expr, first: Expr, term: Expr
) -> Expr:
    """The fragment that thread t gets of 16 rows or columns from `first`, and of 32 bytes of terms
    from `term`. `b` has a row for each row or column or, if `transposed`, for each term. `digits`:
    LEFT_MATRICES, or RIGHT_MATRICES for the right factors of two products, of 8 columns each."""
    thread = t % WARP_THREADS
    block, half = place_of(thread // 8, digits)
    start = simplify(first + block * 8)
    row = thread % 8  # of the matrix that this thread gives
    lanes = 16 // b.dtype.bytes
    if transposed:
        index = (simplify(term + half * lanes + row), lane_ramp(lanes, start))
        return intrin("warp_load_matrix_4_transposed", Load(b, index))
    index = (simplify(start + row), lane_ramp(lanes, simplify(term + half * lanes)))
    return intrin("warp_load_matrix_4", Load(b, index))


def multiplied(left_fragment: Expr, right_fragment: Expr, sums: Expr, capability: int) -> Expr:
    """The sums of 16 rows and 8 columns after the product of 32 bytes of terms is added. A compute
    capability with smaller instructions only uses several of them."""
    dtype = left_fragment.dtype.element
    shape = shape_for(dtype, capability)
    parts = mma_parts(dtype, shape)
    name, part_sums = mma_name(dtype, shape), dict[tuple[int, ...], Expr]()
    for part in parts:
        before = part_sums[part.sums] if part.sums in part_sums else chosen(sums, part.sums)
        part_sums[part.sums] = intrin(
            name, chosen(left_fragment, part.left), chosen(right_fragment, part.right), before
        )
    return joined(list(part_sums.values()))


def chosen(vector: Expr, lanes: tuple[int, ...]) -> Expr:
    """Some lanes of a vector; a scalar if it is one lane."""
    whole = lanes == tuple(range(vector.dtype.lanes))
    return vector if whole else Shuffle(vector, vector, lanes)


def joined(parts: list[Expr]) -> Expr:
    """Scalars, or vectors of one length, concatenated. Their number is a power of two."""
    if len(parts) > 1 and parts[0].dtype.lanes == 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return joined([Shuffle(Broadcast(a, 2), Broadcast(b, 2), (0, 2)) for a, b in pairs])
    while len(parts) > 1:
        all_lanes = tuple(range(2 * parts[0].dtype.lanes))
        parts = [Shuffle(a, b, all_lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


__all__ = ["chosen", "joined", "loaded", "multiplied"]
