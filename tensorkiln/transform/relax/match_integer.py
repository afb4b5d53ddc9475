"""Recognize products of quantized operands, and compute them on integers with exact sums.

A quantized model multiplies dequantized operands and quantizes the result. Here the product becomes
one of integers: int32 sums of uint8 times int8, or of int16 where both operands are activations.
The sums are exact, and may wrap around. Only then floats are used: the scales of the model become
one factor per channel, computed in the order of ONNX's QLinearConv, by which each sum is multiplied
once and rounded once. So a layer between DequantizeLinear and QuantizeLinear equals QLinearConv, or
QLinearMatMul, of its integers bit for bit. Any other QuantizeLinear divides by its scale, as ONNX
says.

Zero points are folded into the bias (`integer_operands.py`). Where an operand's is not 0, padding
is a `pad` operator of its own, because the padding must be the zero point. Dynamic quantization
(MatMulInteger of DynamicQuantizeLinear) keeps its zero point as a separate term. What lies between
two conversions is a table if it is a function of one byte (`byte_tables.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tensorkiln import ops
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Constant, Function, RVar, Value, constant
from tensorkiln.transform.relax.byte_tables import BYTE_TABLES
from tensorkiln.transform.relax.integer_operands import (
    Factors,
    centred,
    factors,
    integers_of,
    known_array,
    lacks_integers,
    lacks_pairs,
)
from tensorkiln.transform.relax.requantize import MOVED, REQUANTIZED
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite

_PRODUCTS = ("conv2d", "conv2d_transpose", "linear", "matmul")


def match_integer(mod: IRModule) -> IRModule:
    """Compute convolutions and matrix products of dequantised operands as uint8 times int8 with
    int32 sums, which are rescaled.

    Before:  y = conv2d(dequantize(q, S, Z), dequantize(W, T, U), dequantize(B, S*T, 0))
             r = quantize(relu(y), R, V)
    After:   i = conv2d(q, W1, B1)                       int32, zero points and U folded into B1
             r = quantize(dequantize(i, S*T/R, 0), 1, V)    one multiplication, one rounding
    and      r = quantize(gelu(dequantize(q, S, Z)), R, V)
    as       r = take(TABLE, q)                      a function of a byte is a table
    Needs:   constants as the model gives them (run before fold_constants).

    The sums are exact, up to overflow of 32 bits. The scale is a product of the model's scales in
    float32, as in ONNX's QLinearConv, so a result is the exact sum, scaled once and rounded once.
    Products that no rule matches, with a zero point per row of the left side for example, are
    computed as the model says: in int32 for integer operators, else in float32; the attribute
    `decomposed` of the function says why, for `Executable.placement()`.
    """
    return rewrite(rewrite(mod, RULES), LAST).map_graphs(_with_reasons)


def _with_reasons(f: Function) -> Function:
    """The function with the reasons why products of dequantized operands are not computed on
    integers."""
    calls = _Calls({b.var: b.value for b in f.bindings if isinstance(b.value, Call)})
    old = f.attrs.get("decomposed", ())
    rows = [
        row
        for call in calls.of.values()
        if call.op in _PRODUCTS and call.span and (reason := _reason(calls, call))
        if (row := (call.span, f"no integer kernel: {reason}")) not in old
    ]
    return replace(f, attrs=Attrs.of(**{**f.attrs, "decomposed": (*old, *rows)})) if rows else f


def _reason(calls: _Calls, call: Call) -> str:
    """Why a product is not computed on integers; empty if none of its operands is dequantized."""
    lhs, rhs = (calls.definition(a) for a in call.args[:2])
    if all(side is None or side.op != "dequantize" for side in (lhs, rhs)):
        return ""
    if call.op == "conv2d_transpose":
        return "there is none for conv2d_transpose"
    if call.op == "matmul" and call.attrs.get("transpose_a"):
        return "its left side is transposed"
    if call.op == "matmul" and (rhs is None or known_array(calls, rhs.args[0]) is None):
        return lacks_pairs(lhs, rhs)
    axis = 0 if call.op == "conv2d" else 1
    return lacks_integers(calls, lhs, rhs, axis) or "its weights are not a matrix"


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of a function by what they are bound to."""

    of: Mapping[RVar, Call]

    def definition(self, v: Value) -> Call | None:
        """As `Match.definition`."""
        return self.of.get(v) if isinstance(v, RVar) else None


def _conv(m: Match) -> Value | None:
    f = factors(m, m["x"], m["w"], 0)
    if f is None:
        return None
    attrs = dict(m.call.attrs)
    top_pad, left_pad, bottom_pad, right_pad = attrs["padding"]
    if any(attrs["padding"]) and not f.is_centred:
        if not isinstance(f.zero, int):
            return None  # the correction would depend on how many taps of a pixel are padding
        before, after = (0, 0, top_pad, left_pad), (0, 0, bottom_pad, right_pad)
        f.q = m.emit("pad", f.q, before=before, after=after, value=float(f.zero))
        attrs["padding"] = (0, 0, 0, 0)
    return _finish(m, f, "conv2d", (1, -1, 1, 1), attrs)


