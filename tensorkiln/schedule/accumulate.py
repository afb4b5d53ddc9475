"""Long sums in pieces: registers hold the sum of a piece, memory the total of the pieces.

The rounding error of one register that sums K products grows as sqrt(K). Pieces of at most
SUM_TERMS products are as accurate as the best libraries and cost 1% of the time: one load, add and
store per accumulator and piece. The order of the additions depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, cast, const, intrin
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import Stmt, Store
from tensorkiln.schedule.build import vectors, within

# Products summed in one register before they join the total: a 3x3 filter over 16 channels.
SUM_TERMS = 144


def together(weights: TensorType, reduced: int) -> int:
    """How many products of a sum over dimension `reduced` one dot-product instruction adds up
    (schedule/intrin/dot.py): those whose packed weights are adjacent, as in `A/32 B/4 A%32 B%4`."""
    last = weights.memory.axes[-1]
    return last.modulus if last.dim == reduced and last.modulus else 1


def add_product(acc: Buffer, at: tuple[Expr, ...], x: Expr, w: Expr) -> Stmt:
    """acc[at] += x * w in the accumulator's type; one fused multiply-add for floats."""
    total = Load(acc, at)
    if acc.dtype.is_float:
        return Store(acc, at, intrin("fma", cast(x, acc.dtype), cast(w, acc.dtype), total))
    return Store(acc, at, total + cast(x, acc.dtype) * cast(w, acc.dtype))


def add_piece(
    total: Buffer, terms: Callable[[Buffer], Stmt], name: str = "part", place: tuple[Expr, ...] = ()
) -> Stmt:
    """total += the sum that `terms(part)` adds up in `part`, vectors of registers that start at
    zero, in a buffer of the given name. `place`: of the vectors in `total`, if it has several."""
    part = buffer(name, total.shape[len(place) :], total.dtype, "local")
    zero = const(0, part.dtype)

    def add(*at: Expr) -> Stmt:
        return Store(total, (*place, *at), Load(total, (*place, *at)) + Load(part, at))

    start = vectors("zero", part.shape, lambda *at: Store(part, at, zero))
    return within([part], start, terms(part), vectors("add", part.shape, add))


def pieces_of(units: int, terms_per_unit: int) -> tuple[int, int, int]:
    """Cut a sum of `units` evenly: (units per piece, whole pieces, units in a last short one).

    A piece has at most SUM_TERMS terms: pieces_of(10, 48) is (3, 3, 1).
    """
    wanted = max(1, SUM_TERMS // terms_per_unit)
    size = -(-units // -(-units // wanted))
    return size, units // size, units % size
