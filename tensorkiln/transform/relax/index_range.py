"""Between which numbers the elements of integer tensors of a graph function lie, from the operators
that compute them: of `argmax` over n elements between 0 and n - 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import prove, simplify
from tensorkiln.ir.conditions import conditions_of
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, as_expr, binary, int_value, maximum, minimum
from tensorkiln.ir.relax import Call, Constant, Function, RVar, TensorType, Value
from tensorkiln.ir.visit import free_vars
from tensorkiln.ops.places import index_limits

# The least and the greatest element; None where nothing is known.
Limit = Expr | None
Range = tuple[Limit, Limit]

# Operators whose elements are some of those of the first operand.
_CHOICES = ("identity", "reshape", "transpose", "broadcast_to", "slice", "tile", "relayout", "take")
# Constants of more elements than this are assumed to be data, not indices.
_MOST = 1 << 24
# Numbers of this magnitude are as good as unknown: sums of two would leave int64.
_FAR = 1 << 61


class IndexRanges:
    """The ranges of a function's values, by its bindings and the conditions that it assumes."""

    def __init__(self, f: Function):
        types = [v.type for v in (*f.params, *(b.var for b in f.bindings))]
        shapes = [t.shape for t in types if isinstance(t, TensorType)]
        dims = dict.fromkeys(v for shape in shapes for d in shape for v in free_vars(d))
        self.bounds = Bounds.dims(dims)
        for condition in conditions_of(f):
            self.bounds = self.bounds.given(condition.holds)
        self.calls = {b.var: b.value for b in f.bindings if isinstance(b.value, Call)}
        self._ranges: dict[RVar, Range] = {}

    def is_inside(self, indices: Value, low: ExprLike, high: ExprLike) -> bool:
        """Whether all elements are proved to lie within low..high; False also means unknown."""
        lower, upper = self.of(indices)
        if lower is None or upper is None:
            return False
        return self._holds("ge", lower, low) and self._holds("le", upper, high)

    def of(self, v: Value) -> Range:
        """The range of a value's elements, which are integers or bools."""
        if isinstance(v, Constant):
            return _of_constant(v)
        if not isinstance(v, RVar) or not isinstance(v.type, TensorType):
            return None, None
        if v not in self._ranges:
            limits = _of_type(v.type.dtype)
            self._ranges[v] = limits  # of a value that depends on itself
            call = self.calls.get(v)
            call_range = self._of_call(call, v.type) if call is not None else (None, None)
            sides = zip(call_range, limits, strict=True)
            low, high = (b if a is None else a for a, b in sides)
            self._ranges[v] = low, high
        return self._ranges[v]

    def _holds(self, op: str, a: ExprLike, b: ExprLike) -> bool:
        return prove(binary(op, as_expr(a), as_expr(b)), self.bounds)

    def _of_call(self, call: Call, out: TensorType) -> Range:
        """The range that follows from the operator alone; None where none does."""
        a, args = call.attrs, call.args
        if out.dtype.is_float:
            return None, None
        if call.op in _CHOICES:
            return self.of(args[0])
        if call.op == "where":
            return _union([self._where(call, k) for k in (1, 2)])
        if call.op == "concat":
            return _union([self.of(x) for x in args])
        if call.op in ("argmax", "argmin", "top_k"):
            x = args[0].type
            assert isinstance(x, TensorType)
            return IntImm(0), simplify(x.shape[a.get("axis", -1) % x.ndim] - 1)
        if call.op == "bounds_check":
            low, high = index_limits(out.dtype, a)
            return as_expr(low), simplify(high)
        if call.op in ("minimum", "maximum"):
            return _extreme(call.op, *map(self.of, args))
        if call.op in _ARITHMETIC:
            return self._fitting(_ARITHMETIC[call.op](self, *map(self.of, args)), out.dtype)
        return self._by_attributes(call, out)

    def _where(self, call: Call, k: int) -> Range:
        """The range of operand `k` of `where`, which is read only where the condition selects it:
        in where(i < 0, i + n, i), one operand is that of negative i, the other of all other i."""
        cond, value = (self.calls.get(call.args[j]) for j in (0, k))  # type: ignore[arg-type]
        operand_range = self.of(call.args[k])
        if cond is None or cond.op != "less" or self.of(cond.args[1]) != (IntImm(0), IntImm(0)):
            return operand_range
        index = cond.args[0]
        if k == 2 and call.args[2] is index:
            return _extreme("maximum", operand_range, (IntImm(0), IntImm(0)))[0], operand_range[1]
        if k == 1 and value is not None and value.op == "add" and value.args[0] is index:
            low, _ = self.of(index)
            return self.sum((low, IntImm(-1)), self.of(value.args[1]))
        return operand_range

    def _by_attributes(self, call: Call, out: TensorType) -> Range:
        """The range of an operator that follows from its attributes."""
        a = call.attrs
        if call.op == "arange" and int_value(a.step) is not None:
            ends = [as_expr(a.start), simplify(a.start + (as_expr(a.count) - 1) * a.step)]
            low, high = ends if int_value(a.step) >= 0 else reversed(ends)  # type: ignore[operator]
            return self._fitting((low, high), out.dtype)
        if call.op == "full":
            return self._fitting((_number(int(a.value)),) * 2, out.dtype)
        if call.op == "clip":
            first, last = (None if math.isinf(e) else _number(int(e)) for e in (a.min, a.max))
            lower, upper = self.of(call.args[0])
            lows = _extreme("maximum", (lower, None), (first, None))
            return lows[0], _extreme("minimum", (None, upper), (None, last))[1]
        if call.op == "cast":
            return self._fitting(self.of(call.args[0]), out.dtype)
        return None, None

    def _fitting(self, r: Range, dtype: DType) -> Range:
        """`r` if all its numbers are certainly within a type: others would wrap around. Extents are
        assumed to be far from the ends of int64."""
        first, last = _of_type(dtype)
        wraps = any(
            limit is not None and not (side is not None and self._holds(op, side, limit))
            for side, limit, op in ((r[0], first, "ge"), (r[1], last, "le"))
        )
        return (None, None) if wraps or None in r else r

    def sum(self, a: Range, b: Range) -> Range:
        """The range of sums."""
        (p, q), (r, s) = a, b
        return _with(p, r, lambda x, y: x + y), _with(q, s, lambda x, y: x + y)

    def difference(self, a: Range, b: Range) -> Range:
        """The range of differences."""
        (p, q), (r, s) = a, b
        return _with(p, s, lambda x, y: x - y), _with(q, r, lambda x, y: x - y)

    def product(self, a: Range, b: Range) -> Range:
        """The range of products of numbers of which none is negative."""
        (p, q), (r, s) = a, b
        if p is None or r is None or not (self._holds("ge", p, 0) and self._holds("ge", r, 0)):
            return None, None
        return _with(p, r, lambda x, y: x * y), _with(q, s, lambda x, y: x * y)

    def remainder(self, a: Range, b: Range) -> Range:
        """The range of remainders by positive numbers. They may have either sign, because a
        truncated division leaves a remainder with the sign of the dividend."""
        (p, _), (r, s) = a, b
        if r is None or s is None or not self._holds("ge", r, 1):
            return None, None
        low = IntImm(0) if p is not None and self._holds("ge", p, 0) else simplify(1 - s)
        return low, simplify(s - 1)


