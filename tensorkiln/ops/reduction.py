"""Reductions over dimensions: sums, means, products, extremes and positions of extremes.

A reduction of no elements gives the identity: 0, 1, and for max and min the lowest and the highest
value of the dtype. A mean of no elements is NaN, of integers 0. `argmax` and `argmin` need a
non-empty dimension.

Of elements with a NaN all of them are NaN, and `argmax` and `argmin` are the place of the first
NaN, as in NumPy and torch. Maxima of processors drop or keep a NaN by its place; so extremes of
floats are those of integers in the order of the floats (`extreme_key`). Max pooling does not pay
for that, and its result is then unspecified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import (
    Expr,
    FloatImm,
    IntImm,
    Reduce,
    Var,
    binary,
    cast,
    const,
    int_value,
    intrin,
    select,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.need import Need, Needs, at_least
from tensorkiln.ops.op import Element, OpDef, Operands, TensorIn
from tensorkiln.ops.rules import (
    NUMERIC,
    normal_axes,
    normal_axis,
    product,
    require_dtype,
)


def reduce_axes(x: TensorType, axes: Sequence[int]) -> tuple[tuple[Var, Expr], ...]:
    """Return a new variable and its extent for each dimension in `axes`, as `Reduce` takes them."""
    return tuple((Var(f"r{d}"), x.shape[d]) for d in axes)


def merged_index(
    axes: Sequence[int], reduced: Sequence[Expr], index: Sequence[Expr], keepdims: bool
) -> tuple[Expr, ...]:
    """Return the index into the operand: `reduced` in the dimensions `axes`, which must be sorted,
    and the output's `index` in the others."""
    ndim = len(index) if keepdims else len(index) + len(axes)
    outer = iter(i for d, i in enumerate(index) if not (keepdims and d in axes))
    inner = iter(reduced)
    return tuple(next(inner) if d in axes else next(outer) for d in range(ndim))


def _reduced(x: TensorType, axes: Sequence[int], keepdims: bool, dtype: DType) -> TensorType:
    shape = (
        tuple(IntImm(1) if d in axes else n for d, n in enumerate(x.shape))
        if keepdims
        else tuple(n for d, n in enumerate(x.shape) if d not in axes)
    )
    return TensorType(shape, dtype)


def extreme_key(x: Expr, op: str) -> Expr:
    """An integer in the order of floats, the bits turned where they are negative; a NaN is above
    all for `op` "max", below all for "min"."""
    word = DType(f"int{x.dtype.bits}", x.dtype.lanes)
    bits, max_word = intrin(f"bitcast_i{word.bits}", x), const((1 << word.bits - 1) - 1, word)
    key = select(bits < 0, binary("bitxor", bits, max_word), bits)
    end = max_word if op == "max" else const(-(1 << word.bits - 1), word)
    return select(intrin("isnan", x), end, key)


def extreme_value(key: Expr, op: str, dtype: DType) -> Expr:
    """The float of type `dtype` with a key, which may be that of a reduction of no elements."""
    mantissa = {32: 23, 64: 52}[dtype.bits]
    max_word = (1 << dtype.bits - 1) - 1
    infinity = max_word >> mantissa << mantissa
    last = const(~infinity if op == "max" else infinity, key.dtype)  # -inf ^ most is ~inf
    key = binary(op, last, key)
    bits = select(key < 0, binary("bitxor", key, const(max_word, key.dtype)), key)
    return intrin(f"bitcast_f{dtype.bits}", bits)


