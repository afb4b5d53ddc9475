"""Rules on quantize and dequantize, part of `match_integer`: dequantize moves behind operators that
only move data, scales are combined into one, and pairs of inverse conversions are removed.

Scales of the model are multiplied and divided in float32, in the order of ONNX's QLinearConv.
"""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.attrs import AttrValue
from tensorkiln.ir.dtype import INT32, UINT8
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, Constant, Value, constant
from tensorkiln.ops.quantise import QUANTISED
from tensorkiln.ops.rules import same_extent
from tensorkiln.transform.rewriting.graph import tensor_type
from tensorkiln.transform.rewriting.rewrite import Match, Rule

# --- dequantize moves towards the results --------------------------------------------------------


def _move(m: Match) -> Value | None:
    """f(dequantize(q, S, Z)) -> dequantize(f(q), S, Z) if f only moves or selects elements."""
    s, z = (m.constant(n) for n in "SZ")
    call = m.call
    if tensor_type(m["q"]).dtype == INT32:
        return None  # a conversion of int32 sums stays next to the kernel that computes them
    if max(s.array.size, z.array.size) > 1:
        moved = _moved_parameters(m, s.array, z.array)
        if moved is None:
            return None
        s, z = moved
    elif s.array.ndim or z.array.ndim:
        s, z = (constant(c.array.reshape(())) for c in (s, z))
    if call.op == "max_pool2d" and not (s.array > 0).all():
        return None
    q = m.emit(call.op, m["q"], *call.args[1:], **call.attrs)
    return m.emit("dequantize", q, s, z)


def _moved_parameters(m: Match, s: np.ndarray, z: np.ndarray) -> tuple[Constant, Constant] | None:
    """Per-channel scales and zero points, moved like the channels by the matched transpose or
    reshape; None if they would not be per channel after it."""
    call, rank = m.call, tensor_type(m["q"]).ndim
    if call.op == "transpose" and all(v.ndim in (0, rank) for v in (s, z)):
        axes = tuple(int_value(a) for a in call.attrs.axes)
        return tuple(constant(v.transpose(axes) if v.ndim else v) for v in (s, z))  # type: ignore[arg-type, return-value]
    if call.op == "reshape":  # only dimensions of extent 1 after the channels may differ
        before, after = m.shape("q"), m.type.static_shape()
        if not before or not after or before[0] != after[0]:
            return None
        first = all(v.size == 1 or v.shape == (before[0],) + (1,) * (rank - 1) for v in (s, z))
        shape = (-1,) + (1,) * (len(after) - 1)
        return (
            tuple(
                constant(v.reshape(shape if v.size > 1 else ()))  # type: ignore[return-value]
                for v in (s, z)
            )
            if first
            else None
        )
    return None


def _lift(m: Match) -> Value | None:
    """reshape(f(x, C)) -> f(reshape(x), C) if the reshape keeps the last dimension, so that it does
    not separate integer sums from the operators that convert them."""
    inner, shape = m.producer("y"), m.type.shape
    x, *params = inner.args
    before = m.tensor("y").shape
    last = bool(shape) and bool(before) and same_extent(shape[-1], before[-1])
    if not m.once("y") or not last or not _of_integers(m, inner):
        return None
    if inner.op == "linear":
        shape = (*shape[:-1], tensor_type(x).shape[-1])
    elif not all(isinstance(c, Constant) and c.array.ndim <= 1 for c in params):
        return None
    attrs: dict[str, AttrValue] = dict(inner.attrs)
    return m.emit(inner.op, m.emit("reshape", x, shape=shape), *params, span=inner.span, **attrs)


def _of_integers(m: Match, call: Call | None) -> bool:
    """Whether a chain of elementwise operators begins at quantised integers, or at a linear of
    uint8."""
    while call is not None and call.op in _CHAIN:
        if call.op == "dequantize" and _dtype_of(call) in QUANTISED:
            return True
        call = m.definition(call.args[0])
    if call is None:
        return False
    return call.op == "linear" and tensor_type(call.args[0]).dtype == UINT8


def _earlier(m: Match) -> Value | None:
    """quantize(f(x)) -> f(quantize(x)) if f only moves elements and f(x) has no other reader."""
    inner = m.producer("y")
    if not m.once("y") or m.array("T").size > 1 or m.array("Z").size > 1:
        return None
    if inner.op == "reshape":
        x, y = tensor_type(inner.args[0]), m.tensor("y")
        if not x.ndim or not y.ndim or same_extent(x.shape[-1], y.shape[-1]):
            return None  # `_lift` moves it the other way
    q = m.emit("quantize", inner.args[0], m["T"], m["Z"])
    return m.emit(inner.op, q, span=inner.span, **inner.attrs)


