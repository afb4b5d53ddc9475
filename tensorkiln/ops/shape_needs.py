"""What the operators that move elements require of extents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, binary, int_value
from tensorkiln.ops.need import Need, Needs, at_least
from tensorkiln.ops.op import Operands
from tensorkiln.ops.rules import extents, normal_axis, product, same_extent, show, show_shape

_FAR = 1 << 62  # beyond any extent
Constants = Sequence[np.ndarray | None]


def _reshape(types: Operands, a: Attrs, constants: Constants) -> Iterator[Need]:
    have, want = product(types[0].shape), product(extents(a.shape))
    if not same_extent(have, want):
        expected = f"{show(want)} elements for shape {show_shape(extents(a.shape))}"
        yield Need(binary("eq", have, want), 0, expected, "element-count")


def _slice(types: Operands, a: Attrs, constants: Constants) -> Iterator[Need]:
    rows = zip(a.begin, a.strides, extents(a.shape), types[0].shape, strict=True)
    for d, (begin, stride, count, extent) in enumerate(rows):
        if int_value(count) == 0:
            continue
        first, some = as_expr(begin), _some(count)
        last = _last(begin, stride, count)
        expected = f"an extent that holds elements {show(first)} to {show(last)} in dimension {d}"
        step = int_value(stride)
        lowest, highest = (first, last) if step is None or step > 0 else (last, first)
        yield at_least(lowest, 0, 0, expected, "out-of-range", some)
        yield at_least(extent, simplify(highest + 1), 0, expected, "out-of-range", some)
        if step is None:
            yield at_least(last, 0, 0, expected, "out-of-range", some)
            yield at_least(extent, simplify(first + 1), 0, expected, "out-of-range", some)


def _last(begin: ExprLike, stride: ExprLike, count: Expr) -> Expr:
    """begin + (count - 1) * stride, which numbers may have beyond int64."""
    b, s, n = map(int_value, map(as_expr, (begin, stride, count)))
    if b is None or s is None or n is None:
        return simplify(as_expr(begin) + (count - 1) * as_expr(stride))
    return as_expr(max(-_FAR, min(b + (n - 1) * s, _FAR)))


def _some(count: Expr) -> Expr | None:
    """The condition that there are `count` elements or more; None if there always are."""
    return None if (int_value(count) or 0) > 0 else count >= 1


def _take(types: Operands, a: Attrs, constants: Constants) -> Iterator[Need]:
    x, indices = types
    axis = normal_axis("take", a.axis, x.ndim)
    extent, places, count = x.shape[axis], constants[1], product(indices.shape)
    if places is None:
        if int_value(count) != 0:
            expected = f"a non-empty dimension {axis} to take from"
            yield at_least(extent, 1, 0, expected, "out-of-range", _some(count))
    elif places.size:
        low, high = int(places.min()), int(places.max())
        outside = low if -low > high + 1 else high
        expected = f"a dimension {axis} with an element of index {outside}"
        yield at_least(extent, max(-low, high + 1), 0, expected, "out-of-range")


def _pad(types: Operands, a: Attrs, constants: Constants) -> Iterator[Need]:
    """`edge` needs one element to repeat, `reflect` the edge and as many others as it mirrors.
    `constant` reads the first element even where it takes the value, so an argument of symbolic
    extent must have one; of a known extent of 0 it reads nothing."""
    for key in ("before", "after"):
        for d, (width, extent) in enumerate(zip(extents(a[key]), types[0].shape, strict=True)):
            if int_value(width) == 0 or (a.mode == "constant" and int_value(extent) == 0):
                continue
            minimum = simplify(width + 1) if a.mode == "reflect" else as_expr(1)
            expected = (
                f"{show(minimum)} or more elements in dimension {d} ({a.mode}, {key}={show(width)})"
            )
            read = a.mode == "constant"
            yield at_least(extent, minimum, 0, expected, premise=_some(width), of_arguments=read)


RESHAPE_NEEDS = Needs("as many elements as `shape` has", _reshape)
SLICE_NEEDS = Needs("the elements that it reads exist", _slice)
TAKE_NEEDS = Needs("an element to take from; of indices that are constant, those of them", _take)
PAD_NEEDS = Needs(
    "`edge`: an element to repeat; `reflect`: one more than it adds; `constant` of an argument: "
    "an element along a dimension that it pads, or an extent of 0 that is known",
    _pad,
)
