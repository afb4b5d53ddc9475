"""Long sums in pieces: registers hold the sum of a piece, memory the total of the pieces.

The rounding error of one register that sums K products grows as sqrt(K). Pieces of at most
SUM_TERMS products are as accurate as the best libraries and cost 1% of the time: one load, add and
store per accumulator and piece. The order of the additions depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Load, cast, const, int_value, intrin
from tensorkiln.ir.stmt import Alloc, Stmt, Store, seq
from tensorkiln.schedule.build import lane_ramp, loop, nest

# Products summed in one register before they join the total: a 3x3 filter over 16 channels.
SUM_TERMS = 144

# Element type of the right operand -> products that one dot-product instruction sums
# (schedule/intrin/dot.py).
TOGETHER = {"int8": 4, "int16": 2}

# (count, body): `body(i)` adds piece i of `count` equal ones to the accumulators.
Pieces = Sequence[tuple[int, Callable[[Expr], Stmt]]]


def add_product(acc: Buffer, at: tuple[Expr, ...], x: Expr, w: Expr) -> Stmt:
    """acc[at] += x * w in the accumulator's type; one fused multiply-add for floats."""
    total = Load(acc, at)
    if acc.dtype.is_float:
        return Store(acc, at, intrin("fma", x, w, total))
    return Store(acc, at, total + cast(x, acc.dtype) * cast(w, acc.dtype))


def pieces_of(units: int, terms_per_unit: int) -> tuple[int, int, int]:
    """Cut a sum of `units` evenly: (units per piece, whole pieces, units in a last short one).

    A piece has at most SUM_TERMS terms: pieces_of(10, 48) is (3, 3, 1).
    """
    wanted = max(1, SUM_TERMS // terms_per_unit)
    size = -(-units // -(-units // wanted))
    return size, units // size, units % size


def sum_in_pieces(
    acc: Buffer,
    start: Callable[[Buffer], Stmt],
    pieces: Pieces,
    finish: Callable[[Buffer], Stmt],
) -> Stmt:
    """`start` initialises the accumulators, `pieces` add to `acc`, `finish` reads the totals.

    `acc` is a register buffer whose last axis is one vector. With a single piece, `start` and
    `finish` are given `acc`; otherwise a local buffer of the same shape, which holds the totals.
    """
    if sum(count for count, _ in pieces) == 1:
        body = seq(*(piece(const(0)) for count, piece in pieces if count))
        return Alloc(acc, seq(start(acc), body, finish(acc)))
    total = replace(acc, name=f"{acc.name}_total", scope="local")
    lanes = int_value(acc.shape[-1])
    assert lanes is not None
    names, extents = ["r", "q", "o"][-len(acc.shape) + 1 :], acc.shape[:-1]
    vec, zero = lane_ramp(lanes), const(0, acc.dtype.with_lanes(lanes))

    def clear(*i: Expr) -> Stmt:
        return Store(acc, (*i, vec), zero)

    def add(*i: Expr) -> Stmt:
        at = (*i, vec)
        return Store(total, at, Load(total, at) + Load(acc, at))

    def one(piece: Callable[[Expr], Stmt], i: Expr) -> Stmt:
        before, after = (nest(names, extents, f, "unrolled") for f in (clear, add))
        return seq(before, piece(i), after)

    loops = [
        loop("piece", count, lambda i, piece=piece: one(piece, i))  # type: ignore[misc]
        for count, piece in pieces
        if count
    ]
    return Alloc(total, Alloc(acc, seq(start(total), *loops, finish(total))))