def _concat(m: Match) -> Value | None:
    """concat(dequantize(p, S, Z), dequantize(q, S, Z)) -> dequantize(concat(p, q), S, Z)"""
    calls = [m.definition(x) for x in m.rest("xs")]
    conversions = [c for c in calls if c is not None and c.op == "dequantize"]
    if len(conversions) < len(calls) or not all(
        _equal_constants(c.args[1:], conversions[0].args[1:]) for c in conversions
    ):
        return None
    if any(a.array.size > 1 for a in conversions[0].args[1:] if isinstance(a, Constant)):
        return None
    q = m.emit("concat", *(c.args[0] for c in conversions), **m.call.attrs)
    return m.emit("dequantize", q, *conversions[0].args[1:])


def _equal_constants(a: tuple[Value, ...], b: tuple[Value, ...]) -> bool:
    """Whether two lists of values are pairwise equal constants."""
    return all(
        isinstance(x, Constant)
        and isinstance(y, Constant)
        and x.array.dtype == y.array.dtype
        and x.array.shape == y.array.shape
        and np.array_equal(x.array, y.array)
        for x, y in zip(a, b, strict=True)
    )


def _back(m: Match) -> Value | None:
    """quantize(dequantize(q, S, Z), S, Z) -> q: rounding restores the integers."""
    inner = m.producer("y")
    return inner.args[0] if _equal_constants(inner.args[1:], m.call.args[1:]) else None


# --- scales are combined into one ----------------------------------------------------------------


def _rescale(m: Match) -> Value | None:
    """quantize(dequantize(x, S, 0), T, Z) -> quantize(dequantize(x, S / T, 0), 1, Z)"""
    t = m.array("T")
    if t.size > 1 or t.reshape(()) == 1 or not t.reshape(()) > 0:
        return None
    x = _divided(m, m["x"], t.reshape(()))
    return None if x is None else m.emit("quantize", x, constant(np.array(1, np.float32)), m["Z"])


def _divided(m: Match, v: Value, by: np.ndarray) -> Value | None:
    """v / by, with the division folded into the scales of the integers that `v` is computed from;
    None if `v` has other operators than dequantize, relu and add, or other readers."""
    call = m.definition(v)
    if call is None or (m.use_count(v) > 1 and _dtype_of(call) not in QUANTISED):
        return None
    if call.op == "dequantize" and isinstance(call.args[1], Constant):
        q, _, z = call.args
        scale = np.asarray(call.args[1].array / by, np.float32)
        return m.emit("dequantize", q, constant(scale), z)
    if call.op == "relu":
        inner = _divided(m, call.args[0], by)
        return None if inner is None else m.emit("relu", inner)
    if call.op == "add":
        sides = [_divided(m, a, by) for a in call.args]
        quotients = [x for x in sides if x is not None]
        return m.emit("add", *quotients) if len(quotients) == len(sides) else None
    return None


def _dtype_of(call: Call) -> str:
    """The dtype name of the first operand."""
    return tensor_type(call.args[0]).dtype.name


# --- operators that saturation replaces ----------------------------------------------------------


def _relu_saturates(m: Match) -> Value | None:
    """quantize(relu(x), T, Z) -> quantize(x, T, Z) if Z is the dtype's lowest value, to which all
    negative numbers saturate."""
    z = m.array("Z")
    low = np.iinfo(z.dtype).min
    return m.emit("quantize", m["x"], m["T"], m["Z"]) if (z == low).all() else None


def _clip_saturates(m: Match) -> Value | None:
    """quantize(clip(x), T, Z) -> quantize(x, T, Z) if the bounds of the clip lie at or beyond the
    ends of the range that the dtype can represent."""
    z, t = m.array("Z"), m.array("T")
    low, high = m.attr("a"), m.attr("b")
    info = np.iinfo(z.dtype)
    if low is not None and not (np.rint(np.float32(low) / t) + z <= info.min).all():
        return None
    if high is not None and not (np.rint(np.float32(high) / t) + z >= info.max).all():
        return None
    return m.emit("quantize", m["x"], m["T"], m["Z"])


# Elementwise operators that may lie between integer sums and the next conversion.
_CHAIN = ("quantize", "dequantize", "add", "relu", "gelu")

MOVED: tuple[Rule, ...] = (
    *(Rule(f"{op}(dequantize(q, S, Z))", _move) for op in ("reshape", "transpose", "max_pool2d")),
    *(Rule(f"{op}(dequantize(q, S, Z), *rest)", _move) for op in ("slice", "take")),
    Rule("concat(*xs)", _concat),
    *(Rule(f"reshape(y := {op}(x, *rest))", _lift) for op in (*_CHAIN, "linear")),
)
REQUANTIZED: tuple[Rule, ...] = (
    Rule("quantize(y := dequantize(q, S, Z), T, V)", _back),
    Rule("quantize(relu(x), T, Z)", _relu_saturates),
    Rule("quantize(clip(x, min=a, max=b), T, Z)", _clip_saturates),
    Rule("quantize(y := transpose(x), T, Z) | quantize(y := reshape(x), T, Z)", _earlier),
    Rule("quantize(x, T, Z)", _rescale),
)
