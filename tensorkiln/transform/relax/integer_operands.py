"""Operands of a quantised product as integers, and the correction of its sums for zero points.
Part of `match_integer`.

    sum of (q - z) * (w - u) = sum of q * w' - z * sum of w'          w' = w - u, which is constant

q is uint8 and w' is int8. An int8 left operand is shifted to uint8: 128 is added to q and z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tensorkiln import ops
from tensorkiln.ir.dtype import INT8, INT32, UINT8
from tensorkiln.ir.relax import Call, Constant, Value, constant
from tensorkiln.transform.rewriting.graph import tensor_type
from tensorkiln.transform.rewriting.rewrite import Match

# Operators on constants that importers emit and do not fold; `known_array` evaluates them.
_FOLDED = ("reshape", "transpose", "cast", "sub", "add")


class CallDefinitions(Protocol):
    """Something that knows which calls values are bound to, such as a Match."""

    def definition(self, v: Value) -> Call | None:
        """The call that a value is bound to; None if it is bound to something else."""


@dataclass(slots=True)
class Factors:
    """The product of q - zero, on the left, and int8 weights w, whose channels lie along `axis`.

    `zero` is a number, or an int32 value that is known at run time only. `scale` (float32, one
    number or one per channel) converts the sums to real numbers; None if the result of the product
    is int32. `name` is the name of the weights in the model.
    """

    q: Value
    zero: int | Value
    w: np.ndarray
    axis: int
    scale: np.ndarray | None
    name: str

    @property
    def is_centred(self) -> bool:
        """Whether the zero point is 0, so that padding with 0 adds nothing to the sums."""
        return self.zero == 0

    def weights(self) -> Constant:
        """The weights as a constant operand."""
        return constant(self.w, self.name)

    def sums(self, shape: tuple[int, ...]) -> Constant:
        """The sum of the weights of each channel, as int32 in the given shape."""
        return constant(self._sums().astype(np.int32).reshape(shape))

    def _sums(self) -> np.ndarray:
        axes = tuple(d for d in range(self.w.ndim) if d != self.axis)
        return np.asarray(self.w.sum(axis=axes, dtype=np.int64))

    def correction(self, bias: np.ndarray | None) -> tuple[Constant, ...]:
        """The int32 bias operand of the product: `bias` less zero * sum of w per channel.

        A tuple of no or one operand. A zero point that is known at run time only is not included.
        """
        if isinstance(self.zero, int) and self.zero:
            moved = -self.zero * self._sums()
            bias = moved if bias is None else bias.astype(np.int64) + moved
        # The sums wrap around in 32 bits, so the bias may too.
        return () if bias is None else (constant(bias.astype(np.int32)),)

    def scale_constant(self, shape: tuple[int, ...]) -> Constant:
        """The scale as an operand of dequantize: in the given shape, or a scalar."""
        assert self.scale is not None
        return constant(np.asarray(self.scale.reshape(shape if self.scale.size > 1 else ())))

    def pad_terms(self, m: Match, multiple: int) -> None:
        """Pad q and w so that their number of terms is a multiple of `multiple`. The weights of the
        added terms are 0."""
        extra = -self.w.shape[0] % multiple
        if extra:
            self.w = np.pad(self.w, ((0, extra), (0, 0)))
            nothing = (0,) * tensor_type(self.q).ndim
            self.q = m.emit("pad", self.q, before=nothing, after=(*nothing[1:], extra))


def factors(m: Match, x: Value, w: Value, axis: int) -> Factors | None:
    """The product of `x` and `w` as integers; None unless both are dequantised 8-bit integers (or,
    in an int32 product, 8-bit integers less a zero point) and `w` is constant."""
    lhs, rhs = m.definition(x), m.definition(w)
    if lhs is None:
        return None
    if lhs.op == "dequantize":
        return _dequantised(m, lhs, rhs, axis)
    return _centred(m, lhs, w, axis) if m.type.dtype == INT32 else None


def lacks_integers(m: CallDefinitions, lhs: Call | None, rhs: Call | None, axis: int) -> str:
    """Why a product, whose operands these calls define, is not computed on uint8 and constant int8;
    empty if it is."""
    for side, call in (("left", lhs), ("right", rhs)):
        if call is None or call.op != "dequantize":
            return f"its {side} side is not dequantised"
        if not all(isinstance(a, Constant) for a in call.args[1:]):
            return f"a scale or zero point of its {side} side is computed"
    assert lhs is not None and rhs is not None
    s, z, t, u = (_array(a) for a in (*lhs.args[1:], *rhs.args[1:]))
    w = known_array(m, rhs.args[0])
    if w is None:
        return "its right side is computed"
    if s.size > 1 or z.size > 1:
        return "its left side has several scales or zero points"
    if not _varies_along(t, w, axis) or not _varies_along(u, w, axis):
        return "its right side has scales or zero points that are not one, or one per channel"
    if not _is_byte(lhs.args[0]):
        return f"its left side is {tensor_type(lhs.args[0]).dtype}"
    if _signed(w, u) is None:
        return "its weights less their zero point do not fit in 8 bits"
    return ""


def _dequantised(m: Match, lhs: Call, rhs: Call | None, axis: int) -> Factors | None:
    if rhs is None or lacks_integers(m, lhs, rhs, axis):
        return None
    s, z, t, u = (_array(a) for a in (*lhs.args[1:], *rhs.args[1:]))
    w = known_array(m, rhs.args[0])
    signed = None if w is None else _signed(w, u)
    unsigned = _unsigned(m, lhs.args[0], int(z.reshape(())))
    if unsigned is None or signed is None:
        return None
    scale = np.asarray(s.reshape(()) * t.reshape(-1))
    return Factors(*unsigned, signed, axis, scale, _name(rhs.args[0]))


def _array(v: Value) -> np.ndarray:
    assert isinstance(v, Constant)
    return v.array


def _centred(m: Match, lhs: Call, w: Value, axis: int) -> Factors | None:
    """The factors of an int32 product whose operands are 8-bit integers less a zero point."""
    zero: int | Value = 0
    wide = known_array(m, w)
    if wide is None or wide.dtype != np.int32:
        return None
    signed = _signed(wide, np.zeros((), np.int32))
    if signed is None:
        return None
    if lhs.op == "sub" and tensor_type(lhs.args[1]).ndim == 0:
        zero_array = known_array(m, lhs.args[1])
        zero = lhs.args[1] if zero_array is None else int(zero_array)
        inner = m.definition(lhs.args[0])
        if inner is None:
            return None
        lhs = inner
    if lhs.op != "cast":
        return None
    unsigned = _unsigned(m, lhs.args[0], zero)
    return None if unsigned is None else Factors(*unsigned, signed, axis, None, _name(w))


def centred(m: Match, v: Value) -> tuple[Value, np.ndarray | None] | None:
    """`v` as (int16 integers with zero point 0, their scale).

    `v` must be dequantised with one constant scale and zero point, or an int32 cast of 8-bit
    integers, less a zero point perhaps; then the scale is None. Otherwise the result is None.
    """
    call = m.definition(v)
    if call is None:
        return None
    if call.op == "dequantize":
        q = call.args[0]
        if not _has_one_scale(call) or not _is_byte(q):
            return None
        s, z = (_array(a).reshape(()) for a in call.args[1:])
        wide = m.emit("cast", q, dtype="int16")
        if z:
            wide = m.emit("sub", wide, constant(np.asarray(z, np.int16)))
        return wide, s
    if m.type.dtype != INT32:
        return None
    inner = m.definition(call.args[0]) if call.op == "sub" else call
    if inner is None or inner.op != "cast" or not _is_byte(inner.args[0]):
        return None
    return m.emit("cast", v, dtype="int16"), None


def lacks_pairs(lhs: Call | None, rhs: Call | None) -> str:
    """Why a product of two computed operands is not computed on integers; empty if it is."""
    for side, call in (("left", lhs), ("right", rhs)):
        if call is None or call.op != "dequantize":
            return f"its {side} side is not dequantised"
        if not _has_one_scale(call):
            return f"its {side} side has several scales or zero points, or computes them"
        if not _is_byte(call.args[0]):
            return f"its {side} side is {tensor_type(call.args[0]).dtype}"
    return ""


def _has_one_scale(call: Call) -> bool:
    """Whether a call of dequantize has one constant scale and one constant zero point."""
    return all(isinstance(a, Constant) and a.array.size == 1 for a in call.args[1:])


def _is_byte(v: Value) -> bool:
    return tensor_type(v).dtype.row.is_byte


def _name(w: Value) -> str:
    return w.name if isinstance(w, Constant) else ""


def _varies_along(v: np.ndarray, w: np.ndarray, axis: int) -> bool:
    """Whether a scale or zero point `v` of the weights is one number, or one per channel."""
    if v.size == 1:
        return True
    shape = (1,) * (w.ndim - v.ndim) + v.shape
    return shape == tuple(n if d == axis else 1 for d, n in enumerate(w.shape))


def _signed(w: np.ndarray, zero: np.ndarray) -> np.ndarray | None:
    """w - zero as int8; None if a difference does not fit."""
    if w.dtype == np.int8 and not zero.any():
        return w
    moved = w.astype(np.int32) - zero
    if w.size and not -128 <= moved.min() <= moved.max() <= 127:
        return None
    return np.asarray(moved, np.int8)


def _unsigned(m: Match, q: Value, zero: int | Value) -> tuple[Value, int | Value] | None:
    """8-bit integers `q` as uint8, with their zero point; int8 is shifted by 128. None if `q` has
    another dtype."""
    dtype = tensor_type(q).dtype
    if dtype == UINT8:
        return q, zero
    if dtype != INT8:
        return None
    wide = m.emit("cast", q, dtype="int32")
    moved = m.emit("cast", m.emit("add", wide, constant(np.array(128, np.int32))), dtype="uint8")
    if isinstance(zero, int):
        return moved, zero + 128
    return moved, m.emit("add", zero, constant(np.array(128, np.int32)))


def known_array(m: CallDefinitions, v: Value) -> np.ndarray | None:
    """The elements of `v` if it is a constant, or computed from constants by a few operators."""
    if isinstance(v, Constant):
        return v.array
    call = m.definition(v)
    if call is None or call.op not in _FOLDED:
        return None
    arrays = [known_array(m, a) for a in call.args]
    operands = [a for a in arrays if a is not None]
    if len(operands) < len(arrays):
        return None
    return np.asarray(ops.get(call.op).numpy(operands, call.attrs))


def integers_of(m: Match, bias: Value, scale: np.ndarray | None) -> np.ndarray | None:
    """A bias as integers in units of the scale of the product (None: of an int32 product).

    None unless it is constant, and for a scale dequantised from int32 with that scale.
    """
    if scale is None:
        array = known_array(m, bias)
        return None if array is None else array.reshape(-1)
    call = m.definition(bias)
    if call is not None and call.op == "reshape":
        call = m.definition(call.args[0])
    if call is None or call.op != "dequantize":
        return None
    b, s, zero = (known_array(m, a) for a in call.args)
    if b is None or s is None or zero is None or b.dtype != np.int32 or zero.any():
        return None
    # ONNX requires the product of the two scales, which exporters round in different ways.
    is_close = np.allclose(s.reshape(-1), scale, rtol=1e-5, atol=0)
    return b.reshape(-1) if is_close else None
