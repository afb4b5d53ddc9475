"""Rewrite equivalent computations to one canonical form, the only one that later patterns match.

The rules keep every bit of a float result, with three exceptions: the sign of a zero (x + 0),
powers that become products or roots, and average pools over the whole image, which become `mean`
and may sum in another order.
"""

from __future__ import annotations

import math

import numpy as np

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Value, constant
from tensorkiln.ops.rules import normal_axes, same_extent
from tensorkiln.transform.relax.canonical_movement import MOVEMENT, all_equal, as_reshape
from tensorkiln.transform.relax.canonical_rows import ROWS
from tensorkiln.transform.rewriting.graph import forward_aliases
from tensorkiln.transform.rewriting.pattern import uniform
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite


def canonicalize(mod: IRModule) -> IRModule:
    """Apply RULES until none matches.

    Before:  y = transpose(x, axes=(0, 2, 1)); z = transpose(y, axes=(0, 2, 1)); w = mul(z, 1)
    After:   w is x
    Needs:   types inferred.
    """
    return rewrite(mod.map_graphs(forward_aliases), RULES)


# --- arithmetic with constants -------------------------------------------------------------------


def _power_of_two(m: Match) -> bool:
    """Whether 1/C is exact: every element of C is +-2^k and its reciprocal is a normal number."""
    c = m.array("C")
    if c.dtype.kind != "f" or not c.size or c.size > 1 << 20:
        return False
    c = np.asarray(c, np.float64) if c.dtype.itemsize <= 8 else c
    mantissa, exponent = np.frexp(c)
    limit = -np.finfo(m.array("C").dtype).minexp
    return bool(np.all(np.abs(mantissa) == 0.5) and np.all(np.abs(exponent) < limit))


def _reciprocal(m: Match) -> Value:
    c = m.array("C")
    return m.emit("mul", m["x"], constant(np.asarray(1 / c, c.dtype)))


def _signed(m: Match) -> bool:
    return m.type.dtype.is_float or not m.type.dtype.is_unsigned


def _negated(m: Match) -> Value:
    c = m.array("C")
    return m.emit("add", m["x"], constant(np.asarray(-c, c.dtype)))


def _is_float(m: Match) -> bool:
    return m.type.dtype.is_float


