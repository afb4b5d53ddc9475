"""Products of matrices."""

from __future__ import annotations

from tensorkiln.frontend.graph.broadcast import unidirectional
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Constant


def matmul(g: Context, a: Val, b: Val) -> Val:
    """Matrix product; a constant 2-D right operand makes it `linear`, whose weights are packed."""
    if isinstance(b, Constant) and g.rank(b) == 2 and g.rank(a) >= 2:
        return g.emit("linear", a, b)
    return g.emit("matmul", a, b)


def gemm(
    g: Context,
    a: Val,
    b: Val,
    c: Val | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Val:
    """alpha * A' B' + beta * C, where A' and B' are A and B, transposed if `transpose_a`,
    `transpose_b`.

    A constant B becomes the weights of `linear`, and C its bias where alpha = beta = 1.
    """
    if g.rank(a) != 2 or g.rank(b) != 2:
        raise malformed(f"operands of {g.rank(a)} and {g.rank(b)} dimensions; expected 2 and 2")
    c = None if beta == 0 else c
    if isinstance(b, Constant):
        x = g.transpose(a, (1, 0)) if transpose_a else a
        w = g.transpose(b, (1, 0)) if transpose_b else b
        if c is not None and alpha == 1 and beta == 1 and _is_row(g, c, w):
            return g.emit("linear", x, w, g.reshape(c, (g.shape(w)[1],)))
        y = g.emit("linear", x, w)
    else:
        y = g.emit("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    if alpha != 1:
        y = g.emit("mul", y, g.like(alpha, y))
    if c is not None:
        y, c = unidirectional(g, y, c, "C")
        y = g.emit("add", y, c if beta == 1 else g.emit("mul", c, g.like(beta, c)))
    return y


def _is_row(g: Context, c: Val, w: Val) -> bool:
    """Whether the bias is [N] or [1, N] for weights [K, N]."""
    *lead, last = g.shape(c) or (None,)
    return last == g.shape(w)[1] and all(int_value(d) == 1 for d in lead if d is not None)
