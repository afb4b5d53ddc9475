"""One spelling for each computation, so that every later pattern needs to know only one.

The rules keep every bit of a float result, with three exceptions: the sign of a zero
(x + 0), powers that become products or roots, and the order of a few constant factors.
"""

from __future__ import annotations

import math

import numpy as np

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.dtype import DTYPES, DType
from tensorkiln.ir.expr import ExprLike, as_expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Value, constant
from tensorkiln.ops.rules import normal_axes, product, same_extent
from tensorkiln.ops.shape import reshape_groups
from tensorkiln.transform.relax.pattern import uniform
from tensorkiln.transform.relax.rewrite import Match, Rule, forward_aliases, rewrite


def canonicalize(mod: IRModule) -> IRModule:
    """Apply the rows of RULES until none fits.

    Before:  y = transpose(x, axes=(0, 2, 1)); z = transpose(y, axes=(0, 2, 1)); w = mul(z, 1)
    After:   w is x
    Needs:   types inferred.
    """
    return rewrite(mod.map_graphs(forward_aliases), RULES)


# --- moving data ---------------------------------------------------------------------------------


def _ints(values: object) -> tuple[int, ...] | None:
    numbers = [int_value(as_expr(v)) for v in values]  # type: ignore[attr-defined]
    return None if None in numbers else tuple(numbers)  # type: ignore[arg-type]


def _composed(m: Match) -> Value:
    first, second = m.attr("p"), m.attr("q")
    return m.emit("transpose", m["x"], axes=tuple(first[a] for a in second))  # type: ignore


def _is_identity(m: Match) -> bool:
    axes = m.attr("p")
    return axes == tuple(range(len(axes)))  # type: ignore[arg-type]


def _moves_units(m: Match) -> bool:
    """Whether a transpose keeps the order of all dimensions that are not 1."""
    shape, axes = m.tensor("x").shape, m.attr("p")
    order = [a for a in axes if int_value(shape[a]) != 1]  # type: ignore[union-attr, index]
    return order == sorted(order)


def _as_reshape(m: Match) -> Value:
    return m.emit("reshape", m["x"], shape=m.type.shape)


def _batched_transpose(m: Match) -> Value | None:
    """reshape(transpose(y [M, S, D]), [*A, D, S]) -> transpose(reshape(y, [*A, S, D]))"""
    flat, s = m.tensor("y").shape, m.type.shape
    if m.attr("p") != (0, 2, 1) or len(s) < 3:
        return None
    if not (same_extent(flat[2], s[-2]) and same_extent(flat[1], s[-1])):
        return None
    x = m.emit("reshape", m["y"], shape=(*s[:-2], s[-1], s[-2]))
    n = len(s)
    return m.emit("transpose", x, axes=(*range(n - 2), n - 1, n - 2))


def _units_before(m: Match) -> Value | None:
    """reshape(transpose(x)) that only drops or adds extents of 1: do that first."""
    x = m.tensor("x").shape
    axes: tuple[int, ...] = m.attr("p")  # type: ignore[assignment]
    wide = [a for a in axes if int_value(x[a]) != 1]
    narrow = [d for d in m.type.shape if int_value(d) != 1]
    if len(wide) != len(narrow) or not all(
        same_extent(x[a], d) for a, d in zip(wide, narrow, strict=True)
    ):
        return None
    units = m.type.ndim - len(narrow)
    order, unit, rest = sorted(wide), iter(range(units)), iter(wide)
    y = m.emit("reshape", m["x"], shape=((1,) * units + tuple(x[a] for a in order)))
    return m.emit("transpose", y, axes=tuple(
        next(unit) if int_value(d) == 1 else units + order.index(next(rest)) for d in m.type.shape
    ))  # fmt: skip


def _slice_before_transpose(m: Match) -> Value:
    """slice(transpose(x)) -> transpose(slice(x))"""
    axes: tuple[int, ...] = m.attr("p")  # type: ignore[assignment]

    def back(values: object) -> tuple:  # type: ignore[type-arg]
        return tuple(values[axes.index(d)] for d in range(len(axes)))  # type: ignore[index]

    y = m.emit("slice", m["x"], begin=back(m.attr("b")), strides=back(m.attr("s")),
               shape=back(m.type.shape))  # fmt: skip
    return m.emit("transpose", y, axes=axes)


