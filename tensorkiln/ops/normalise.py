"""Normalisations.

Operators of pattern `opaque` have schedules of their own. Their programs here, with nested
reductions, are the slower fallback that takes any shape (`families/loops/schedule.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import (
    Expr,
    FloatImm,
    Reduce,
    Var,
    as_expr,
    cast,
    const,
    int_value,
    intrin,
    select,
    unary,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.op import Element, OpDef, Operands, TensorIn
from tensorkiln.ops.reduction import reduce_axes
from tensorkiln.ops.rules import (
    FLOAT,
    clamp,
    inside,
    mismatch,
    normal_axis,
    product,
    require_dtype,
    require_same_dtype,
    require_shape,
    show_type,
)

Ins = Sequence[TensorIn]
Arrays = Sequence[np.ndarray]


def _count(extents: Sequence[Expr], like: Expr) -> Expr:
    """Return the number of elements, converted to the dtype of `like`; a literal if it is known."""
    total = product(extents)
    number = int_value(total)
    return FloatImm(float(number), like.dtype) if number is not None else cast(total, like.dtype)


# --- batch_norm ----------------------------------------------------------------------------------


def _infer_batch_norm(types: Operands, a: Attrs) -> TensorType:
    x = types[0]
    names = ("x", "gamma", "beta", "mean", "var")
    require_dtype("batch_norm", "x", x, FLOAT)
    require_same_dtype("batch_norm", names, types)
    if x.ndim < 2:
        expected = "2 or more dimensions (N, C, ...)"
        raise mismatch("batch_norm", "x", expected, show_type(x), code="rank-mismatch")
    for name, t in zip(names[1:], types[1:], strict=False):
        require_shape("batch_norm", name, t, (x.shape[1],), "one value per channel of 'x'")
    return TensorType(x.shape, x.dtype)


def _program_batch_norm(ins: Ins, a: Attrs, out: TensorType) -> Element:
    x, gamma, beta, mean, var = ins

    def element(*index: Expr) -> Expr:
        c = index[1]
        scale = gamma(c) / unary("sqrt", var(c) + a.eps)
        return (x(*index) - mean(c)) * scale + beta(c)

    return element


def _np_batch_norm(arrays: Arrays, a: Attrs) -> np.ndarray:
    x = arrays[0]
    per_channel = (1, -1, *(1 for _ in x.shape[2:]))
    gamma, beta, mean, var = (v.reshape(per_channel) for v in arrays[1:])
    return np.asarray((x - mean) * (gamma / np.sqrt(var + x.dtype.type(a.eps))) + beta)


# --- layer_norm ----------------------------------------------------------------------------------


def _infer_layer_norm(types: Operands, a: Attrs) -> TensorType:
    x, names = types[0], ("x", "gamma", "beta")
    require_dtype("layer_norm", "x", x, FLOAT)
    require_same_dtype("layer_norm", names, types)
    axis = normal_axis("layer_norm", a.axis, x.ndim)
    for name, t in zip(names[1:], types[1:], strict=False):
        require_shape("layer_norm", name, t, x.shape[axis:], f"'x' from dimension {axis} on")
    return TensorType(x.shape, x.dtype)


def _program_layer_norm(ins: Ins, a: Attrs, out: TensorType) -> Element:
    x = ins[0]
    axis = normal_axis("layer_norm", a.axis, x.type.ndim)
    dims = range(axis, x.type.ndim)

    def element(*index: Expr) -> Expr:
        outer = index[:axis]
        n = _count(x.type.shape[axis:], x(*index))
        over, again = reduce_axes(x.type, dims), reduce_axes(x.type, dims)
        mean = Reduce("sum", over, x(*outer, *(v for v, _ in over))) / n
        deviation = x(*outer, *(v for v, _ in again)) - mean
        var = Reduce("sum", again, deviation * deviation) / n
        value = (x(*index) - mean) / unary("sqrt", var + a.eps) * ins[1](*index[axis:])
        return value + ins[2](*index[axis:]) if len(ins) > 2 else value

    return element


def _np_layer_norm(arrays: Arrays, a: Attrs) -> np.ndarray:
    x = arrays[0]
    axes = tuple(range(normal_axis("layer_norm", a.axis, x.ndim), x.ndim))
    with np.errstate(all="ignore"):
        count = x.dtype.type(np.prod([x.shape[d] for d in axes]))
        mean = x.sum(axis=axes, keepdims=True) / count
        var = ((x - mean) ** 2).sum(axis=axes, keepdims=True) / count
        out = (x - mean) / np.sqrt(var + x.dtype.type(a.eps)) * arrays[1]
    return np.asarray(out + arrays[2] if len(arrays) > 2 else out)


# --- softmax, log_softmax ------------------------------------------------------------------------


def _softmax(name: str) -> OpDef:
    """Return the operator exp(x - max) / sum(exp(x - max)) along an axis, or its logarithm.
    Subtracting the maximum keeps exp from overflowing."""
    log = name == "log_softmax"

    def infer(types: Operands, a: Attrs) -> TensorType:
        require_dtype(name, "x", types[0], FLOAT)
        normal_axis(name, a.axis, types[0].ndim)
        return TensorType(types[0].shape, types[0].dtype)

    def program(ins: Ins, a: Attrs, out: TensorType) -> Element:
        x = ins[0]
        axis = normal_axis(name, a.axis, x.type.ndim)

        def element(*index: Expr) -> Expr:
            def element_at(v: Expr) -> Expr:
                return x(*index[:axis], v, *index[axis + 1 :])

            ((r, extent),), ((s, _),) = (reduce_axes(x.type, (axis,)) for _ in range(2))
            top = Reduce("max", ((r, extent),), element_at(r))
            total = Reduce("sum", ((s, extent),), intrin("exp", element_at(s) - top))
            shifted = element_at(index[axis]) - top
            return shifted - intrin("log", total) if log else intrin("exp", shifted) / total

        return element

    def reference(arrays: Arrays, a: Attrs) -> np.ndarray:
        x = arrays[0]
        with np.errstate(all="ignore"):
            shifted = x - x.max(axis=a.axis, keepdims=True, initial=-np.inf)
            total = np.exp(shifted).sum(axis=a.axis, keepdims=True)
            return np.asarray(shifted - np.log(total) if log else np.exp(shifted) / total)

    return OpDef(name, ("x",), {"axis": at.axis(-1)}, "opaque", infer, reference, program)


# --- lrn -----------------------------------------------------------------------------------------


def _infer_lrn(types: Operands, a: Attrs) -> TensorType:
    x = types[0]
    require_dtype("lrn", "x", x, FLOAT)
    if x.ndim < 2:
        expected = "2 or more dimensions (N, C, ...)"
        raise mismatch("lrn", "x", expected, show_type(x), code="rank-mismatch")
    return TensorType(x.shape, x.dtype)


def _program_lrn(ins: Ins, a: Attrs, out: TensorType) -> Element:
    """x / (bias + alpha / size * s) ** beta, where s is the sum of the squares of `size` channels,
    of which (size - 1) // 2 come before the element's own: ONNX LRN."""
    x = ins[0]
    channels = x.type.shape[1]

    def element(*index: Expr) -> Expr:
        k = Var("k")
        c = index[1] + k - (a.size - 1) // 2
        near = x(index[0], clamp(c, channels), *index[2:])
        square = select(inside(c, channels), near * near, const(0, out.dtype))
        total = Reduce("sum", ((k, as_expr(a.size)),), square)
        base = total * (a.alpha / a.size) + a.bias
        return x(*index) / power(base, a.beta)

    return element


