"""Scalar and vector expressions: indices, symbolic shapes and the values of tensor programs.

    Expr = Var                              a variable; equal only to itself
         | IntImm(value) | FloatImm(value)
         | Binary(op, a, b)                 op in BINARY; a, b have the same dtype and lane count
         | Unary(op, a)                     op in UNARY
         | Select(cond, a, b)               both a and b are evaluated
         | Cast(a)
         | Load(buffer, indices)            in buffer.py; at most one index has lanes (a Ramp or a
                                            vector)
         | Ramp(base, stride, lanes)        the vector base, base + stride, base + 2 * stride, ...
         | Broadcast(a, lanes)              the scalar a in every lane
         | Shuffle(a, b, lanes)             lanes are indices into the concatenation of a and b
         | VectorReduce(op, a)              op over all lanes: the upper half of the vector onto
                                            the lower half, until one lane is left
         | Intrin(name, args)               name in INTRINSICS or DEVICE_INSTRUCTIONS
         | AddressOf(buffer, indices)       in buffer.py; a pointer, as an argument of CallExtern or
                                            CallKernel
         | CallExtern(name, args)           a call of a C function; pointers are AddressOf
         | Reduce(op, axes, value)          only in tensor programs; gone after scheduling

Integers wrap at their width. `floordiv` and `floormod` round towards minus infinity, `div` of
integers towards zero; all three give 0 when the divisor is 0. A shift by the width or more gives 0,
or -1 for `shr` of a negative number. `min` is `a < b ? a : b` and `max` is `a > b ? a : b`, so the
result is b when either operand is NaN. Float operations are IEEE 754, with contraction to FMA
allowed; `floordiv` of floats is floor(a / b), `floormod` is a - floor(a / b) * b.
A handle (pointer) plus an int64 n is the address n bytes after it.
Python operators on expressions build nodes and fold integer constants; `==` compares structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.ir.device_instructions import DEVICE_INSTRUCTIONS, DeviceInstruction
from tensorkiln.ir.dtype import BOOL, FLOAT32, HANDLE, INT64, VOID, DType
from tensorkiln.ir.fields import bound_in
from tensorkiln.ir.form import CallForm
from tensorkiln.ir.hints import agree, among, index, instead, plural
from tensorkiln.ir.operators import (
    BINARY,
    BITCASTS,
    DOTS,
    INTRINSICS,
    ON_BITS,
    TILE_DOTS,
    UNARY,
    Dot,
    Fault,
    Intrinsic,
)

ExprLike: TypeAlias = "Expr | int | float | bool"
# Intrinsics of all processors, and those of devices.
INTRINSIC_ROWS: Mapping[str, Intrinsic | Dot | DeviceInstruction] = {
    **INTRINSICS,
    **DEVICE_INSTRUCTIONS,
}
LOGIC = ("and", "or")


class Expr:
    """Base of all expressions. A subclass says its fields, its `dtype`, its text as a call (`form`,
    None for one that is written otherwise) and its type rule. `guards`: how many operands, the
    first ones, decide whether the others are needed; 0 if all are always computed."""

    __slots__ = ()
    form: ClassVar[CallForm | None] = None
    guards: ClassVar[int] = 0
    dtype: DType

    def fault(self, *types: DType) -> Fault | None:
        """What is wrong with the node, whose operands have these types and are well formed, and a
        hint; None if nothing is."""
        raise NotImplementedError(type(self).__name__)

    def __add__(self, operand: ExprLike) -> Expr:
        return binary("add", self, operand)

    def __radd__(self, operand: ExprLike) -> Expr:
        return binary("add", operand, self)

    def __sub__(self, operand: ExprLike) -> Expr:
        return binary("sub", self, operand)

    def __rsub__(self, operand: ExprLike) -> Expr:
        return binary("sub", operand, self)

    def __mul__(self, operand: ExprLike) -> Expr:
        return binary("mul", self, operand)

    def __rmul__(self, operand: ExprLike) -> Expr:
        return binary("mul", operand, self)

    def __truediv__(self, operand: ExprLike) -> Expr:
        return binary("div", self, operand)

    def __rtruediv__(self, operand: ExprLike) -> Expr:
        return binary("div", operand, self)

    def __floordiv__(self, operand: ExprLike) -> Expr:
        return binary("floordiv", self, operand)

    def __mod__(self, operand: ExprLike) -> Expr:
        return binary("floormod", self, operand)

    def __and__(self, operand: ExprLike) -> Expr:
        return binary("bitand", self, operand)

    def __xor__(self, operand: ExprLike) -> Expr:
        return binary("bitxor", self, operand)

    def __lt__(self, operand: ExprLike) -> Expr:
        return binary("lt", self, operand)

    def __le__(self, operand: ExprLike) -> Expr:
        return binary("le", self, operand)

    def __gt__(self, operand: ExprLike) -> Expr:
        return binary("gt", self, operand)

    def __ge__(self, operand: ExprLike) -> Expr:
        return binary("ge", self, operand)

    def __neg__(self) -> Expr:
        return unary("neg", self)


@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A loop index, symbolic dimension or let-bound value. Compared by identity, not by name."""

    name: str
    dtype: DType = INT64

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class IntImm(Expr):
    value: int
    dtype: DType = INT64

    def fault(self, *types: DType) -> Fault | None:
        d = self.dtype
        if d is INT64 and -(1 << 63) <= self.value < 1 << 63:  # as nearly always
            return None
        if d.is_float or d.lanes != 1:
            return f"{self.value} as {d}", _literal(d)
        low = 0 if d.is_unsigned else -(1 << (d.bits - 1))
        if not low <= self.value < low + (1 << d.bits):
            return f"{self.value} as {d}", f"{d} holds {low} to {low + (1 << d.bits) - 1}"
        return None


