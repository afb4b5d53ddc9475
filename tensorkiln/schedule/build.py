"""Small constructors that schedules are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, Ramp, Var, as_expr, const, int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import For, Seq, Stmt, Store, seq

# Fewer scalar operations than this are not worth sharing: 2 to 3 microseconds of one core. A loop
# costs less than one where the other threads still spin, five where they must be woken. What one
# thread does alone is dear for another reason, too: writing what the other has read takes 7 ns a
# cache line, the time of 50 products, and two threads write twice as fast.
PARALLEL_WORK = 20_000
# Multiply-adds of vectors in the time that a vector of weights takes to come: 2.4 from the second
# level of the cache, 8 from memory.
FETCH = 4


def loop(
    name: str, extent: ExprLike, body: Callable[[Expr], Stmt], kind: str = "serial",
    lo: ExprLike = 0,
) -> Stmt:  # fmt: skip
    """`for name in kind(lo, lo + extent): body(name)`; extents 0 and 1 need no loop."""
    n = int_value(extent)
    if n == 0:
        return Seq(())
    if n == 1 and kind != "vectorized":
        return body(as_expr(lo))
    var = Var(name)
    return For(var, as_expr(lo), as_expr(extent), kind, body(var))


def nest(
    names: Sequence[str],
    extents: Sequence[ExprLike],
    body: Callable[..., Stmt],
    kind: str = "serial",
) -> Stmt:
    """Loops inside one another, outermost first."""

    def at(depth: int, index: tuple[Expr, ...]) -> Stmt:
        if depth == len(names):
            return body(*index)
        return loop(names[depth], extents[depth], lambda i: at(depth + 1, (*index, i)), kind)

    return at(0, ())


def lane_ramp(lanes: int, base: ExprLike = 0) -> Ramp:
    """Indices base, base + 1, ... of one vector."""
    return Ramp(as_expr(base), IntImm(1), lanes)


def tiles(extent: int, largest: int) -> list[tuple[int, int, int]]:
    """Cut `extent` into even pieces of at most `largest`: (start, count, size) per distinct size.

    27 by 14 is one of 14 and one of 13, never 14 + 13 * 1: no short remainder.
    """
    pieces = -(-extent // largest)
    small, extra = divmod(extent, pieces)
    out = []
    if extra:
        out.append((0, extra, small + 1))
    if pieces > extra and small:
        out.append((extra * (small + 1), pieces - extra, small))
    return out


def zero_border(out: Buffer, t: TensorType, lead: tuple[Expr, ...]) -> Stmt | None:
    """Write the zero halo of one image plane: of the two spatial dimensions C and D of `t`,
    for the physical indices `lead` of the axes before them. None when there is no halo."""
    layout = t.memory
    ph, pw = layout.halo(2), layout.halo(3)
    if not ph and not pw:
        return None
    rows, cols = t.shape[2] + 2 * ph, t.shape[3] + 2 * pw
    blocked = len(layout.axes) == 5
    lanes = int_value(out.shape[-1]) if blocked else 1
    assert lanes is not None

    def zero(r: Expr, c: Expr) -> Stmt:
        index = (*lead, simplify(r), simplify(c))
        if not blocked:
            return Store(out, index, const(0, out.dtype))
        return Store(out, (*index, lane_ramp(lanes)), const(0, out.dtype.with_lanes(lanes)))

    def row_pair(r: int) -> Stmt:
        return loop("zw", cols, lambda c: seq(zero(IntImm(r), c), zero(rows - 1 - r, c)))

    def column_pair(c: int) -> Stmt:
        return loop("zh", t.shape[2], lambda r: seq(
            zero(r + ph, IntImm(c)), zero(r + ph, cols - 1 - c)))  # fmt: skip

    return seq(*map(row_pair, range(ph)), *map(column_pair, range(pw)))