def _slice_before_reshape(m: Match) -> Value | None:
    """A slice of the first of several dimensions that a reshape made of one: slice that one."""
    old, new = m.tensor("x").shape, m.tensor("y").shape
    begin, strides, count = _ints(m.attr("b")), _ints(m.attr("s")), m.type.shape
    if begin is None or strides is None or set(strides) != {1}:
        return None
    if any(int_value(d) == 0 for d in (*old, *new)):
        return None
    at: list[ExprLike] = [0] * len(old)
    extents = list(old)
    for olds, news in reshape_groups(old, new):
        partial = [d for d in news if begin[d] or not same_extent(count[d], new[d])]
        if not partial:
            continue
        if len(olds) != 1 or partial != [news[0]]:
            return None
        inner = product(new[d] for d in news[1:])
        at[olds[0]] = inner * begin[news[0]]
        extents[olds[0]] = inner * count[news[0]]
    y = m.emit("slice", m["x"], begin=tuple(at), strides=(1,) * len(old), shape=tuple(extents))
    return m.emit("reshape", y, shape=m.type.shape)


def _consecutive(m: Match) -> Value | None:
    """take of constant indices b, b + s, b + 2s, ... -> slice"""
    x, at = m.tensor("x"), m.array("C")
    axis = m.attr("a") % x.ndim  # type: ignore[operator]
    extent = int_value(x.shape[axis])
    if extent is None or not at.size or at.size > 1 << 20:
        return None
    flat = at.reshape(-1).astype(np.int64)
    flat = np.where(flat < 0, flat + extent, flat)
    step = int(flat[1] - flat[0]) if flat.size > 1 else 1
    if not step or flat.min() < 0 or flat.max() >= extent or (np.diff(flat) != step).any():
        return None
    begin, strides, shape = [0] * x.ndim, [1] * x.ndim, list(x.shape)
    begin[axis], strides[axis], shape[axis] = int(flat[0]), step, as_expr(flat.size)
    y = m.emit("slice", m["x"], begin=tuple(begin), strides=tuple(strides), shape=tuple(shape))
    return m.emit("reshape", y, shape=m.type.shape)


def _reads_all(m: Match) -> bool:
    begin, strides = _ints(m.attr("b")), _ints(m.attr("s"))
    return begin is not None and strides is not None and not any(begin) and set(strides) <= {1}


def _all_equal(name: str, value: int):  # type: ignore[no-untyped-def] # noqa: ANN202
    def where(m: Match) -> bool:
        numbers = _ints(m.attr(name))
        return numbers is not None and set(numbers) <= {value}

    return where


def _as_broadcast(m: Match) -> Value | None:
    """full -> broadcast_to of a number, which the rows on broadcasts can move."""
    dtype = m.type.dtype.name
    if dtype == "bfloat16":
        return None
    number = constant(np.asarray(m.attr("v"), dtype))
    return m.emit("broadcast_to", number, shape=m.type.shape)


# --- arithmetic with constants -------------------------------------------------------------------


def _power_of_two(m: Match) -> bool:
    """Whether 1/C is exact: every element +-2^k with a normal reciprocal."""
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
    """Whether every value of `narrow` is one of `wide`."""
    if wide == narrow or narrow.is_bool:
        return True
    (wk, wb, _), (nk, nb, _) = DTYPES[wide.name], DTYPES[narrow.name]
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    if wk == "float":
        if nk == "float":
            return wb > nb
        return nb - (nk == "int") <= digits[wide.name]
    return (wk == nk and wb >= nb) or (wk == "int" and nk == "uint" and wb > nb)


def _lossless(m: Match) -> bool:
    """Whether the inner cast of two loses nothing, so that the outer one alone decides."""
    middle, source = DType(str(m.attr("t"))), m.tensor("x").dtype
    return not middle.is_bool and _holds(middle, source)


# --- reductions and pooling ----------------------------------------------------------------------


def _over_units(m: Match) -> bool:
    """Whether all reduced dimensions have extent 1."""
    x = m.tensor("x")
    axes = normal_axes("mean", m.attr("a"), x.ndim)
    return all(int_value(x.shape[a]) == 1 for a in axes)


def _is_global(m: Match) -> bool:
    """Whether a pool's one window is the whole image."""
    kernel = tuple(map(as_expr, m.attr("k")))  # type: ignore[arg-type]
    return kernel == m.tensor("x").shape[2:] and _all_equal("p", 0)(m)


# --- products of matrices ------------------------------------------------------------------------


def _last_two(m: Match, name: str) -> Value:
    n = m.tensor(name).ndim
    return m.emit("transpose", m[name], axes=(*range(n - 2), n - 1, n - 2))


def _without_flags(m: Match) -> Value | None:
    flip_a, flip_b = m.attr("ta"), m.attr("tb")
    if not (flip_a or flip_b):
        return None
    a = _last_two(m, "a") if flip_a else m["a"]
    return m.emit("matmul", a, _last_two(m, "b") if flip_b else m["b"])


# --- clip ----------------------------------------------------------------------------------------


