"""Elements added around a tensor, or removed at its ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value

MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True, slots=True)
class Width:
    """How many elements are added at an end, or removed: one of both is 0."""

    added: Expr
    removed: Expr


_NONE = Width(as_expr(0), as_expr(0))


def pad(
    g: Context, x: Val, pads: Sequence[ExprLike], axes: Sequence[int], mode: str, value: float
) -> Val:
    """Pad `x` along `axes`.

    `pads` lists the number of elements to add before each of `axes`, then the numbers to add
    after: [1, 2, 3, 4] for two axes adds 1 before and 3 after the first. A negative number removes
    elements.
    """
    return pad_by(g, x, [width(g, as_expr(p)) for p in pads], axes, mode, value)


def width(g: Context, count: Expr) -> Width:
    """The width of `count` elements that are added, or removed where it is negative."""
    return Width(g.dims.max(count, 0), g.dims.max(g.dims.simplify(0 - count), 0))


def pad_by(
    g: Context,
    x: Val,
    widths: Sequence[Width],
    axes: Sequence[int],
    mode: str,
    value: float,
) -> Val:
    """`pad` by widths: those before each of `axes`, then those after."""
    if len(widths) != 2 * len(axes):
        raise malformed(f"pads has {len(widths)} entries for {len(axes)} dimensions")
    if mode not in MODES:
        raise malformed(f"mode={mode!r}; expected {', '.join(map(repr, MODES))}")
    before, after = [_NONE] * g.rank(x), [_NONE] * g.rank(x)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = widths[k], widths[len(axes) + k]
    x = _cropped(g, x, before, after)
    low, high = (tuple(w.added for w in side) for side in (before, after))
    if all(int_value(n) == 0 for n in (*low, *high)):
        return x
    by_data = any(g.dims.is_computed(n) for n in (*low, *high, *g.shape(x)))
    if mode == "wrap" or (mode == "reflect" and by_data):
        return _repeated(g, x, low, high, mirrored=mode == "reflect")
    return g.emit("pad", x, before=low, after=high, value=value, mode=mode)


def _repeated(
    g: Context, x: Val, before: Sequence[Expr], after: Sequence[Expr], *, mirrored: bool
) -> Val:
    """`x` repeated without end in both directions, or each time `mirrored` at its ends, of which
    that many elements are kept."""
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if int_value(low) == int_value(high) == 0:
            continue
        extent = g.shape(x)[axis]
        count = g.dims.simplify(extent + low + high)
        place = g.emit("arange", start=0, step=1, count=count, dtype="int64")
        period = g.dims.simplify((extent - 1) * 2 if mirrored else extent)
        size = g.shape_value([g.dims.max(period, 1)])
        index = g.emit("mod", g.emit("sub", place, g.shape_value([low])), size)
        if mirrored:
            back = g.emit("sub", g.shape_value([period]), index)
            index = g.emit("minimum", index, back)
        x = g.emit("take", x, index, axis=axis)
    return x


def _cropped(g: Context, x: Val, before: Sequence[Width], after: Sequence[Width]) -> Val:
    begin = tuple(w.removed for w in before)
    cuts = [b.removed + a.removed for b, a in zip(before, after, strict=True)]
    if all(int_value(c) == 0 for c in cuts):
        return x
    shape = tuple(g.dims.simplify(d - c) for d, c in zip(g.shape(x), cuts, strict=True))
    if any(n is not None and n < 0 for n in map(int_value, shape)):
        raise malformed("pads remove more elements than there are")
    return g.emit("slice", x, begin=begin, strides=(1,) * g.rank(x), shape=shape)