@dataclass(frozen=True, slots=True)
class FloatImm(Expr):
    value: float
    dtype: DType = FLOAT32

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FloatImm)
            and self.dtype == other.dtype
            and (
                self.value == other.value
                or (self.value != self.value and other.value != other.value)
            )
            and math.copysign(1.0, self.value) == math.copysign(1.0, other.value)
        )

    def __hash__(self) -> int:
        return hash((self.value if self.value == self.value else "nan", self.dtype))

    def fault(self, *types: DType) -> Fault | None:
        d = self.dtype
        return None if d.is_float and d.lanes == 1 else (f"{self.value} as {d}", _literal(d))


def _literal(d: DType) -> str:
    """A hint: the expression for a literal of dtype `d`."""
    text = f"{'FloatImm' if d.is_float else 'IntImm'}(value, {d.name})"
    return f"{text if d.lanes == 1 else f'Broadcast({text}, {d.lanes})'} makes {d}"


def _differ(operation: str, x: DType, y: DType) -> Fault | None:
    """The fault of two operands that must have one type."""
    return None if x == y else (f"{operation}: {x} against {y}", agree(x, y))


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    op: str
    a: Expr
    b: Expr

    @staticmethod
    def folded(op: str, a: Expr, b: Expr) -> Expr:
        return binary(op, a, b)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        # Down the left operands in a loop: sums of indices are deep on that side.
        e: Expr = self
        while isinstance(e, Binary):
            if BINARY[e.op][1]:
                return e.result(e.a.dtype)
            e = e.a
        return e.dtype

    def result(self, operand: DType) -> DType:
        """The type of its value, for operands of this type."""
        return BOOL.with_lanes(operand.lanes) if BINARY[self.op][1] else operand

    def fault(self, *types: DType) -> Fault | None:
        op, (x, y) = self.op, types
        if op not in BINARY:
            return f"binary operator {op!r}", among(op, BINARY)
        if op == "add" and x == HANDLE:
            fits = y == INT64
            return None if fits else (f"an address plus {y}: bytes are an int64", index(y))
        if x is not y and x != y:
            return _differ(op, x, y)
        if op in ON_BITS and x.is_float:
            casts = [name for name, (a, _) in BITCASTS.items() if a == x.name]
            hint = f"integers only: {casts[0] if casts else 'Cast'} makes an integer of {x}"
            return f"{op} of {x}", hint
        if op in LOGIC and not x.is_bool:
            hint = instead(x, BOOL.with_lanes(x.lanes))
            return f"{op} of {x}", hint if x.is_float else f"{hint}; bit{op} works on bits"
        return None


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    op: str
    a: Expr

    @staticmethod
    def folded(op: str, a: Expr) -> Expr:
        return unary(op, a)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.a.dtype

    def fault(self, *types: DType) -> Fault | None:
        op, (x,) = self.op, types
        if op not in UNARY:
            intrinsic = f"{op} is an intrinsic: Intrin({op!r}, (value,))"
            hint = intrinsic if op in INTRINSICS else among(op, UNARY)
            return f"unary operator {op!r}", hint
        if (op == "not" and not x.is_bool) or (op == "sqrt" and not x.is_float):
            target = BOOL if op == "not" else FLOAT32
            return f"{op} of {x}", instead(x, target.with_lanes(x.lanes))
        return None


