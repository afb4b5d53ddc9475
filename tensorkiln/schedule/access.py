"""How the loads of an expression vary with a loop variable: whether they can be vectorized."""

from __future__ import annotations

from tensorkiln.arith import affine, simplify
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Expr, IntImm, Reduce, Var, as_expr, int_value
from tensorkiln.ir.visit import free_vars, has_load, map_children, walk
from tensorkiln.schedule.group import Bounds, Group


def simplify_value(e: Expr, bounds: Bounds) -> Expr:
    """Simplify the indices inside a value; floating-point arithmetic stays as written."""
    if isinstance(e, Load):
        return Load(e.buffer, tuple(simplify(i, bounds) for i in e.indices))
    if isinstance(e, Reduce):
        inner = dict(bounds)
        for var, extent in e.axes:
            n = int_value(extent)
            if n is not None:
                inner[var] = (0, n - 1)
        return Reduce(e.op, e.axes, simplify_value(e.value, inner))
    if not e.dtype.is_float and not has_load(e):
        return simplify(e, bounds)
    return map_children(e, lambda c: simplify_value(c, bounds))


def lane_bounds(lane: Expr, lanes: int) -> dict[Var, tuple[int, int]]:
    """The range of a lane, when it is a variable."""
    return {lane: (0, lanes - 1)} if isinstance(lane, Var) else {}


def lane_stride(load: Load, var: Var) -> int | None:
    """Elements between the loads of two neighbouring values of `var`; None if not a constant."""
    flat: Expr = IntImm(0)
    for i, s in zip(load.indices, load.buffer.strides, strict=True):
        flat = flat + i * s
    linear = affine(simplify(flat), (var,))
    if linear is None:
        return None
    return int_value(as_expr(linear[0].get(var, 0)))


def lanes_ok(value: Expr, lane: Var) -> bool:
    """Whether the loads can be vectorized over `lane`: each is contiguous, the same for all lanes,
    or, in one load, of another constant stride."""
    strided = 0
    for x in walk(value):
        if isinstance(x, Load):
            stride = lane_stride(x, lane)
            if stride is None or not _is_affine(x, lane):
                return False
            strided += stride not in (0, 1)
    return strided <= 1


def _is_affine(x: Load, lane: Var) -> bool:
    """Whether all indices are affine: the view (i // n, i % n) has a constant stride in i, yet
    neither index is, and the lanes of a vector move along one dimension only."""
    return all(affine(i, (lane,)) is not None for i in x.indices)


def has_vector_loads(value: Expr, lane: Var) -> bool:
    """Whether every load is contiguous or uniform in `lane`, along one dimension."""
    return in_memory_order(value, lane) and all(
        _is_affine(x, lane) for x in walk(value) if isinstance(x, Load)
    )


def in_memory_order(value: Expr, var: Var) -> bool:
    """Whether every load is contiguous or uniform in `var`, if along several dimensions."""
    return all(lane_stride(x, var) in (0, 1) for x in walk(value) if isinstance(x, Load))


def blocked_loads(value: Expr, v: int, lane: Var | None = None) -> bool:
    """Whether lanes past the last channel can be computed without reading outside of a buffer:
    every load is from blocks of v channels or of a multiple of it, from a buffer of one element, or
    the same for all lanes. With `lane` None, no load counts as the same for all lanes."""
    for x in walk(value):
        if not isinstance(x, Load) or (lane is not None and lane not in free_vars(x)):
            continue
        width = int_value(x.buffer.shape[-1]) or 0
        blocks = len(x.buffer.shape) == 5 and width > 0 and width % v == 0
        if not blocks and any(int_value(d) != 1 for d in x.buffer.shape):
            return False
    return True


def reads_blocks(group: Group, v: int) -> bool:
    """Whether the anchor's first operand, with its prologue, reads blocks of v channels."""
    assert group.anchor is not None
    lane, zero = Var("l"), IntImm(0)
    value = group.element(group.anchor.args[0])(zero, lane, zero, zero)
    value = simplify_value(value, {lane: (0, v - 1)})
    loads = (x for x in walk(value) if isinstance(x, Load))
    return blocked_loads(value, v) and all(lane_stride(x, lane) in (0, 1) for x in loads)
