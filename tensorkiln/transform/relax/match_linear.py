"""Finds layers: products with constant matrices."""

from __future__ import annotations

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Value, tensor
from tensorkiln.ops.rules import same_extent
from tensorkiln.transform.relax.rewrite import Match, Rule, rewrite


def match_linear(mod: IRModule) -> IRModule:
    """matmul with a constant matrix on the right -> linear, which has packed weights.

    Before:  y = matmul(x, W); z = reshape(y, shape=(B, S, N))
    After:   z = linear(reshape(x, shape=(B, S, K)), W)
    Needs:   canonicalize (no transpose flags), fold_constants (transposed weights).
    """
    return rewrite(mod, RULES)


def _weights(m: Match) -> Constant | None:
    """W as [K, N]; extents of 1 before are dropped."""
    w = m["W"]
    assert isinstance(w, Constant)
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
    """Only the rows are regrouped: do it before, where it may cancel another reshape."""
    inner = m.definition(m["y"])
    assert inner is not None
    w, shape = inner.args[1], m.type.shape
    if not m.once("y") or not shape or not same_extent(shape[-1], w.type.shape[1]):  # type: ignore
        return None
    x = m.emit("reshape", m["x"], shape=(*shape[:-1], w.type.shape[0]))  # type: ignore[union-attr]
    return m.emit("linear", x, *inner.args[1:], span=inner.span)


RULES: tuple[Rule, ...] = (
    Rule("matmul(x, W, transpose_a=False, transpose_b=False)", _linear),
    Rule("reshape(y := linear(x, *rest))", _reshape_before),
    Rule("reshape(reshape(x), shape=s)", "reshape(x, shape=s)"),
    Rule("reshape(x)", "x"),
)
