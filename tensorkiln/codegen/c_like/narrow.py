"""float16 and bfloat16 as float32 and back, as programs of integers of 16 and 32 bits.

Each is a list of let-bindings and a result, on any number of lanes; bits are what the two types are
kept as.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.codegen.expand.math_builder import Lets
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, Unary, Var, binary, cast, const, intrin, select

Program = tuple[Var, Lets, Expr]


class _Bindings:
    """Names intermediate values."""

    def __init__(self, lanes: int):
        self.u16, self.u32, self.i32 = (DType(n, lanes) for n in ("uint16", "uint32", "int32"))
        self.f32, self.f64 = DType("float32", lanes), DType("float64", lanes)
        self.lets: Lets = []

    def let(self, name: str, e: Expr) -> Expr:
        var = Var(name, e.dtype)
        self.lets.append((var, e))
        return var

    def num(self, value: float) -> Expr:
        return const(value, self.f32)

    def bits(self, x: Expr) -> Expr:
        return cast(intrin("bitcast_i32", x), self.u32)

    def real(self, x: Expr) -> Expr:
        return intrin("bitcast_f32", cast(x, self.i32))

    def op(self, name: str, x: Expr, n: int) -> Expr:
        """A binary operation with a literal."""
        return binary(name, x, const(n, x.dtype))


def single_of_half(lanes: int) -> Program:
    """float16 -> float32, exact also where subnormal numbers of float32 are 0: exponents are moved
    by an addition, and subnormal numbers of float16 are multiples of 2**-24."""
    b = _Bindings(lanes)
    x = Var("x", b.u16)
    wide = b.let("wide", cast(x, b.u32))
    size = b.let("size", b.op("bitand", wide, 0x7FFF))
    sign = b.let("sign", b.op("shl", b.op("bitand", wide, 0x8000), 16))
    moved = b.let("moved", b.op("add", b.op("shl", size, 13), 112 << 23))
    small = b.let("small", b.bits(cast(cast(size, b.i32), b.f32) * b.num(2.0**-24)))
    bits = b.let("bits", select(b.op("lt", size, 0x400), small, moved))
    special = b.op("ge", size, 0x7C00)  # infinite, or no number
    full = b.let("full", select(special, b.op("bitor", bits, 0x7F800000), bits))
    return x, b.lets, b.real(binary("bitor", full, sign))


def half_of_single(lanes: int) -> Program:
    """float32 -> float16, ties to even; overflow to infinity, NaN stays NaN."""
    b = _Bindings(lanes)
    x = Var("x", b.f32)
    bits = b.let("bits", b.bits(x))
    size = b.let("size", b.op("bitand", bits, 0x7FFFFFFF))
    sign = b.let("sign", b.op("bitand", b.op("shr", bits, 16), 0x8000))
    # Subnormal results: adding 1/2 leaves the wanted bits at the low end.
    sunk = b.let("sunk", b.bits(b.real(size) + b.num(0.5)))
    small = b.let("small", b.op("sub", sunk, 0x3F000000))
    odd = b.let("odd", b.op("bitand", b.op("shr", size, 13), 1))
    near = b.let("near", b.op("sub", size, (112 << 23) - 0xFFF) + odd)
    finite = select(b.op("lt", size, 0x38800000), small, b.op("shr", near, 13))
    nan = b.op("gt", size, 0x7F800000)
    top = select(nan, const(0x7E00, b.u32), const(0x7C00, b.u32))
    out = b.let("out", select(b.op("ge", size, 0x47800000), top, b.let("finite", finite)))
    return x, b.lets, cast(binary("bitor", out, sign), b.u16)


def single_of_bfloat(lanes: int) -> Program:
    """bfloat16 -> float32: the upper half of its bits."""
    b = _Bindings(lanes)
    x = Var("x", b.u16)
    return x, b.lets, b.real(b.op("shl", cast(x, b.u32), 16))


def bfloat_of_single(lanes: int) -> Program:
    """float32 -> bfloat16, ties to even; NaN stays NaN."""
    b = _Bindings(lanes)
    x = Var("x", b.f32)
    bits = b.let("bits", b.bits(x))
    odd = b.let("odd", b.op("bitand", b.op("shr", bits, 16), 1))
    near = b.let("near", b.op("add", bits, 0x7FFF) + odd)
    rounded_bits = b.let("kept", select(intrin("isnan", x), b.op("bitor", bits, 0x400000), near))
    return x, b.lets, cast(b.op("shr", rounded_bits, 16), b.u16)


def odd_of_double(lanes: int) -> Program:
    """float64 -> float32 rounded to odd: rounding again to fewer bits is then correct."""
    b = _Bindings(lanes)
    x = Var("x", b.f64)
    near = b.let("near", cast(x, b.f32))
    back = b.let("back", cast(near, b.f64))
    bits = b.let("bits", b.bits(near))
    even = binary("eq", b.op("bitand", bits, 1), const(0, b.u32))
    # Not equal, and neither of them NaN.
    inexact = binary("or", binary("lt", back, x), binary("lt", x, back))
    below = binary("lt", Unary("abs", back), Unary("abs", x))
    step = b.let("step", select(below, const(1, b.u32), const((1 << 32) - 1, b.u32)))
    move = binary("and", inexact, even)
    return x, b.lets, b.real(select(move, bits + step, bits))


def _odd_of_integer(dtype: str) -> Callable[[int], Program]:
    def program(lanes: int) -> Program:
        """Integer -> float32 rounded to odd: eight bits fewer of those that it cannot hold."""
        b = _Bindings(lanes)
        x = Var("x", DType(dtype, lanes))
        threshold = const(1 << 24, x.dtype)
        holds = x < threshold
        if dtype == "int32":
            holds = binary("and", holds, const(-(1 << 24), x.dtype) < x)
        has_low_bits = binary("ne", b.op("bitand", x, 255), const(0, x.dtype))
        sticky = select(has_low_bits, const(256, x.dtype), const(0, x.dtype))
        upper = b.let("upper", x - b.op("bitand", x, 255))
        near = b.let("near", select(holds, x, binary("bitor", upper, sticky)))
        return x, b.lets, cast(near, b.f32)

    return program


# (from, to) -> its program; `odd` is a float32 that was rounded to odd.
NARROW = {
    ("float16", "float32"): single_of_half,
    ("float32", "float16"): half_of_single,
    ("bfloat16", "float32"): single_of_bfloat,
    ("float32", "bfloat16"): bfloat_of_single,
    ("float64", "odd"): odd_of_double,
    ("int32", "odd"): _odd_of_integer("int32"),
    ("uint32", "odd"): _odd_of_integer("uint32"),
}
