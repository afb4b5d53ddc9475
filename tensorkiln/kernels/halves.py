"""Products of 16-bit floats, by kernels that return the float32 sums (`wide`).

A target with an instruction for pairs of products (`target/dots.py`) multiplies both operands as
they are; any other multiplies float32 by weights of 16 bits, which are widened as they are loaded.
The result is rounded once:

    y = linear(x, w)  ->                z = linear(x, w, wide=True); y = cast(z)         pairs
                          u = cast(x);  z = linear(u, w, wide=True); y = cast(z)         no pairs
    y = attention(q, k, v)  ->  z = attention(q, k, v, wide=True); y = cast(z)             pairs
                              z = attention(cast(q), cast(k), cast(v)); y = cast(z)     no pairs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, Value, constant
from tensorkiln.kernels.family import Algorithm, Rewriter
from tensorkiln.kernels.layouts import takes_pairs
from tensorkiln.ops import call as op_call
from tensorkiln.target import Target

# Products whose weights alone may be of 16 bits: they are widened as they are loaded.
OF_WEIGHTS = ("linear", "conv2d")


def halves_of(operator: str) -> int:
    """How many of the first operands products of pairs take in 16 bits; bias and mask are not among
    them."""
    return 3 if operator == "attention" else 2


def half_constant(w: Constant, dtype: str) -> Constant | None:
    """A constant rounded to floats of 16 bits; None if a finite number would become infinite."""
    with np.errstate(over="ignore"):
        narrow = w.array.astype(dtype)
    overflow = np.isinf(narrow) & np.isfinite(w.array)
    return None if overflow.any() else replace(constant(narrow), name=w.name)


def _choose(
    call: Call, out: TensorType, target: Target, takes: Callable[[Call, Target], bool]
) -> str | None:
    """How to multiply two operands of 16 bits, "pairs" or "singles"; None if the operands are not
    of 16 bits, or the call multiplies pairs already."""
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    if not x.dtype.is_half or x.dtype != w.dtype or min(x.ndim, w.ndim) < 2:
        return None
    pairs = takes(call, target)
    return None if pairs and call.attrs.get("wide") else "pairs" if pairs else "singles"


def _rewrite(b: Binding, choice: str, rewriter: Rewriter) -> Call:
    call = b.value
    assert isinstance(call, Call)

    def cast(v: Value, dtype: DType) -> Value:
        if isinstance(v, Constant):
            return replace(constant(v.array.astype(dtype.name)), name=v.name)
        assert isinstance(v, RVar)
        conversion = op_call("cast", v, span=call.span, dtype=dtype.name)
        return rewriter.once(
            ("cast", v, dtype), lambda: rewriter.bind(conversion, f"{v.name}_{dtype}")
        )

    def wide(v: Value) -> Value:
        t = v.type
        assert isinstance(t, TensorType)
        return cast(v, t.dtype.sums) if t.dtype.sums != t.dtype else v

    operands = range(halves_of(call.op))
    keeps = operands if choice == "pairs" else operands[1:] if call.op in OF_WEIGHTS else ()
    args = [v if k in keeps else wide(v) for k, v in enumerate(call.args)]
    attrs = {k: v for k, v in call.attrs.items() if k != "wide"} | ({"wide": True} if keeps else {})
    product = op_call(call.op, *args, span=call.span, **attrs)
    if call.attrs.get("wide"):
        return product
    total = rewriter.bind(product, f"{b.var.name}_sums")
    return op_call("cast", total, span=call.span, dtype=b.var.tensor.dtype.name)


def of_halves(operator: str, takes: Callable[[Call, Target], bool] = takes_pairs) -> Algorithm:
    """The algorithm that rewrites products of 16 bits for the kernels of a target. `takes` says
    whether one of them multiplies the operands of a call in pairs."""
    return Algorithm(operator, partial(_choose, takes=takes), _rewrite)