@dataclass(frozen=True, slots=True)
class Select(Expr):
    form = CallForm("select", one_type=("a", "b"), like={"cond": BOOL})
    guards = 1
    cond: Expr
    a: Expr
    b: Expr

    @staticmethod
    def folded(cond: Expr, a: Expr, b: Expr) -> Expr:
        return select(cond, a, b)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.a.dtype

    def fault(self, *types: DType) -> Fault | None:
        cond, x, y = types
        fits = cond.lanes in (1, x.lanes)
        if x == y and not (cond.is_bool and fits):
            hint = instead(cond, BOOL.with_lanes(cond.lanes if fits else x.lanes))
            return f"select by {cond} among {x}", hint
        return _differ("select", x, y)


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion to `dtype`, which has the lanes of `a`.

    Integer to float rounds to nearest; float to integer truncates and saturates, with NaN to 0;
    to bool is x != 0; integer to integer wraps.
    """

    form = CallForm("Cast", order=("dtype", "a"))
    a: Expr
    dtype: DType

    @staticmethod
    def folded(a: Expr, dtype: DType) -> Expr:
        return cast(a, dtype)

    def fault(self, *types: DType) -> Fault | None:
        (x,) = types
        if x.lanes == self.dtype.lanes:
            return None
        hint = f"a cast keeps the lanes: to {self.dtype.with_lanes(x.lanes)}"
        return f"cast of {x} to {self.dtype}", hint


@dataclass(frozen=True, slots=True)
class Ramp(Expr):
    form = CallForm("Ramp", one_type=("base", "stride"))
    base: Expr
    stride: Expr
    lanes: int

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.base.dtype.with_lanes(self.lanes)

    def fault(self, *types: DType) -> Fault | None:
        x, y = types
        is_index = x.is_int and x.lanes == 1
        if x == y and not (is_index and self.lanes >= 1):
            hint = "at least 1 lane" if is_index else index(x)
            return f"ramp of {self.lanes} lanes from {x}", hint
        return _differ("ramp", x, y)


@dataclass(frozen=True, slots=True)
class Broadcast(Expr):
    form = CallForm("Broadcast")
    a: Expr
    lanes: int

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.a.dtype.with_lanes(self.lanes)

    def fault(self, *types: DType) -> Fault | None:
        (x,) = types
        if x.lanes == 1 and self.lanes >= 1:
            return None
        several = f"it has {x.lanes} lanes: Shuffle repeats lanes of a vector"
        hint = "at least 1 lane" if x.lanes == 1 else several
        return f"broadcast of {x} to {self.lanes} lanes", hint


@dataclass(frozen=True, slots=True)
class Shuffle(Expr):
    form = CallForm("shuffle", one_type=("a", "b"))
    a: Expr
    b: Expr
    lanes: tuple[int, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.a.dtype.with_lanes(len(self.lanes))

    def fault(self, *types: DType) -> Fault | None:
        x, y = types
        if x == y and not (self.lanes and all(0 <= i < 2 * x.lanes for i in self.lanes)):
            hint = f"list lanes from 0 to {2 * x.lanes - 1}, one or more"
            return f"lanes {self.lanes} of two {x}", hint
        return _differ("shuffle", x, y)


@dataclass(frozen=True, slots=True)
class VectorReduce(Expr):
    form = CallForm("vector_reduce")
    op: str
    a: Expr

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.a.dtype.element

    def fault(self, *types: DType) -> Fault | None:
        ops = (*REDUCE_BINARY, *REDUCE_BINARY.values())
        return None if self.op in ops else (f"reduction {self.op!r}", among(self.op, ops))


@dataclass(frozen=True, slots=True)
class Intrin(Expr):
    name: str
    args: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        row = INTRINSIC_ROWS.get(self.name)
        if row is not None and row.arity == len(self.args):
            return row.dtype(self.args)
        return self.args[0].dtype if self.args else FLOAT32  # not well formed, as `fault` says

    def fault(self, *types: DType) -> Fault | None:
        row = INTRINSIC_ROWS.get(self.name)
        if row is not None and row.arity == len(types):
            return row.fault(self.name, types)
        hint = among(self.name, INTRINSIC_ROWS)
        if row is not None:
            hint = f"{self.name} takes {plural(row.arity, 'argument')}"
        return f"{self.name!r} with {len(types)} arguments", hint


@dataclass(frozen=True, slots=True)
class CallExtern(Expr):
    """A call of the C function `name`, which may read and write the memory its pointers lead to.

    `dependencies` say what software has the function, where it is not of the C library.
    """

    name: str
    args: tuple[Expr, ...]
    dtype: DType = VOID
    dependencies: tuple[ExternalDependency, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """`value` reduced by `op` over `axes`: pairs of a variable, from 0 on, and its extent.

    An extent of 0 gives the identity element of `op`.
    """

    op: str  # sum, max, min, prod
    axes: tuple[tuple[Var, Expr], ...] = field(metadata=bound_in("value"))
    value: Expr

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.value.dtype


# What is written as a call `T.word(...)`, by that word.
CALLED: dict[str, type[Expr]] = {
    t.form.word: t
    for t in (Select, Cast, Ramp, Broadcast, Shuffle, VectorReduce)
    if t.form is not None
}
REDUCE_BINARY = {"sum": "add", "max": "max", "min": "min", "prod": "mul"}


def reduce_identity(op: str, dtype: DType) -> Expr:
    """The identity element of `op`: 0 (sum), 1 (prod), the least (max) or greatest (min) value.

    For max and min of floats that is an infinity. See `neutral` for sums of floats.
    """
    if op in ("sum", "prod"):
        return const(0 if op == "sum" else 1, dtype)
    if dtype.is_float:
        return const(float("-inf") if op == "max" else float("inf"), dtype)
    if dtype.is_unsigned:
        return const(0 if op == "max" else (1 << dtype.bits) - 1, dtype)
    low = -(1 << (dtype.bits - 1))
    return const(low if op == "max" else -low - 1, dtype)


def neutral(op: str, dtype: DType) -> Expr:
    """The x for which `x op e` has the bits of e: -0.0 for float sums, because 0.0 + -0.0 is 0.0.

    The code generator can therefore drop an operation with it (`codegen/expand/drop_starts.py`).
    """
    return const(-0.0, dtype) if op == "sum" and dtype.is_float else reduce_identity(op, dtype)


def const(value: float, dtype: DType = INT64) -> Expr:
    """A literal of `dtype`; a Broadcast of it when `dtype` has several lanes."""
    element = dtype.element
    imm: Expr
    imm = FloatImm(float(value), element) if element.is_float else IntImm(int(value), element)
    return imm if dtype.lanes == 1 else Broadcast(imm, dtype.lanes)


def as_expr(value: ExprLike, like: DType = INT64) -> Expr:
    """`value` itself if it is an expression, else a literal of it.

    A bool becomes a bool, a float beside an integer `like` a float32, and a number beside a
    handle an int64 (a count of bytes); any other number gets the dtype `like`.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool):
        return IntImm(int(value), BOOL)
    if isinstance(value, float) and not like.is_float:
        return FloatImm(value)
    return const(value, INT64 if like == HANDLE else like)


