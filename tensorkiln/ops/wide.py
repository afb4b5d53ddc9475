"""Operators that sum, for floats of 16 bits: computed in float32 and rounded once.

A sum of bfloat16 that is itself bfloat16 stops growing at 256 times its terms. So programs and
references of reductions, contractions and normalisations never see these types. With the attribute
`wide` a result is not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, cast
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.ops.op import Element, NumpyRef, OpDef, Program, TensorIn

_SUMS = ("reduction", "contraction", "opaque")
# Factors of these, one over a deviation, may be too large for 16 bits.
_OF_STATISTICS = ("batch_norm",)

# Reductions of many elements to a number that may be ordinary where their operands or an
# intermediate result are too large for 16 bits, and operators whose results are far larger than
# their operands (`transform/relax/widen_statistics.py`).
STATISTICS = frozenset({"sum", "mean", "prod", "avg_pool2d"})
GROWING = frozenset({"mul", "pow", "exp"})


def sums_elements(call: Call) -> bool:
    """Whether a call reduces elements by sums or products; of `scatter`, by its attribute."""
    return call.op in STATISTICS or (
        call.op == "scatter" and call.attrs.get("reduction") in ("add", "mul")
    )


def wide_sums(op: OpDef) -> OpDef:
    """Return the operator with a program and a reference that compute floats of 16 bits in float32,
    if it is one that sums or that divides by a deviation."""
    if op.pattern not in _SUMS and op.name not in _OF_STATISTICS:
        return op
    program = None if op.program is None else _program(op.program)
    return replace(op, program=program, numpy=_reference(op.numpy))


def _program(narrow: Program) -> Program:
    def program(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
        types = [x.type.dtype for x in ins]
        if all(t.sums == t for t in (*types, out.dtype)):
            return narrow(ins, a, out)
        element = narrow([_widened(x) for x in ins], a, replace(out, dtype=out.dtype.sums))
        return lambda *index: cast(element(*index), out.dtype)

    return program


def _widened(x: TensorIn) -> TensorIn:
    def element(*index: Expr) -> Expr:
        value = x(*index)
        return cast(value, value.dtype.sums)

    return TensorIn(replace(x.type, dtype=x.type.dtype.sums), element)


def _reference(narrow: NumpyRef) -> NumpyRef:
    def reference(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
        types = [DType(x.dtype.name) for x in arrays]
        halves = [x.dtype for x, t in zip(arrays, types, strict=True) if t.sums != t]
        if not halves:
            return narrow(arrays, a)
        wide = [x.astype(t.sums.name) for x, t in zip(arrays, types, strict=True)]
        out = narrow(wide, a)
        rounds = out.dtype == np.float32 and not a.get("wide")
        return out.astype(halves[0]) if rounds else out

    return reference
