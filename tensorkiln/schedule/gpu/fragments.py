"""What the threads of a warp load of a tile in shared memory, and multiply: expressions of a thread
on the fragments of `schedule/intrin/fragments.py`."""

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
    """What thread t has of 16 rows or columns from `first`, and of 32 bytes of terms from `term`.
    `b` has a row for each row or column or, if it is `transposed`, for each term. `digits`:
    LEFT_MATRICES, or RIGHT_MATRICES for two right factors of 8 columns."""
    thread = t % WARP_THREADS
    block, half = place_of(thread // 8, digits)
    at = simplify(first + block * 8)
    row = thread % 8  # of the matrix that this thread gives
    lanes = 16 // b.dtype.bytes
    if transposed:
        index = (simplify(term + half * lanes + row), lane_ramp(lanes, at))
        return intrin("warp_load_matrix_4_transposed", Load(b, index))
    index = (simplify(at + row), lane_ramp(lanes, simplify(term + half * lanes)))
    return intrin("warp_load_matrix_4", Load(b, index))


def multiplied(left: Expr, right: Expr, sums: Expr, capability: int) -> Expr:
    """The sums of 16 rows and 8 columns with the product of 32 bytes of terms, by instructions that
    a compute capability has."""
    dtype = left.dtype.element
    shape = shape_for(dtype, capability)
    parts = mma_parts(dtype, shape)
    name, found = mma_name(dtype, shape), dict[tuple[int, ...], Expr]()
    for part in parts:
        before = found[part.sums] if part.sums in found else chosen(sums, part.sums)
        found[part.sums] = intrin(name, chosen(left, part.left), chosen(right, part.right), before)
    return joined(list(found.values()))


def chosen(vector: Expr, lanes: tuple[int, ...]) -> Expr:
    """Lanes of a vector; a scalar for one."""
    whole = lanes == tuple(range(vector.dtype.lanes))
    return vector if whole else Shuffle(vector, vector, lanes)


def joined(parts: list[Expr]) -> Expr:
    """Scalars, or vectors, of one length as a vector; their number is a power of two."""
    if len(parts) > 1 and parts[0].dtype.lanes == 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return joined([Shuffle(Broadcast(a, 2), Broadcast(b, 2), (0, 2)) for a, b in pairs])
    while len(parts) > 1:
        all_lanes = tuple(range(2 * parts[0].dtype.lanes))
        parts = [Shuffle(a, b, all_lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


__all__ = ["chosen", "joined", "loaded", "multiplied"]
