"""Det: determinants of small matrices."""

from __future__ import annotations

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Table
from tensorkiln.ir.expr import as_expr, int_value

# Each step of the elimination is some operators.
MOST = 32


def det(g: Context, x: Val) -> Val:
    """The determinants of x [..., n, n], by elimination with the greatest pivot of each column."""
    rank = g.rank(x)
    n = int_value(g.shape(x)[-1]) if rank > 1 else None
    if n is None or int_value(g.shape(x)[-2]) != n:
        raise malformed("expected square matrices of known extents")
    if n > MOST:
        raise unsupported(f"matrices of {n} rows", f"up to {MOST} are supported")
    lead = g.shape(x)[:-2]
    count = g.dims.product(lead)
    minor = g.reshape(x, (count, n, n))
    value: Val = g.emit("full", shape=(count,), value=1.0, dtype=g.dtype(x))
    for size in range(n, 0, -1):
        column = g.reshape(_part(g, minor, (0, 0, 0), (size, 1)), (count, size))
        best = g.emit("argmax", g.emit("abs", column), axis=1, keepdims=True)
        line = g.reshape(g.emit("arange", start=0, step=1, count=size, dtype="int64"), (1, size))
        hit = g.reshape(g.emit("equal", line, best), (count, size, 1))
        zero, unit = g.like(0, x), g.like(1, x)
        chosen = g.emit("where", hit, minor, zero)
        pivot = g.emit("sum", chosen, axes=(1,), keepdims=True)
        first = _part(g, minor, (0, 0, 0), (1, size))
        head = g.reshape(_part(g, pivot, (0, 0, 0), (1, 1)), (count,))
        moved = g.emit("equal", g.reshape(best, (count,)), g.const(0, "int64"))
        value = g.emit("mul", value, g.emit("where", moved, head, g.emit("neg", head)))
        if size == 1:
            break
        swapped = _part(g, g.emit("where", hit, first, minor), (0, 1, 0), (size - 1, size))
        # Where the pivot is 0 the determinant is, whatever remains.
        divisor = g.emit("where", g.emit("equal", head, zero), unit, head)
        lead_column = _part(g, swapped, (0, 0, 0), (size - 1, 1))
        factor = g.emit("div", lead_column, g.reshape(divisor, (count, 1, 1)))
        right = _part(g, swapped, (0, 0, 1), (size - 1, size - 1))
        row = _part(g, pivot, (0, 0, 1), (1, size - 1))
        minor = g.emit("sub", right, g.emit("mul", factor, row))
    return g.reshape(value, lead)


def _part(g: Context, x: Val, begin: tuple[int, int, int], extents: tuple[int, int]) -> Val:
    shape = (g.shape(x)[0], *map(as_expr, extents))
    return g.emit("slice", x, begin=begin, strides=(1, 1, 1), shape=shape)


TABLE: Table = {"Det": {11: det}}
