"""Products in parts of their terms (`costs.py`), as other operators: the parts are a batch of
products, whose sums are added in the order of the parts.

    y = linear(x, w, b)   ->   p = matmul(transpose(reshape(x)), reshape(w)); y = sum(p) + b
    y = conv2d(x, w, b)   ->   p = conv2d(x, w', groups=parts); y = sum(reshape(p)) + b
"""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, Value, constant
from tensorkiln.kernels.family import Rewriter
from tensorkiln.ops import call as op_call


def in_parts(b: Binding, parts: int, rewriter: Rewriter) -> Call:
    """The call that takes the place of a `linear` or `conv2d`: the sum of its parts, with the bias
    if there is one. Of floats of 16 bits, it is rounded once."""
    call, dtype = b.value, b.var.tensor.dtype
    assert isinstance(call, Call)
    products = _linear if call.op == "linear" else _conv2d
    sums, axis = products(b, call, parts, rewriter)
    last = op_call("sum", sums, span=call.span, axes=(axis,), keepdims=False)
    if len(call.args) > 2:
        bias = widened(b, call.args[2], rewriter)
        bias = _of_channels(b, bias, rewriter) if call.op == "conv2d" else bias
        last = op_call("add", rewriter.bind(last, _name(b, "total")), bias, span=call.span)
    if dtype == sums.tensor.dtype:
        return last
    return op_call("cast", rewriter.bind(last, _name(b, "wide")), span=call.span, dtype=dtype.name)


def widened(b: Binding, bias: Value, rewriter: Rewriter) -> Value:
    """A bias in the type of sums."""
    assert isinstance(bias.type, TensorType) and isinstance(b.value, Call)
    dtype = bias.type.dtype
    if dtype.sums == dtype:
        return bias
    if isinstance(bias, Constant):
        return constant(bias.array.astype(dtype.sums.name), bias.name)
    wide = op_call("cast", bias, span=b.value.span, dtype=dtype.sums.name)
    return rewriter.bind(wide, _name(b, "widebias"))


def _name(b: Binding, part: str) -> str:
    return f"{b.var.name}_{part}"


def _of_channels(b: Binding, bias: Value, rewriter: Rewriter) -> Value:
    """A bias of a convolution, such that it is added to each pixel."""
    shape = (int_value(b.var.tensor.shape[1]) or 0, 1, 1)
    if isinstance(bias, Constant):
        return constant(bias.array.reshape(shape), bias.name)
    assert isinstance(b.value, Call)
    apart = op_call("reshape", bias, span=b.value.span, shape=shape)
    return rewriter.bind(apart, _name(b, "bias"))


def _linear(b: Binding, call: Call, parts: int, rewriter: Rewriter) -> tuple[RVar, int]:
    """(the sums of the parts, the axis of parts)"""
    x, w = call.args[:2]
    assert isinstance(w, Constant)
    *lead, terms = (int_value(d) or 0 for d in x.type.shape)  # type: ignore[union-attr]
    columns = w.array.shape[1]
    split = op_call("reshape", x, span=call.span, shape=(*lead, parts, terms // parts))
    split_rows = rewriter.bind(split, _name(b, "split"))
    axes = (len(lead), *range(len(lead)), len(lead) + 1)
    turned = op_call("transpose", split_rows, span=call.span, axes=axes)
    shape = parts, *(1 for _ in lead[1:]), terms // parts, columns
    weights = constant(w.array.reshape(shape), w.name)
    left_factor = rewriter.bind(turned, _name(b, "rows"))
    wide = w.type.dtype.is_half
    products = op_call("matmul", left_factor, weights, span=call.span, wide=wide)
    return rewriter.bind(products, _name(b, "parts")), 0


def _conv2d(b: Binding, call: Call, parts: int, rewriter: Rewriter) -> tuple[RVar, int]:
    """(the sums of the parts, the axis of parts)"""
    sums = grouped(b, call, parts, rewriter)
    n, outputs, *image = b.var.tensor.shape
    shape: tuple[Expr | int, ...] = (n, parts, outputs, *image)
    apart = op_call("reshape", sums, span=call.span, shape=shape)
    return rewriter.bind(apart, _name(b, "parts")), 1


def grouped(b: Binding, call: Call, parts: int, rewriter: Rewriter) -> RVar:
    """The sums of the parts of a convolution, as the groups of another one."""
    x, w = call.args[:2]
    assert isinstance(w, Constant)
    outputs, channels, *kernel = w.array.shape
    split = w.array.reshape(outputs, parts, channels // parts, *kernel).swapaxes(0, 1)
    weights = np.ascontiguousarray(split.reshape(parts * outputs, channels // parts, *kernel))
    attrs = {**call.attrs, "groups": parts}
    if w.type.dtype.is_half:
        attrs["wide"] = True
    products = op_call("conv2d", x, constant(weights, w.name), span=call.span, **attrs)
    return rewriter.bind(products, _name(b, "groups"))
