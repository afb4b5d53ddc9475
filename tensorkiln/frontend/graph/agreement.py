"""Operands whose extents must agree and are not known to: the call decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tensorkiln import ops
from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.attrs import AttrValue
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value
from tensorkiln.ir.relax import Value
from tensorkiln.ops.agreement import AGREEMENTS
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.rules import Shape

_ONE = as_expr(1)


class NodeContext(Protocol):
    """What an importer of a node works with (`context.py`)."""

    builder: GraphBuilder
    dims: Dims

    @property
    def span(self) -> str: ...
    def shape(self, x: Val) -> Shape: ...
    def value(self, x: Val) -> Value: ...
    def checked(self, x: Val, shape: Sequence[ExprLike]) -> Val: ...
    def emit(self, name: str, *args: Val, **attrs: AttrValue) -> Val: ...


def agreeing_operands(
    g: NodeContext, name: str, args: Sequence[Val], attrs: Mapping[str, AttrValue]
) -> list[Val]:
    """The operands of an operator with extents that must agree made to agree, where they may.

    Two extents may be required to be equal and not be so for every size: for an image of height h,
    `(h // 4) * 2` equals `h // 2` only if h is even. Those that follow data are checked by casts.
    """
    args = list(args)
    shapes = [g.shape(x) for x in args]
    if name in AGREEMENTS and len(args) > 1 and _complete(name, shapes):
        targets = AGREEMENTS[name](shapes, attrs, common_extent)
        args = [fit(g, x, shape) for x, shape in zip(args, targets, strict=True)]
    if name == "matmul" and min(map(len, shapes)) > 2:
        return _broadcast(g, args, keep=2)
    if name not in AGREEMENTS and ops.get(name).pattern in ("elementwise", "broadcast"):
        return _broadcast(g, args)
    return args


def _complete(name: str, shapes: Sequence[Shape]) -> bool:
    """Whether operands have the ranks that an agreement takes for granted: the type rule tells of
    others."""
    ranks = [len(s) for s in shapes]
    match name:
        case "concat":
            return len(set(ranks)) == 1
        case "conv2d" | "conv2d_transpose":
            return ranks[:2] == [4, 4] and ranks[2:] in ([], [1])
        case "linear":
            return ranks[0] > 0 and ranks[1] == 2 and ranks[2:] in ([], [1])
        case "attention":
            return ranks[:3] == [4, 4, 4]
        case "scatter":
            return ranks == [2, 1, 2]
        case "batch_norm":
            return ranks[0] > 1 and set(ranks[1:]) == {1}
        case "layer_norm":
            return len(set(ranks[1:])) == 1 and ranks[1] <= ranks[0]
        case "matmul":
            return min(ranks) > 0
    return True


def common_extent(a: Expr, b: Expr) -> Expr:
    """What two extents are that must be equal: the number, if one is."""
    if int_value(a) is None and int_value(b) is not None:
        return b
    return a


def fit(g: NodeContext, x: Val, shape: Shape) -> Val:
    """`x` as a tensor of this shape, which it is or the call is refused."""
    extents = g.shape(x)
    target = tuple(a if g.dims.same(a, b) else b for a, b in zip(extents, shape, strict=True))
    if target == extents or any(_differ(a, b) for a, b in zip(extents, target, strict=True)):
        return x
    if any(
        g.dims.is_computed(e) for pair in zip(extents, target, strict=True) for e in _unequal(*pair)
    ):
        return g.checked(x, target)
    return g.builder.emit("fit", g.value(x), span=g.span, shape=target)


def _unequal(a: Expr, b: Expr) -> tuple[Expr, ...]:
    return () if a == b else (a, b)


def _differ(a: Expr, b: Expr) -> bool:
    """Whether two extents are different numbers."""
    x, y = int_value(a), int_value(b)
    return x is not None and y is not None and x != y


def _broadcast(g: NodeContext, args: list[Val], keep: int = 0) -> list[Val]:
    """Operands that broadcast to each other but for their last `keep` dimensions: where neither is
    known, an extent may be 1 or that of the others."""
    shapes = [list(g.shape(x)) for x in args]
    for place in range(keep + 1, max(map(len, shapes)) + 1):
        rows = [s for s in shapes if len(s) >= place and s[-place] != _ONE]
        extent = _joint(g.dims, [s[-place] for s in rows])
        for s in rows:
            if extent is not None and not g.dims.same(s[-place], extent):
                s[-place] = extent
    return [stretch(g, x, tuple(s)) for x, s in zip(args, shapes, strict=True)]


def _joint(dims: Dims, extents: Sequence[Expr]) -> Expr | None:
    """The extent of what operands of these extents, none of them 1, broadcast to; None if it needs
    nothing, or the type rule tells why it cannot be."""
    different: list[Expr] = []
    for e in extents:
        if not any(dims.same(e, extent) for extent in different):
            different.append(e)
    numbers = [e for e in different if int_value(e) is not None]
    if len(different) < 2 or len(numbers) > 1:
        return None
    return numbers[0] if numbers else dims.joint(different)


def stretch(g: NodeContext, x: Val, shape: Shape) -> Val:
    """`x` broadcast to a shape, or the call is refused."""
    extents = g.shape(x)
    if shape == extents:
        return x
    tail = shape[len(shape) - len(extents) :]
    if any(
        g.dims.is_computed(e) for pair in zip(extents, tail, strict=True) for e in _unequal(*pair)
    ):
        x = g.checked(
            x, [a if int_value(a) == 1 else b for a, b in zip(extents, tail, strict=True)]
        )
        return x if g.shape(x) == shape else g.emit("broadcast_to", x, shape=shape)
    if all(int_value(a) == 1 or g.dims.same(a, b) for a, b in zip(extents, tail, strict=True)):
        return g.emit("broadcast_to", x, shape=shape)
    return g.builder.emit("stretch", g.value(x), span=g.span, shape=shape)


__all__ = ["agreeing_operands", "common_extent", "fit", "stretch"]
