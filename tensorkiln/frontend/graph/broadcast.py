"""Tensors broadcast to each other's shapes."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.agreement import stretch
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, IntImm, int_value


def broadcast(g: Context, x: Val, target: Sequence[Expr]) -> Val:
    """Broadcast `x` to the common shape of `x` and `target` by NumPy's rule.

    Where one extent is a number other than 1 and the other symbolic, the result has the number.
    """
    extents = g.shape(x)
    rank = max(len(extents), len(target))
    a = [IntImm(1)] * (rank - len(extents)) + list(extents)
    b = [IntImm(1)] * (rank - len(target)) + list(target)
    common = tuple(_common(g, p, q) for p, q in zip(a, b, strict=True))
    return stretch(g, x, common)


def _common(g: Context, a: Expr, b: Expr) -> Expr:
    x, y = int_value(a), int_value(b)
    if x == 1:
        return b
    if y == 1 or g.dims.same(a, b):
        return a
    if x is not None and y is not None:
        raise malformed(f"extents {x} and {y} do not broadcast")
    if g.dims.is_computed(a) or g.dims.is_computed(b):
        return a if x is not None else b
    return (a if x is not None else b) if (x, y) != (None, None) else g.dims.joint((a, b))


def unidirectional(g: Context, x: Val, operand: Val, name: str) -> tuple[Val, Val]:
    """x, and an operand that broadcasts to it, while x does not to the operand."""
    extents, lead = g.shape(operand), g.rank(x) - g.rank(operand)
    if lead < 0:
        raise malformed(f"{name} has {len(extents)} dimensions, expected {g.rank(x)} or less")
    pairs = list(zip(g.shape(x)[lead:], extents, strict=True))
    numbers = [d if int_value(e) in (None, 1) else e for d, e in pairs]
    x = g.fitted(x, (*g.shape(x)[:lead], *numbers))
    targets = zip(g.shape(x)[lead:], extents, strict=True)
    return x, stretch(g, operand, tuple(e if int_value(e) == 1 else d for d, e in targets))
