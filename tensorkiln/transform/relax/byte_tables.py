"""Elementwise functions between two conversions of quantized numbers, as tables: rules of
`match_integer`. A byte has 256 values, so `quantize(gelu(dequantize(q)))` is `take(table, q)`.
Kernels look it up behind their sums as they compute any elementwise operator (`looks_up` in
`kernels/fusion.py`).
"""

from __future__ import annotations

import numpy as np

from tensorkiln import ops
from tensorkiln.ir.relax import Call, Constant, RVar, Value, constant
from tensorkiln.transform.rewriting.graph import tensor_type
from tensorkiln.transform.rewriting.rewrite import Match, Rule

# Operators that cost more than to look up a byte.
_COSTLY = frozenset(
    (
        *("exp", "log", "erf", "tanh", "sigmoid", "gelu", "silu", "softplus", "elu", "pow"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    )
)
# Operators between the conversions, at most.
_MOST = 16


def _table(m: Match) -> Value | None:
    """quantize(f(dequantize(q, S, Z)), T, V) -> take(TABLE, q), where f computes each element from
    one, by operators that are costly. The table has what the operators say of each byte."""
    steps = _Steps(m)
    if not (_of_elements(m.call) and steps.reaches(m["x"]) and len(steps.sources) == 1):
        return None
    if not any(call.op in _COSTLY for call in steps.order.values()):
        return None
    (q,) = steps.sources
    dtype = tensor_type(q).dtype
    if not dtype.row.is_byte:
        return None
    values: dict[Value, np.ndarray] = {q: np.arange(256, dtype=np.uint8).view(dtype.name)}
    for v, call in steps.order.items():
        values[v] = _value(call, values)
    places = q if dtype.is_unsigned else m.emit("cast", q, dtype="uint8")
    return m.emit("take", constant(_value(m.call, values)), places, axis=0)


class _Steps:
    """How a value is computed, element by element, from integers: `order` has the calls, operands
    first, `sources` the integers."""

    def __init__(self, m: Match):
        self.m = m
        self.order: dict[RVar, Call] = {}
        self.sources: list[RVar] = []

    def reaches(self, v: Value) -> bool:
        """Whether these calls are all that computes the value, and are not too many."""
        if isinstance(v, Constant) or v in self.order:
            return True  # `_of_elements` has seen to it that it is one number
        call = self.m.definition(v)
        if call is None or not isinstance(v, RVar) or not _of_elements(call):
            return False
        if call.op == "dequantize":
            (q, *_) = call.args
            if not isinstance(q, RVar):
                return False
            self.sources += [] if q in self.sources else [q]
        elif len(self.order) >= _MOST or not all(map(self.reaches, call.args)):
            return False
        self.order[v] = call
        return True


def _of_elements(call: Call) -> bool:
    """Whether each element is computed from those of the operands, and constants are numbers."""
    numbers = all(a.array.size == 1 for a in call.args if isinstance(a, Constant))
    return numbers and ops.get(call.op).pattern in ("elementwise", "broadcast")


def _value(call: Call, values: dict[Value, np.ndarray]) -> np.ndarray:
    args = [a.array.reshape(()) if isinstance(a, Constant) else values[a] for a in call.args]
    return ops.get(call.op).numpy(args, call.attrs)


BYTE_TABLES: tuple[Rule, ...] = (Rule("quantize(x, T, Z)", _table),)