_ARITHMETIC: dict[str, Callable[[IndexRanges, Range, Range], Range]] = {
    "add": IndexRanges.sum,
    "sub": IndexRanges.difference,
    "mul": IndexRanges.product,
    "mod": IndexRanges.remainder,
}


def _of_type(dtype: DType) -> Range:
    """The range of a type of integers or of bool; of 64 bits it says nothing."""
    if dtype.is_float:
        return None, None
    if dtype.is_bool:
        return IntImm(0), IntImm(1)
    bits = dtype.bits - (not dtype.is_unsigned)
    return (
        IntImm(0) if dtype.is_unsigned else _number(-(1 << bits)),
        _number((1 << bits) - 1),
    )


def _of_constant(c: Constant) -> Range:
    if c.type.dtype.is_float or c.array.size > _MOST:
        return _of_type(c.type.dtype)
    if not c.array.size:
        return IntImm(0), IntImm(-1)
    return _number(int(c.array.min())), _number(int(c.array.max()))


def _number(value: int) -> Limit:
    return IntImm(value) if -_FAR <= value < _FAR else None


def _with(a: Limit, b: Limit, join: Callable[[Any, Any], Any]) -> Limit:
    if a is None or b is None:
        return None
    numbers = int_value(a), int_value(b)
    if None not in numbers:
        return _number(int_value(join(*numbers)))  # type: ignore[arg-type]
    return simplify(join(a, b))


def _union(ranges: Sequence[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return reduce(lambda a, b: _with(a, b, minimum), lows), reduce(
        lambda a, b: _with(a, b, maximum), highs
    )


def _extreme(op: str, a: Range, b: Range) -> Range:
    """The range of the smaller or larger of two numbers, of which one limit may be unknown."""
    join = minimum if op == "minimum" else maximum
    sides = [[x for x in side if x is not None] for side in zip(a, b, strict=True)]
    limits = [simplify(join(*side)) if len(side) == 2 else None for side in sides]
    if op == "minimum" and limits[1] is None and sides[1]:
        limits[1] = sides[1][0]
    if op == "maximum" and limits[0] is None and sides[0]:
        limits[0] = sides[0][0]
    return limits[0], limits[1]
