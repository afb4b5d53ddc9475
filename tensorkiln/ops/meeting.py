"""Operators for extents that must agree, where it is not known before the call whether they do.

Type rules take extents for equal only if they provably are. Where they may be, `fit` says that they
are, and `stretch` that they are or one is 1; both make it a condition of the call. They do nothing
else to a tensor: a `fit` by itself is a view of its operand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, binary, int_value, minimum
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.need import Need, Needs
from tensorkiln.ops.op import Element, OpDef, Operands, TensorIn
from tensorkiln.ops.rules import Shape, extents, mismatch, same_extent, show_shape, show_type

Constants = Sequence[np.ndarray | None]


def _infer(op: str, types: Operands, a: Attrs) -> TensorType:
    x, shape = types[0], extents(a.shape)
    if x.ndim > len(shape) or (op == "fit" and x.ndim < len(shape)):
        expected = f"{len(shape)} dimension(s) {'or less ' if op == 'stretch' else ''}for shape"
        raise mismatch(
            op, "x", f"{expected} {show_shape(shape)}", show_type(x), code="rank-mismatch"
        )
    return TensorType(shape, x.dtype)


def _pairs(x: TensorType, shape: Sequence[ExprLike]) -> Iterator[tuple[Expr, Expr]]:
    """Extents of an operand and of the result, the last ones first, that are not known to agree."""
    for extent, new in zip(reversed(x.shape), reversed(extents(shape)), strict=False):
        if not same_extent(extent, new):
            yield extent, new


def _fit_needs(types: Operands, a: Attrs, constants: Constants) -> Iterator[Need]:
    expected = f"shape {show_shape(extents(a.shape))}"
    for extent, new in _pairs(types[0], a.shape):
        yield Need(binary("eq", extent, new), 0, expected)


def _stretch_needs(types: Operands, a: Attrs, constants: Constants) -> Iterator[Need]:
    expected = f"a shape that broadcasts to {show_shape(extents(a.shape))}"
    for extent, new in _pairs(types[0], a.shape):
        if int_value(extent) != 1:
            is_one = binary("eq", extent, as_expr(1))
            yield Need(binary("or", binary("eq", extent, new), is_one), 0, expected)


def _program_stretch(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
    shape: Shape = ins[0].type.shape

    def element(*index: Expr) -> Expr:
        ends = zip(
            shape, out.shape[out.ndim - len(shape) :], index[out.ndim - len(shape) :], strict=True
        )
        return ins[0](*(_place(n, new, i) for n, new, i in ends))

    return element


def _place(extent: Expr, new: Expr, i: Expr) -> Expr:
    """The index at which a dimension of this `extent`, which is 1 or `new`, is read for index `i`
    of the result."""
    if int_value(extent) == 1:
        return as_expr(0)
    return i if same_extent(extent, new) else minimum(i, extent - 1)


MEETING: dict[str, OpDef] = {
    "fit": OpDef(
        "fit",
        ("x",),
        {"shape": at.extents()},
        "injective",
        lambda types, a: _infer("fit", types, a),
        lambda arrays, a: arrays[0].reshape(a.shape).copy(),
        lambda ins, a, out: ins[0].element,
        Needs("the extents of `shape`", _fit_needs),
    ),
    "stretch": OpDef(
        "stretch",
        ("x",),
        {"shape": at.extents()},
        "injective",
        lambda types, a: _infer("stretch", types, a),
        lambda arrays, a: np.broadcast_to(arrays[0], a.shape).copy(),
        _program_stretch,
        Needs("extents of 1 or of `shape`", _stretch_needs),
    ),
}