def power(base: Expr, exponent: float) -> Expr:
    """Return base ** exponent for a positive base; for exponents 0.5 and 0.75 by square roots,
    which are cheaper than `pow`."""
    if exponent == 1:
        return base
    if exponent in (0.5, 0.75):
        root = unary("sqrt", base)
        return root if exponent == 0.5 else root * unary("sqrt", root)
    return intrin("pow", base, const(exponent, base.dtype))


def _np_lrn(arrays: Arrays, a: Attrs) -> np.ndarray:
    x = arrays[0]
    before = (a.size - 1) // 2
    around = [(0, 0), (before, a.size - 1 - before)] + [(0, 0)] * (x.ndim - 2)
    square = np.pad(x * x, around)
    total = sum((square[:, k : k + x.shape[1]] for k in range(a.size)), np.zeros_like(x))
    return np.asarray(x / (a.bias + a.alpha / a.size * total) ** a.beta)


NORMALISE: dict[str, OpDef] = {
    "batch_norm": OpDef(
        "batch_norm",
        ("x", "gamma", "beta", "mean", "var"),
        {"eps": at.number(1e-5)},
        "broadcast",
        _infer_batch_norm,
        _np_batch_norm,
        _program_batch_norm,
    ),
    "layer_norm": OpDef(
        "layer_norm",
        ("x", "gamma", "beta?"),
        {"axis": at.axis(-1), "eps": at.number(1e-5)},
        "opaque",
        _infer_layer_norm,
        _np_layer_norm,
        _program_layer_norm,
    ),
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "lrn": OpDef(
        "lrn",
        ("x",),
        {
            "size": at.integer(1),
            "alpha": at.number(1e-4),
            "beta": at.number(0.75),
            "bias": at.number(1.0),
        },
        "reduction",
        _infer_lrn,
        _np_lrn,
        _program_lrn,
    ),
}
