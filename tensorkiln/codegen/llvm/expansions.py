"""Operations that some processors lack and LLVM would turn into calls of a support library, which
kernels must not need: rounding before SSE4.1, float16 before F16C, bfloat16 everywhere.

Every function writes straight-line LLVM IR through `line` (text of one instruction -> its name).
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.codegen.llvm.types import float_literal, llvm_type
from tensorkiln.ir.dtype import BOOL, DType

Line = Callable[[str], str]
# (name of an llvm intrinsic, its type, operands) -> result; also declares it.
CallIntrinsic = Callable[[str, DType, list[str]], str]


def splat(value: str, dtype: DType) -> str:
    """A literal in every lane."""
    if dtype.lanes == 1:
        return value
    element = llvm_type(dtype.element)
    return "<" + ", ".join([f"{element} {value}"] * dtype.lanes) + ">"


class Expander:
    """Expansions for values of a given number of lanes."""

    def __init__(self, line: Line, call: CallIntrinsic, lanes: int):
        self.line, self.call, self.lanes = line, call, lanes
        self.i16, self.i32, self.i64 = (DType(f"int{n}", lanes) for n in (16, 32, 64))
        self.f32, self.f64 = DType("float32", lanes), DType("float64", lanes)
        self.flag = llvm_type(BOOL.with_lanes(lanes))

    # -- small pieces ------------------------------------------------------------------------------

    def num(self, value: float, dtype: DType) -> str:
        """A float literal in every lane."""
        return splat(float_literal(value, dtype), dtype)

    def int_op(self, op: str, x: str, n: int, dtype: DType | None = None) -> str:
        """x op n."""
        dtype = dtype or self.i32
        return self.line(f"{op} {llvm_type(dtype)} {x}, {splat(str(n), dtype)}")

    def compare(self, code: str, x: str, n: int) -> str:
        """An integer comparison with a literal."""
        return self.int_op(f"icmp {code}", x, n)

    def select(self, cond: str, x: str, y: str, dtype: DType) -> str:
        """cond ? x : y."""
        t = llvm_type(dtype)
        return self.line(f"select {self.flag} {cond}, {t} {x}, {t} {y}")

    def cast(self, op: str, x: str, src: DType, dst: DType) -> str:
        """One cast instruction."""
        return self.line(f"{op} {llvm_type(src)} {x} to {llvm_type(dst)}")

    # -- rounding to whole numbers -----------------------------------------------------------------

    def round(self, op: str, x: str, dtype: DType) -> str:
        """floor, ceil, trunc or roundeven, keeping the sign of zero, NaN and infinity.

        Adding and subtracting 2**23 (2**52 for float64) rounds smaller numbers to integers; larger
        ones are integers already.
        """
        t = llvm_type(dtype)
        magic = self.num(2.0**dtype.row.mantissa, dtype)
        unit, zero = self.num(1.0, dtype), self.num(0.0, dtype)
        size = self.call("fabs", dtype, [x])
        small = self.line(f"fcmp olt {t} {size}, {magic}")
        near = self.line(f"fsub {t} {self.line(f'fadd {t} {size}, {magic}')}, {magic}")
        if op == "trunc":
            near = self._step(f"fcmp ogt {t} {near}, {size}", "fsub", near, unit, zero, dtype)
        near = self.call("copysign", dtype, [near, x])
        if op == "floor":
            near = self._step(f"fcmp ogt {t} {near}, {x}", "fsub", near, unit, zero, dtype)
        if op == "ceil":
            near = self._step(f"fcmp olt {t} {near}, {x}", "fadd", near, unit, zero, dtype)
            near = self.call("copysign", dtype, [near, x])
        return self.select(small, near, x, dtype)

    def _step(self, test: str, op: str, x: str, unit: str, zero: str, dtype: DType) -> str:
        by = self.select(self.line(test), unit, zero, dtype)
        return self.line(f"{op} {llvm_type(dtype)} {x}, {by}")

    # -- float64 to narrower floats ----------------------------------------------------------------

    def to_odd(self, x: str) -> str:
        """float64 -> float32 rounded to odd: rounding again to fewer bits is then correct."""
        t32, t64, ti = llvm_type(self.f32), llvm_type(self.f64), llvm_type(self.i32)
        near = self.cast("fptrunc", x, self.f64, self.f32)
        back = self.cast("fpext", near, self.f32, self.f64)
        inexact = self.line(f"fcmp one {t64} {back}, {x}")
        bits = self.cast("bitcast", near, self.f32, self.i32)
        even = self.compare("eq", self.int_op("and", bits, 1), 0)
        size, back_size = self.call("fabs", self.f64, [x]), self.call("fabs", self.f64, [back])
        below = self.line(f"fcmp olt {t64} {back_size}, {size}")
        step = self.select(below, splat("1", self.i32), splat("-1", self.i32), self.i32)
        moved = self.line(f"add {ti} {bits}, {step}")
        move = self.line(f"and {self.flag} {inexact}, {even}")
        return self.line(f"bitcast {ti} {self.select(move, moved, bits, self.i32)} to {t32}")

    # -- bfloat16 ----------------------------------------------------------------------------------

    def from_bfloat(self, x: str) -> str:
        """bfloat16 -> float32: the upper half of its bits."""
        wide = self.cast("zext", x, self.i16, self.i32)
        return self.cast("bitcast", self.int_op("shl", wide, 16), self.i32, self.f32)

    def to_bfloat(self, x: str) -> str:
        """float32 -> bfloat16, ties to even; NaN stays NaN."""
        t = llvm_type(self.i32)
        bits = self.cast("bitcast", x, self.f32, self.i32)
        nan = self.line(f"fcmp uno {llvm_type(self.f32)} {x}, {x}")
        odd = self.int_op("and", self.int_op("lshr", bits, 16), 1)
        near = self.line(f"add {t} {self.int_op('add', bits, 0x7FFF)}, {odd}")
        rounded_bits = self.select(nan, self.int_op("or", bits, 0x400000), near, self.i32)
        return self.cast("trunc", self.int_op("lshr", rounded_bits, 16), self.i32, self.i16)

    # -- float16 without F16C ----------------------------------------------------------------------

    def from_half(self, x: str) -> str:
        """float16 -> float32, exact also where subnormal numbers of float32 are 0: exponents are
        moved by an addition, and subnormal numbers of float16 are multiples of 2**-24."""
        ti, tf = llvm_type(self.i32), llvm_type(self.f32)
        bits = self.cast("bitcast", x, DType("float16", self.lanes), self.i16)
        wide = self.cast("zext", bits, self.i16, self.i32)
        size = self.int_op("and", wide, 0x7FFF)
        sign = self.int_op("shl", self.int_op("and", wide, 0x8000), 16)
        moved = self.int_op("add", self.int_op("shl", size, 13), 112 << 23)
        whole = self.cast("sitofp", size, self.i32, self.f32)
        scaled = self.line(f"fmul {tf} {whole}, {self.num(2.0**-24, self.f32)}")
        small = self.cast("bitcast", scaled, self.f32, self.i32)
        vbits = self.select(self.compare("ult", size, 0x400), small, moved, self.i32)
        special = self.compare("uge", size, 0x7C00)
        full = self.select(special, self.int_op("or", vbits, 0x7F800000), vbits, self.i32)
        return self.cast("bitcast", self.line(f"or {ti} {full}, {sign}"), self.i32, self.f32)

    def to_half(self, x: str) -> str:
        """float32 -> float16, ties to even; overflow to infinity, NaN stays NaN."""
        ti, tf = llvm_type(self.i32), llvm_type(self.f32)
        all_bits = self.cast("bitcast", x, self.f32, self.i32)
        u = self.int_op("and", all_bits, 0x7FFFFFFF)
        sign = self.int_op("and", self.int_op("lshr", all_bits, 16), 0x8000)
        # Subnormal results: adding 1/2 leaves the wanted bits at the low end.
        size = self.cast("bitcast", u, self.i32, self.f32)
        sunk = self.line(f"fadd {tf} {size}, {self.num(0.5, self.f32)}")
        small = self.int_op("sub", self.cast("bitcast", sunk, self.f32, self.i32), 0x3F000000)
        odd = self.int_op("and", self.int_op("lshr", u, 13), 1)
        moved = self.line(f"add {ti} {self.int_op('sub', u, (112 << 23) - 0xFFF)}, {odd}")
        normal = self.int_op("lshr", moved, 13)
        nan = self.compare("ugt", u, 0x7F800000)
        top = self.select(nan, splat("32256", self.i32), splat("31744", self.i32), self.i32)
        finite = self.select(self.compare("ult", u, 0x38800000), small, normal, self.i32)
        out = self.select(self.compare("uge", u, 0x47800000), top, finite, self.i32)
        narrow = self.cast("trunc", self.line(f"or {ti} {out}, {sign}"), self.i32, self.i16)
        return self.cast("bitcast", narrow, self.i16, DType("float16", self.lanes))
