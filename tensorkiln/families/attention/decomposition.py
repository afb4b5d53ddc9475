"""Attention by elementary operators, where no kernel computes it.

attention(q, k, v, mask)  ->  s = q k^T * scale + mask
softmax(s) v                            unseen="nan"
e = exp(s - max(s)); (e / sum(e)) v     unseen="zero"
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tensorkiln.ir.relax import Binding, Call, RVar, TensorType, Value, constant
from tensorkiln.ops import call as op_call
from tensorkiln.ops import infer


def decomposed(b: Binding) -> list[Binding]:
    """The bindings that compute attention by elementary operators."""
    var, call, bindings = b.var, b.value, list[Binding]()
    assert isinstance(call, Call)
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

    q, k, v = (emit("cast", x, dtype=dtype) if call.attrs.get("wide") else x for x in call.args[:3])
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
        i = emit("arange", start=columns - rows, step=1, count=rows, dtype="int32")
        j = emit("arange", start=0, step=1, count=columns, dtype="int32")
        visible = emit("greater_equal", emit("reshape", i, shape=(rows, 1)), j)
        scores = emit("where", visible, scores, number(-np.inf))
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
    return [*bindings, Binding(var, op_call("matmul", weights, v, span=call.span))]
