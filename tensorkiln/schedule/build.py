"""Small constructors of statements that the schedules' programs are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, Ramp, Var, as_expr, const, int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import Alloc, For, Seq, Stmt, Store, seq
from tensorkiln.schedule.roles import with_role

# Scalar operations above which a loop is divided among threads: 2 to 3 microseconds of one core.
# Starting a parallel loop takes less than 1 microsecond while the other threads still spin, 5 when
# they must be woken. The threshold is low because stores are also divided: writing a cache line
# that another core has read takes 7 ns, the time of 50 products, and two threads write twice as
# fast.
PARALLEL_WORK = 20_000
# Vector multiply-adds that take as long as loading one vector of weights: 2.4 when it is in the
# second-level cache, 8 when it is in memory; 4 is used in estimates of work.
FETCH = 4


def loop(
    name: str,
    extent: ExprLike,
    body: Callable[[Expr], Stmt],
    role: str = "",
    lo: ExprLike = 0,
    keep: bool = False,
) -> Stmt:
    """`for name in range(lo, lo + extent): body(name)`, with a role by which the schedule finds it.
    A loop of extent 0 is an empty statement and a loop of extent 1 its body, unless the schedule
    needs the loop (`keep`)."""
    n = int_value(extent)
    if n == 0 and not keep:
        return Seq(())
    if n == 1 and not keep:
        return body(as_expr(lo))
    var = Var(name)
    return For(var, as_expr(lo), as_expr(extent), "serial", body(var), with_role(role))


def nest(
    names: Sequence[str],
    extents: Sequence[ExprLike],
    body: Callable[..., Stmt],
    roles: Sequence[str] = (),
    keep: bool = False,
) -> Stmt:
    """Nested loops, outermost first, around `body(i, j, ...)`. `roles`: one for each loop, or
    empty."""
    heads = list(zip(names, extents, roles or [""] * len(names), strict=True))

    def at(depth: int, index: tuple[Expr, ...]) -> Stmt:
        if depth == len(heads):
            return body(*index)
        name, extent, role = heads[depth]
        return loop(name, extent, lambda i: at(depth + 1, (*index, i)), role, keep=keep)

    return at(0, ())


def around(heads: Sequence[tuple[Var, Expr, str]], body: Stmt) -> Stmt:
    """`body` in loops over (variable, extent, role), outermost first."""
    for var, extent, role in reversed(heads):
        body = For(var, IntImm(0), extent, "serial", body, with_role(role))
    return body


def vectors(name: str, shape: Sequence[ExprLike], body: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """Loops over vectors (role "vector") and over the lanes of each (role "lane")."""
    return nest([f"o_{name}", f"l_{name}"], shape, body, ["vector", "lane"])


def lanes(name: str, count: ExprLike, body: Callable[[Expr], Stmt]) -> Stmt:
    """A loop over the lanes of one vector (role "lane")."""
    return loop(f"l_{name}", count, body, "lane")


def within(buffers: Sequence[Buffer], *stmts: Stmt | None) -> Stmt:
    """The statements in sequence, inside the allocations of `buffers`."""
    body = seq(*stmts)
    for b in reversed(buffers):
        body = Alloc(b, body)
    return body


def lane_ramp(lanes: int, base: ExprLike = 0) -> Ramp:
    """The indices base, base + 1, ..., base + lanes - 1 of a vector access."""
    return Ramp(as_expr(base), IntImm(1), lanes)


def border_of(out: Buffer, t: TensorType, position: tuple[Expr, Expr], lanes: int) -> Stmt | None:
    """Write the zero halo of a vector of `lanes` channels, `position` (image, vector), which is a
    channel block of the layout of `t` or a part of one. None if the layout has no halo."""
    n, vector = position
    parts = t.memory.block(1) // lanes
    if parts <= 1:
        return zero_border(out, t, (n, vector))
    first = simplify(vector % parts * lanes)
    return zero_border(out, t, (n, simplify(vector // parts)), first, lanes)


def zero_border(
    out: Buffer, t: TensorType, lead: tuple[Expr, ...], first: ExprLike = 0, lanes: int = 0
) -> Stmt | None:
    """Write the zero halo of one image plane, around the spatial dimensions C and D of `t`. `lead`:
    physical indices of the axes before them. Of a channel block all lanes are written, or `lanes`
    of them from `first` on. None if the layout has no halo."""
    layout = t.memory
    ph, pw = layout.halo(2), layout.halo(3)
    if not ph and not pw:
        return None
    rows, cols = t.shape[2] + 2 * ph, t.shape[3] + 2 * pw
    blocked = len(layout.axes) == 5
    lanes = lanes or (int_value(out.shape[-1]) or 0 if blocked else 1)
    assert lanes

    def zero(r: Expr, c: Expr) -> Stmt:
        index = (*lead, simplify(r), simplify(c))
        if not blocked:
            return Store(out, index, const(0, out.dtype))
        return Store(out, (*index, lane_ramp(lanes, first)), const(0, out.dtype.with_lanes(lanes)))

    def row_pair(r: int) -> Stmt:
        return loop("zw", cols, lambda c: seq(zero(IntImm(r), c), zero(rows - 1 - r, c)))

    def column_pair(c: int) -> Stmt:
        return loop(
            "zh", t.shape[2], lambda r: seq(zero(r + ph, IntImm(c)), zero(r + ph, cols - 1 - c))
        )

    return seq(*map(row_pair, range(ph)), *map(column_pair, range(pw)))