def _scalar(c: Value) -> float | None:
    """The number that a constant of one element is."""
    value = uniform(c)
    return value if isinstance(c, Constant) and c.array.size == 1 else None


def _clip(m: Match, low: float | None, high: float | None) -> Value | None:
    whole = all(v is None or (v == int(v) and abs(v) < 1 << 53) for v in (low, high))
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
    low = c if a is None else a if c is None else max(a, c)  # type: ignore[type-var]
    high = d if b is None else b if d is None else min(b, d)  # type: ignore[type-var]
    if low is not None and high is not None and low > high:  # type: ignore[operator]
        return None
    return _clip(m, low, high)  # type: ignore[arg-type]


# --- broadcasts move down ------------------------------------------------------------------------

# Operators through which a broadcast may be delayed: fewer elements are computed.
_POINTWISE = sorted(n for n, op in ops.OPS.items() if op.pattern in ("elementwise", "broadcast"))


def _delay_broadcast(m: Match) -> Value | None:
    """f(broadcast_to(x), y) -> f(x, y), or broadcast_to(f(x, y)) where that is smaller."""
    call, sources, changed = m.call, [], False
    for a in call.args:
        inner = m.definition(a)
        if inner is not None and inner.op == "broadcast_to":
            a, changed = inner.args[0], True
        sources.append(a)
    if not changed:
        return None
    try:
        made = ops.call(call.op, *sources, span=call.span, **call.attrs)
        small = ops.infer(made)
    except UserError:
        return None
    y = m.emit(call.op, *sources, **call.attrs)
    if len(small.shape) == m.type.ndim and all(map(same_extent, small.shape, m.type.shape)):
        return y
    return m.emit("broadcast_to", y, shape=m.type.shape)



RULES: tuple[Rule, ...] = (
    # nothing happens (the engine fits a row only where the type stays the same)
    Rule("identity(x)", "x"),
    Rule("cast(x)", "x"),
    Rule("reshape(x)", "x"),
    Rule("broadcast_to(x)", "x"),
    Rule("transpose(x, axes=p)", "x", _is_identity),
    Rule("slice(x, begin=b, strides=s)", "x", _reads_all),
    Rule("concat(x)", "x"),
    Rule("pad(x)", "x"),
    Rule("tile(x, repeats=r)", "x", _all_equal("r", 1)),
    Rule("clip(x, min=None, max=None)", "x"),
    Rule("sum(x, axes=()) | mean(x, axes=()) | max(x, axes=()) | min(x, axes=())", "x"),
    Rule("mul(x, 1) | div(x, 1) | pow(x, 1) | add(x, 0) | sub(x, 0)", "x"),
    Rule("neg(neg(x)) | logical_not(logical_not(x))", "x"),
    Rule("logical_and(x, 1) | logical_or(x, 0)", "x"),
    Rule("relu(y := relu(x)) | abs(y := abs(x))", "y"),
    Rule("where(c, x, x) | where(1, x, y) | where(0, y, x)", "x"),
    # one movement instead of two
    Rule("reshape(reshape(x), shape=s)", "reshape(x, shape=s)"),
    Rule("transpose(transpose(x, axes=p), axes=q)", _composed),
    Rule("transpose(x, axes=p)", _as_reshape, _moves_units),
    Rule("reshape(transpose(y := reshape(x), axes=p))", _batched_transpose),
    Rule("reshape(transpose(x, axes=p))", _units_before),
    Rule("slice(transpose(x, axes=p), begin=b, strides=s)", _slice_before_transpose),
    Rule("slice(y := reshape(x), begin=b, strides=s)", _slice_before_reshape),
    Rule("take(x, C, axis=a)", _consecutive),
    Rule("broadcast_to(broadcast_to(x), shape=s)", "broadcast_to(x, shape=s)"),
    Rule("cast(cast(x, dtype=t), dtype=u)", "cast(x, dtype=u)", _lossless),
    Rule("sum(x, axes=a) | mean(x, axes=a) | max(x, axes=a) | min(x, axes=a) | prod(x, axes=a)",
         _as_reshape, _over_units),
    # one operator for one meaning
    Rule("full(value=v)", _as_broadcast),
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
    Rule("clip(relu(x), min=None, max=d)", lambda m: _clip(m, 0.0, m.attr("d"))),  # type: ignore
    Rule("clip(clip(x, min=a, max=b), min=c, max=d)", _clip_twice),
    Rule("avg_pool2d(x, kernel=k, padding=p)", "mean(x, axes=(2, 3), keepdims=True)", _is_global),
    Rule("matmul(a, b, transpose_a=ta, transpose_b=tb)", _without_flags),
    *(Rule(f"{name}(*xs)", _delay_broadcast) for name in _POINTWISE if name != "identity"),
)  # fmt: skip