def _fold(name: str, op: str, numpy: Callable[..., np.ndarray]) -> OpDef:
    """Return the operator that reduces `axes` by `op`; `mean` divides the sum by the count."""

    def infer(types: Operands, a: Attrs) -> TensorType:
        require_dtype(name, "x", types[0], NUMERIC)
        axes = normal_axes(name, a.axes, types[0].ndim)
        return _reduced(types[0], axes, a.keepdims, types[0].dtype)

    def program(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
        x = ins[0]
        axes = normal_axes(name, a.axes, x.type.ndim)

        def element(*index: Expr) -> Expr:
            over = reduce_axes(x.type, axes)
            value = x(*merged_index(axes, [v for v, _ in over], index, a.keepdims))
            if over and name in ("max", "min") and value.dtype.is_float:
                return extreme_value(Reduce(op, over, extreme_key(value, op)), op, value.dtype)
            total = Reduce(op, over, value) if over else value
            return total if name != "mean" else _mean(total, product(n for _, n in over))

        return element

    def reference(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
        x = arrays[0]
        with np.errstate(all="ignore"):
            out = numpy(x, axis=tuple(a.axes), keepdims=a.keepdims)
        return np.asarray(out).astype(x.dtype)

    attrs = {"axes": at.axes(), "keepdims": at.flag(False)}
    return OpDef(name, ("x",), attrs, "reduction", infer, reference, program)


def _mean(total: Expr, count: Expr) -> Expr:
    number = int_value(count)
    if total.dtype.is_float:
        n = FloatImm(float(number), total.dtype) if number is not None else None
        return total / (n or cast(count, total.dtype))
    return total / cast(count, total.dtype)


def _np_mean(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> np.ndarray:
    total = x.sum(axis=axis, keepdims=keepdims, dtype=x.dtype)
    count = int(np.prod([x.shape[d] for d in axis], dtype=np.int64))
    if x.dtype.kind == "f":
        return np.asarray(total / x.dtype.type(count))
    if count == 0:
        return np.zeros_like(total)
    q = total // count
    return np.asarray(q + ((total < 0) & (q * count != total)))


def extreme_identity(dtype: np.dtype, op: str) -> float | int:
    """Return the identity of max or min in a NumPy dtype: -inf for max of floats, -128 for max of
    int8."""
    if dtype.kind == "f":
        return -np.inf if op == "max" else np.inf
    return int(np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max)


def _extreme(numpy: Callable[..., Any], op: str) -> Callable[..., np.ndarray]:
    return lambda x, **options: np.asarray(
        numpy(x, initial=extreme_identity(x.dtype, op), **options)
    )


def _total(numpy: Callable[..., Any]) -> Callable[..., np.ndarray]:
    return lambda x, **options: np.asarray(numpy(x, dtype=x.dtype, **options))


def _arg(name: str, op: str, numpy: Callable[..., np.ndarray]) -> OpDef:
    """Return the operator for the position of the first extreme element along an axis, as int64."""

    def infer(types: Operands, a: Attrs) -> TensorType:
        x = types[0]
        require_dtype(name, "x", x, NUMERIC)
        axis = normal_axis(name, a.axis, x.ndim)
        return _reduced(x, (axis,), a.keepdims, INT64)

    def program(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
        x = ins[0]
        axis = normal_axis(name, a.axis, x.type.ndim)

        def element(*index: Expr) -> Expr:
            def key_at(v: Expr) -> Expr:
                value = x(*merged_index((axis,), [v], index, a.keepdims))
                if not value.dtype.is_float:
                    return value
                return extreme_key(value + const(0.0, value.dtype), op)  # -0 is 0

            inner, outer = reduce_axes(x.type, (axis,)), reduce_axes(x.type, (axis,))
            best = Reduce(op, inner, key_at(inner[0][0]))
            key, (v, extent) = key_at(outer[0][0]), outer[0]
            beaten = key < best if op == "max" else key > best
            return Reduce("min", outer, select(beaten, extent, v))

        return element

    def reference(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
        (x,) = arrays
        if x.size == 0 and x.shape[a.axis] == 0:  # of no rows, as the operator needs
            return np.zeros_like(x.sum(axis=a.axis, keepdims=a.keepdims), np.int64)
        return np.asarray(numpy(x, axis=a.axis, keepdims=a.keepdims), np.int64)

    def rule(types: Operands, a: Attrs, constants: Sequence[np.ndarray | None]) -> Iterator[Need]:
        axis = normal_axis(name, a.axis, types[0].ndim)
        other_elements = product(n for d, n in enumerate(types[0].shape) if d != axis)
        if int_value(other_elements) != 0:
            premise = None if int_value(other_elements) else other_elements >= 1
            expected = f"a non-empty dimension {axis}"
            yield at_least(types[0].shape[axis], 1, 0, expected, premise=premise)

    attrs = {"axis": at.axis(), "keepdims": at.flag(False)}
    needs = Needs("an element or more along `axis`", rule)
    return OpDef(name, ("x",), attrs, "reduction", infer, reference, program, needs)


_ALL = (
    _fold("sum", "sum", _total(np.sum)),
    _fold("mean", "sum", _np_mean),
    _fold("max", "max", _extreme(np.max, "max")),
    _fold("min", "min", _extreme(np.min, "min")),
    _fold("prod", "prod", _total(np.prod)),
    _arg("argmax", "max", np.argmax),
    _arg("argmin", "min", np.argmin),
)

REDUCTION: dict[str, OpDef] = {op.name: op for op in _ALL}