def int_value(e: ExprLike) -> int | None:
    """The value of an integer literal; None for any other expression."""
    if isinstance(e, IntImm):
        return e.value
    return int(e) if isinstance(e, int) else None


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "floormod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "gt": lambda a, b: int(a > b),
    "ge": lambda a, b: int(a >= b),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b if b < 64 else 0,
    "shr": lambda a, b: a >> min(b, 64),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """Build `a op b`; fold integer literals, x+0, x-0, x*1, x*0, x//1, x%1 and constant `and`.

    A scalar operand is broadcast to the lanes of the other. Raise ValueError when both are vectors
    of different lane counts.
    """
    if not isinstance(a, Expr):
        a = as_expr(a, b.dtype.element if isinstance(b, Expr) else INT64)
    if not isinstance(b, Expr):
        b = as_expr(b, a.dtype.element)
    a, b = match_lanes(a, b)
    if isinstance(b, IntImm):
        if op in ("shl", "shr") and b.value < 0:
            return Binary(op, a, b)
        if isinstance(a, IntImm) and op in _FOLD:
            value = _FOLD[op](a.value, b.value)
            return IntImm(value, BOOL) if BINARY[op][1] else _wrapped(value, a.dtype)
        if b.value in (0, 1) and not a.dtype.is_float:
            if op in (("add", "sub") if b.value == 0 else ("mul", "floordiv")):
                return a
            if op == "mul":
                return b
            if op == "floormod" and b.value == 1:
                return IntImm(0, a.dtype)
    if isinstance(a, IntImm) and a.value in (0, 1) and not b.dtype.is_float:
        if op == ("add" if a.value == 0 else "mul"):
            return b
        if op == "mul":
            return a
    if op == "and" and isinstance(a, IntImm):
        return b if a.value else a
    if op == "and" and isinstance(b, IntImm):
        return a if b.value else b
    return Binary(op, a, b)


