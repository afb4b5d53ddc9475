"""Recognise linear layers: matrix products with a constant right operand."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Value, constant, tensor
from tensorkiln.ops.rules import same_extent
from tensorkiln.transform.rewriting.graph import tensor_type
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite


def match_linear(mod: IRModule) -> IRModule:
    """Replace matmul with a constant right matrix by linear, whose weights can be packed, and fold
    biases into it; replace a layer that is only read in slices of columns (the fused q, k and v of
    attention) by one layer for each slice.

    Before:  y = matmul(x, W); z = reshape(y, shape=(B, S, N))
    After:   z = linear(reshape(x, shape=(B, S, K)), W)
    Needs:   canonicalize (no transpose flags), fold_constants (transposed weights).
    """
    return rewrite(mod, RULES)


def _weights(m: Match) -> Constant | None:
    """W as [K, N], without leading dimensions of extent 1; None if it has other ones."""
    w = m.constant("W")
    shape = w.array.shape
    if len(shape) < 2 or any(d != 1 for d in shape[:-2]):
        return None
    if len(shape) == 2:
        return w
    return Constant(w.array.reshape(shape[-2:]), tensor(shape[-2:], w.type.dtype), w.name)


def _linear(m: Match) -> Value | None:
    w = _weights(m)
    return m.emit("linear", m["x"], w) if w is not None and m.type.dtype.is_float else None


def _reshape_before(m: Match) -> Value | None:
    """reshape(linear(x, W)) -> linear(reshape(x), W) if the reshape only regroups rows: before the
    layer, it may cancel another reshape."""
    inner, shape = m.producer("y"), m.type.shape
    rows, columns = tensor_type(inner.args[1]).shape
    if not m.once("y") or not shape or not same_extent(shape[-1], columns):
        return None
    x = m.emit("reshape", m["x"], shape=(*shape[:-1], rows))
    return m.emit("linear", x, *inner.args[1:], span=inner.span)


def _with_bias(m: Match) -> Value | None:
    """linear(x, W) + B, where B is one row"""
    b, count = m.constant("B"), m.tensor("y").shape[-1]
    if not m.once("y") or not b.array.ndim or int_value(count) != b.array.size:
        return None
    if b.array.shape[-1] != b.array.size:
        return None
    bias = constant(b.array.reshape(-1), b.name)
    return m.emit("linear", m["x"], m["W"], bias, span=m.producer("y").span)


def _columns(m: Match) -> Value | None:
    """slice(linear(x, W)) of some columns -> linear(x, those columns of W), if all readers of the
    layer are slices."""
    begin, strides, shape = (tuple(m.attr(n)) for n in "bts")
    first, count, w = int_value(begin[-1]), int_value(shape[-1]), m.constant("W")
    whole = all(map(same_extent, shape[:-1], m.tensor("y").shape[:-1]))
    if first is None or count is None or not whole or any(int_value(s) != 1 for s in strides):
        return None
    if any(c.op != "slice" for c in m.users(m["y"])):
        return None
    parts = [_cut(c, first, count) for c in (w, *m.rest("bias")) if isinstance(c, Constant)]
    inner = m.producer("y")
    if len(parts) != len(inner.args) - 1:
        return None
    return m.emit("linear", m["x"], *parts, span=inner.span)


def _cut(c: Constant, first: int, count: int) -> Constant:
    """The columns first to first + count - 1 of a constant, as a view; `w` becomes `w[0:64]`."""
    part = constant(c.array[..., first : first + count], f"{c.name}[{first}:{first + count}]")
    return part if c.name else constant(part.array)


RULES: tuple[Rule, ...] = (
    Rule("matmul(x, W, transpose_a=False, transpose_b=False)", _linear),
    Rule("reshape(y := linear(x, *rest))", _reshape_before),
    Rule("add(y := linear(x, W), B)", _with_bias),
    Rule("slice(y := linear(x, W, *bias), begin=b, strides=t, shape=s)", _columns),
    Rule("reshape(reshape(x), shape=s)", "reshape(x, shape=s)"),
    Rule("reshape(x)", "x"),
)