def _linear(m: Match) -> Value | None:
    f = factors(m, m["x"], m["w"], 1)
    if f is None or f.w.ndim != 2:
        return None
    f.pad_terms(m, 4)
    return _finish(m, f, "linear", (-1,), {})


def _matmul(m: Match) -> Value | None:
    """A product of two computed operands: both as int16, less their zero points."""
    sides = [centred(m, m[n]) for n in "xw"]
    if m.attr("t") or None in sides:
        return None
    (a, s), (b, t) = sides  # type: ignore[misc]
    total = m.emit("matmul", a, b, wide=True)
    if s is None or t is None:
        return total if s is t else None
    return m.emit("dequantize", total, constant(np.asarray(s * t)), constant(np.array(0, np.int32)))


def _moved_last(m: Match) -> Value | None:
    """matmul(x, f(transpose(w))) -> matmul(x, transpose(f(w))), where f is elementwise. The
    transpose is then next to the product, and the kernel that packs pairs does nothing else."""
    computed: list[Call] = []
    moved: list[Call] = []
    v = m["w"]
    for calls, predicate in ((computed, _is_of_one), (moved, _is_move)):
        while (call := m.definition(v)) is not None and predicate(call) and m.use_count(v) == 1:
            calls.append(call)
            v = call.args[0]
    if not computed or not moved:
        return None
    for call in (*reversed(computed), *reversed(moved)):
        scalars = (constant(a.array.reshape(())) for a in call.args[1:] if isinstance(a, Constant))
        v = m.emit(call.op, v, *scalars, span=call.span, **call.attrs)
    return m.emit("matmul", m["x"], v, **m.call.attrs)


def _is_of_one(call: Call) -> bool:
    """Whether each element is computed from one element of the first operand, and single
    numbers."""
    has_scalars = all(isinstance(a, Constant) and a.array.size == 1 for a in call.args[1:])
    return has_scalars and ops.get(call.op).pattern in ("elementwise", "broadcast")


def _is_move(call: Call) -> bool:
    return call.op in ("reshape", "transpose")


def _transposed(m: Match) -> Value | None:
    """matmul(x, dequantize(w), transpose_b=True) -> matmul(x, transpose(dequantize(w))), where the
    rules in MOVED then transpose the integers."""
    inner = m.definition(m["w"])
    if inner is None or inner.op != "dequantize" or m.attr("t") or m.tensor("w").ndim < 2:
        return None
    return m.emit("matmul", m["x"], m.transposed(m["w"]))


def _bias(m: Match) -> Value | None:
    """add(dequantize(linear(q, W)), b) -> dequantize(linear(q, W, b')), for a bias b that is an
    integer in units of the scale."""
    if not m.once("y", "i"):
        return None
    bias = integers_of(m, m["b"], m.array("S").reshape(-1))
    layer = m.producer("i")
    if bias is None or bias.size != m.array("W").shape[-1]:
        return None
    old = [c.array for c in m.rest("rest") if isinstance(c, Constant)]
    total = sum(old, bias.astype(np.int64)).astype(np.int32)
    i = m.emit("linear", *layer.args[:2], constant(total), span=layer.span)
    return m.emit("dequantize", i, m["S"], m["Z"])


def _finish(
    m: Match, f: Factors, op: str, shape: tuple[int, ...], attrs: dict[str, object]
) -> Value | None:
    """The product with its corrections for the zero point, its scale, and its bias.

    A bias in integer units is part of the sums; any other is added after the scale.
    """
    bias_args = m.rest("bias") if "bias" in m.captures else ()
    bias = integers_of(m, bias_args[0], f.scale) if bias_args else None
    total = m.emit(op, f.q, f.weights(), *f.correction(bias), **attrs)  # type: ignore[arg-type]
    if not isinstance(f.zero, int):
        total = m.emit("sub", total, m.emit("mul", f.zero, f.sums(shape)))
    if f.scale is not None:
        total = m.emit(
            "dequantize", total, f.scale_constant(shape), constant(np.array(0, np.int32))
        )
    if bias_args and bias is None:
        row = m.emit(
            "reshape", bias_args[0], shape=tuple(f.w.shape[f.axis] if d < 0 else d for d in shape)
        )
        total = m.emit("add", total, row)
    return total


RULES: tuple[Rule, ...] = (
    *MOVED,
    Rule("conv2d(x, w, *bias)", _conv),
    Rule("linear(x, w, *bias)", _linear),
    Rule("matmul(x, w, transpose_a=False, transpose_b=False)", _linear),
    Rule("matmul(x, w, transpose_a=t, transpose_b=False, wide=False)", _matmul),
    Rule("matmul(x, w, transpose_a=t, transpose_b=True)", _transposed),
    Rule("add(y := dequantize(i := linear(q, W, *rest), S, Z), b)", _bias),
    *BYTE_TABLES,
    *REQUANTIZED,
)
# Once no rule above moves anything: they move transposes the other way.
LAST: tuple[Rule, ...] = (
    Rule("matmul(x, w, transpose_a=False, transpose_b=False, wide=True)", _moved_last),
)