# --- casts ---------------------------------------------------------------------------------------


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether `wide` represents every value of `narrow` exactly."""
    if wide == narrow or narrow.is_bool:
        return True
    w, n = wide.row, narrow.row
    if w.is_float:
        return w.bits > n.bits if n.is_float else n.bits - (n.kind == "int") <= w.digits
    if w.kind == n.kind:
        return w.bits >= n.bits
    return (w.kind, n.kind) == ("int", "uint") and w.bits > n.bits


def _lossless(m: Match) -> bool:
    """Whether the inner of two casts is exact, so that the outer one alone gives the same
    result."""
    middle, source = DType(str(m.attr("t"))), m.tensor("x").dtype
    return not middle.is_bool and _holds(middle, source)


# --- reductions and pooling ----------------------------------------------------------------------


def _over_units(m: Match) -> bool:
    """Whether all reduced dimensions have extent 1."""
    x = m.tensor("x")
    axes = normal_axes("mean", m.attr("a"), x.ndim)
    return all(int_value(x.shape[a]) == 1 for a in axes)


def _is_global(m: Match) -> bool:
    """Whether a pool has one window, which is the whole image without padding."""
    kernel = tuple(map(as_expr, m.attr("k")))
    return kernel == m.tensor("x").shape[2:] and all_equal("p", 0)(m)


# --- products of matrices ------------------------------------------------------------------------


def _without_flags(m: Match) -> Value | None:
    flip_a, flip_b = m.attr("ta"), m.attr("tb")
    if not (flip_a or flip_b):
        return None
    a = m.transposed(m["a"]) if flip_a else m["a"]
    return m.emit("matmul", a, m.transposed(m["b"]) if flip_b else m["b"])


# --- clip ----------------------------------------------------------------------------------------


def _scalar(c: Value) -> float | None:
    """The value of a constant of one element; None for any other value."""
    value = uniform(c)
    return value if isinstance(c, Constant) and c.array.size == 1 else None


def _clip(m: Match, low: float | None, high: float | None) -> Value | None:
    if low == -math.inf or high == math.inf:
        return m["x"]
    whole = all(v is None or (float(v).is_integer() and abs(v) < 1 << 53) for v in (low, high))
    return m.emit("clip", m["x"], min=low, max=high) if m.type.dtype.is_float or whole else None


def _clip_low(m: Match) -> Value | None:
    low = _scalar(m["C"])
    return None if low is None or math.isnan(low) else _clip(m, low, None)


def _clip_high(m: Match) -> Value | None:
    high = _scalar(m["C"])
    return None if high is None or math.isnan(high) else _clip(m, None, high)


def _clip_twice(m: Match) -> Value | None:
    """min(max(min(max(x, a), b), c), d) = min(max(x, max(a, c)), d) for c <= b, and so on."""
    a, b, c, d = (m.attr(n) for n in "abcd")
    low = c if a is None else a if c is None else max(a, c)
    high = d if b is None else b if d is None else min(b, d)
    if low is not None and high is not None and low > high:
        return None
    return _clip(m, low, high)


# --- broadcasts move towards the results ---------------------------------------------------------

# Operators that compute fewer elements if a broadcast of an operand is done after them.
_POINTWISE = sorted(n for n, op in ops.OPS.items() if op.pattern in ("elementwise", "broadcast"))


def _delay_broadcast(m: Match) -> Value | None:
    """f(broadcast_to(x), y) -> f(x, y), or broadcast_to(f(x, y)) if that result is smaller."""
    call, sources, changed = m.call, [], False
    for a in call.args:
        inner = m.definition(a)
        if inner is not None and inner.op == "broadcast_to":
            a, changed = inner.args[0], True
        sources.append(a)
    if not changed:
        return None
    try:
        small_call = ops.call(call.op, *sources, span=call.span, **call.attrs)
        small = ops.infer_tensor(small_call)
    except UserError:
        return None
    y = m.emit(call.op, *sources, **call.attrs)
    if len(small.shape) == m.type.ndim and all(map(same_extent, small.shape, m.type.shape)):
        return y
    return m.emit("broadcast_to", y, shape=m.type.shape)


RULES: tuple[Rule, ...] = (
    *MOVEMENT,
    # no-ops (a rule is applied only if the type stays the same, so `cast(x)` needs no condition)
    Rule("identity(x)", "x"),
    Rule("fit(x) | stretch(x)", "x"),
    Rule("cast(x)", "x"),
    Rule("clip(x, min=None, max=None)", "x"),
    Rule("sum(x, axes=()) | mean(x, axes=()) | max(x, axes=()) | min(x, axes=())", "x"),
    Rule("mul(x, 1) | div(x, 1) | pow(x, 1) | add(x, 0) | sub(x, 0)", "x"),
    Rule("neg(neg(x)) | logical_not(logical_not(x))", "x"),
    Rule("logical_and(x, 1) | logical_or(x, 0)", "x"),
    Rule("relu(y := relu(x)) | abs(y := abs(x))", "y"),
    Rule("where(c, x, x) | where(1, x, y) | where(0, y, x)", "x"),
    # two operators as one
    Rule("cast(cast(x, dtype=t), dtype=u)", "cast(x, dtype=u)", _lossless),
    Rule(
        "sum(x, axes=a) | mean(x, axes=a) | max(x, axes=a) | min(x, axes=a) | prod(x, axes=a)",
        as_reshape,
        _over_units,
    ),
    # one operator for each meaning
    Rule("pow(x, 2)", "mul(x, x)"),
    Rule("pow(x, 3)", "mul(mul(x, x), x)", _is_float),
    Rule("pow(x, 0.5)", "sqrt(x)", _is_float),
    Rule("pow(x, -1)", "reciprocal(x)", _is_float),
    Rule("mul(x, -1)", "neg(x)", _signed),
    Rule("div(x, C)", _reciprocal, _power_of_two),
    Rule("div(1, x)", "reciprocal(x)", _is_float),
    Rule("reciprocal(sqrt(x))", "rsqrt(x)"),
    Rule("sub(x, C)", _negated, _signed),
    Rule("add(x, neg(y))", "sub(x, y)"),
    Rule("sub(x, neg(y))", "add(x, y)"),
    Rule("where(logical_not(c), a, b)", "where(c, b, a)"),
    Rule("maximum(x, 0) | clip(x, min=0.0, max=None)", "relu(x)"),
    Rule("maximum(x, C)", _clip_low),
    Rule("minimum(x, C)", _clip_high),
    Rule("clip(relu(x), min=None, max=d)", lambda m: _clip(m, 0.0, m.attr("d"))),
    Rule("clip(clip(x, min=a, max=b), min=c, max=d)", _clip_twice),
    Rule("avg_pool2d(x, kernel=k, padding=p)", "mean(x, axes=(2, 3), keepdims=True)", _is_global),
    Rule("matmul(a, b, transpose_a=ta, transpose_b=tb)", _without_flags),
    *(Rule(f"{name}(*xs)", _delay_broadcast) for name in _POINTWISE if name != "identity"),
    *ROWS,
)
