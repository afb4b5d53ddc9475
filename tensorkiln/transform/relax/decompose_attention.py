"""Decompose attention that the fused schedule does not support.

    attention(q, k, v, mask)  ->  s = q k^T * scale + mask
                                  softmax(s) v                            unseen="nan"
                              e = exp(s - max(s)); (e / sum(e)) v     unseen="zero"

The fused schedule needs float32, and a head size that is a multiple of the vector width and the
same in v as in k.

Needs: `match_attention` has run; run before `assign_layouts`, which packs the keys of attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, RVar, TensorType, Value, constant
from tensorkiln.ops import call as op_call
from tensorkiln.ops import infer
from tensorkiln.target import Target


@dataclass(frozen=True, slots=True)
class DecomposeAttention:
    """Replace every attention without a fused schedule on a target by elementary operators."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the rewritten module; `mod` itself if it has no such attention."""
        lanes = self.target.vector_lanes("float32")
        return mod.map_graphs(lambda f: _function(f, lanes))


def _function(f: Function, lanes: int) -> Function:
    bindings: list[Binding] = []
    for b in f.bindings:
        if isinstance(b.value, Call) and b.value.op == "attention" and not _fused(b.value, lanes):
            _decompose(b.var, b.value, bindings)
        else:
            bindings.append(b)
    same = len(bindings) == len(f.bindings)
    return f if same else replace(f, bindings=tuple(bindings))


def _fused(call: Call, lanes: int) -> bool:
    q, v = call.args[0].type, call.args[2].type
    assert isinstance(q, TensorType) and isinstance(v, TensorType)
    depth, width = int_value(q.shape[3]), int_value(v.shape[3])
    return q.dtype.name == "float32" and depth is not None and depth == width and not depth % lanes


def _decompose(var: RVar, call: Call, bindings: list[Binding]) -> None:
    """Append the bindings that compute `var`."""
    q, k, v = call.args[:3]
    dtype = var.tensor.dtype.name
    count = 0

    def emit(op: str, *args: Value, **attrs: object) -> RVar:
        nonlocal count
        new = op_call(op, *args, span=call.span, **attrs)  # type: ignore[arg-type]
        count += 1
        name = RVar(f"{var.name}_{op}{count}", infer(new))
        bindings.append(Binding(name, new))
        return name

    def number(value: float) -> Value:
        return constant(np.asarray(value, dtype))

    keys = emit("transpose", k, axes=(0, 1, 3, 2))
    scores = emit("mul", emit("matmul", q, keys), number(float(call.attrs.scale)))
    if len(call.args) > 3:
        mask = call.args[3]
        assert isinstance(mask.type, TensorType)
        if mask.type.dtype.is_bool:
            scores = emit("where", mask, scores, number(-np.inf))
        else:
            scores = emit("add", scores, mask)
    if call.attrs.causal:
        rows, columns = scores.tensor.shape[2:]
        i = emit("arange", start=columns - rows, step=1, count=rows, dtype="int64")
        j = emit("arange", start=0, step=1, count=columns, dtype="int64")
        seen = emit("greater_equal", emit("reshape", i, shape=(rows, 1)), j)
        scores = emit("where", seen, scores, number(-np.inf))
    if call.attrs.unseen == "nan":
        weights = emit("softmax", scores, axis=3)
    else:
        top = emit("max", scores, axes=(3,), keepdims=True)
        # In a row that sees no key, all scores are -inf: subtracting the lowest number instead of
        # -inf makes its exponentials 0, and dividing by 0.5 its weights 0. In every other row the
        # greatest exponential is 1, so the sum is at least 1.
        lowest = float(ml_dtypes.finfo(var.tensor.dtype.name).min)
        e = emit("exp", emit("sub", scores, emit("maximum", top, number(lowest))))
        total = emit("maximum", emit("sum", e, axes=(3,), keepdims=True), number(0.5))
        weights = emit("div", e, total)
    bindings.append(Binding(var, op_call("matmul", weights, v, span=call.span)))