def _wrapped(value: int, dtype: DType) -> IntImm:
    if dtype is INT64 and -(1 << 63) <= value < 1 << 63:  # as nearly always
        return IntImm(value)
    span = 1 << dtype.bits
    value %= span
    if not dtype.is_unsigned and value >= span // 2:
        value -= span
    return IntImm(value, dtype)


def match_lanes(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Both operands at one lane count: a scalar is broadcast to the lanes of the other operand.

    Raise ValueError when both are vectors and their lane counts differ.
    """
    x, y = a.dtype, b.dtype
    if x is y:
        return a, b
    la, lb = x.lanes, y.lanes
    if la == lb:
        return a, b
    if la == 1:
        return Broadcast(a, lb), b
    if lb == 1:
        return a, Broadcast(b, la)
    raise ValueError(f"lanes differ: {a.dtype} against {b.dtype}")


def unary(op: str, a: Expr) -> Expr:
    """Build `op a`, folding the negation of an integer literal."""
    if op == "neg" and isinstance(a, IntImm):
        return _wrapped(-a.value, a.dtype)
    return Unary(op, a)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """`a < b ? a : b`."""
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """`a > b ? a : b`."""
    return binary("max", a, b)


def logical_and(*conds: Expr) -> Expr:
    """Conjunction of all conditions; a true literal without any."""
    result: Expr = IntImm(1, BOOL)
    for cond in conds:
        result = binary("and", result, cond)
    return result


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """`cond ? a : b`, or only the chosen operand when `cond` is a literal."""
    if not isinstance(a, Expr):
        a = as_expr(a, b.dtype.element if isinstance(b, Expr) else INT64)
    b = as_expr(b, a.dtype.element)
    a, b = match_lanes(a, b)
    if isinstance(cond, IntImm):
        return a if cond.value else b
    return Select(cond, a, b)


def cast(a: Expr, dtype: DType | str) -> Expr:
    """`a` converted to the element type of `dtype`, with the lanes of `a`.

    Return `a` itself if it has that type already, and a literal for an integer literal.
    """
    dtype = DType.parse(dtype).with_lanes(a.dtype.lanes)
    if a.dtype == dtype:
        return a
    if isinstance(a, IntImm) and dtype.is_int:
        return _wrapped(a.value, dtype)
    if isinstance(a, IntImm) and dtype.is_float:
        return const(a.value, dtype)
    return Cast(a, dtype)


def intrin(name: str, *args: Expr) -> Expr:
    """A call of the intrinsic `name`.

    Raise ValueError for a wrong number of operands, KeyError if `name` is in no table.
    """
    arity = INTRINSIC_ROWS[name].arity
    if len(args) != arity:
        raise ValueError(f"{name} takes {arity} arguments, got {len(args)}")
    return Intrin(name, tuple(args))


__all__ = [
    "BINARY", "BITCASTS", "CALLED", "DEVICE_INSTRUCTIONS", "DOTS", "INTRINSICS",
    "INTRINSIC_ROWS", "REDUCE_BINARY",
    "TILE_DOTS", "UNARY",
    "Binary", "Broadcast", "Cast", "Expr", "ExprLike", "FloatImm", "IntImm", "Intrin",
    "Ramp", "Reduce", "Select", "Shuffle", "Unary", "Var", "VectorReduce",
    "as_expr", "binary", "cast", "const", "int_value", "intrin", "logical_and",
    "match_lanes", "maximum", "minimum", "reduce_identity", "select", "unary",
]  # fmt: skip
