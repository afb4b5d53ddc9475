"""Dot products: an instruction of the processor, or a sequence that is equally exact.

dot4:      c[l] + sum of a[4*l + k] * b[4*l + k] for k < 4        a in uint8, b in int8
dot4_small: the same                                              b at most 64 in magnitude
dot2:      c[l] + sum of a[2*l + k] * b[2*l + k] for k < 2        both in int16
dot2_bf16: the same                                               both in bfloat16, c in float32
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.codegen.llvm.expansions import splat
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import KernelWriter
from tensorkiln.ir.dtype import FLOAT32, INT32, DType
from tensorkiln.target.dots import (
    integer_dot,
    multiplies_pairs,
    saturates_byte_pairs,
    sums_word_pairs,
)

# Bits of a vector -> the intrinsics that sum two products of 16-bit numbers, and of bytes.
_PAIRS = {512: "x86.avx512.pmaddw.d.512", 256: "x86.avx2.pmadd.wd", 128: "x86.sse2.pmadd.wd"}
_BYTE_PAIRS = {
    512: "x86.avx512.pmaddubs.w.512",
    256: "x86.avx2.pmadd.ub.sw",
    128: "x86.ssse3.pmadd.ub.sw.128",
}
_PAIR, _FOUR = DType("int16", 2), DType("int8", 4)


def dot4(w: KernelWriter, c: str, a: str, b: str, lanes: int) -> str:
    """`lanes` sums of four products of bytes, added to `c`; `a` and `b` have as many bits."""
    bits = 32 * lanes
    if integer_dot(w.target, bits):
        return _machine(w, f"x86.avx512.vpdpbusd.{bits}", (INT32, _FOUR, _FOUR), [c, a, b], lanes)
    if sums_word_pairs(w.target, bits):
        return _dot_of_pairs(w, c, a, b, lanes)
    if w.target.arch == "aarch64" and bits == 128 and w.target.has("i8mm"):
        return _neon(w, "usdot", c, a, b, lanes)
    if w.target.arch == "aarch64" and bits == 128 and w.target.has("dotprod"):
        return _dot_of_signed(w, c, a, b, lanes)
    return _dot_of_words(w, c, a, b, lanes, 8)


def dot4_small(w: KernelWriter, c: str, a: str, b: str, lanes: int) -> str:
    """As `dot4`, of elements of `b` that are at most SMALL_WEIGHT in magnitude: the 16-bit sums of
    two products are exact."""
    bits = 32 * lanes
    if not saturates_byte_pairs(w.target, bits):
        return dot4(w, c, a, b, lanes)
    byte, pairs = (llvm_type(t.with_lanes(t.lanes * lanes)) for t in (_FOUR, _PAIR))
    name = _BYTE_PAIRS[bits]
    w.declares.add(f"declare {pairs} @llvm.{name}({byte}, {byte})")
    sums = w.line(f"call {pairs} @llvm.{name}({byte} {a}, {byte} {b})")
    return dot2(w, c, sums, splat("1", _PAIR.with_lanes(2 * lanes)), lanes)


def dot2(w: KernelWriter, c: str, a: str, b: str, lanes: int) -> str:
    """As `dot4`, of two products of 16-bit numbers."""
    bits = 32 * lanes
    if integer_dot(w.target, bits):
        types = (INT32, _PAIR, _PAIR)
        return _machine(w, f"x86.avx512.vpdpwssd.{bits}", types, [c, a, b], lanes)
    if sums_word_pairs(w.target, bits):
        products = _machine(w, _PAIRS[bits], (_PAIR, _PAIR), [a, b], lanes)
        return w.line(f"add {llvm_type(INT32.with_lanes(lanes))} {c}, {products}")
    return _dot_of_words(w, c, a, b, lanes, 16)


def dot2_bf16(w: KernelWriter, c: str, a: str, b: str, lanes: int) -> str:
    """`lanes` sums of two products of bfloat16, added to `c` in float32."""
    bits = 32 * lanes
    if not multiplies_pairs(w.target, "bfloat16", bits):
        return _dot_of_singles(w, c, a, b, lanes)
    x86 = f"x86.avx512bf16.dpbf16ps.{bits}"
    name = x86 if w.target.arch == "x86_64" else "aarch64.neon.bfdot.v4f32.v8bf16"
    t, pair = llvm_type(FLOAT32.with_lanes(lanes)), f"<{2 * lanes} x bfloat>"
    x, y = (w.line(f"bitcast <{2 * lanes} x i16> {v} to {pair}") for v in (a, b))
    w.declares.add(f"declare {t} @llvm.{name}({t}, {pair}, {pair})")
    return w.line(f"call {t} @llvm.{name}({t} {c}, {pair} {x}, {pair} {y})")


def _dot_of_singles(w: KernelWriter, c: str, a: str, b: str, lanes: int) -> str:
    """Both numbers of a lane as float32, each multiplied and added."""
    single, word = FLOAT32.with_lanes(lanes), INT32.with_lanes(lanes)
    t, few = llvm_type(word), llvm_type(DType("bfloat16", 2 * lanes))
    x, y = (w.line(f"bitcast {few} {v} to {t}") for v in (a, b))
    # The first number in memory is in the lowest bits; a float32's upper half is its bfloat16.
    for part in (f"shl {t} {{}}, {splat('16', word)}", f"and {t} {{}}, {splat('-65536', word)}"):
        bits = [w.line(part.format(v)) for v in (x, y)]
        lhs, rhs = (w.line(f"bitcast {t} {v} to {llvm_type(single)}") for v in bits)
        c = w.call("fmuladd", single, [lhs, rhs, c])
    return c


def _machine(
    w: KernelWriter, name: str, params: tuple[DType, ...], args: list[str], lanes: int
) -> str:
    """Call a target's intrinsic that returns int32; `params` are the types of its parameters
    per lane of the result."""
    types = [llvm_type(p.with_lanes(p.lanes * lanes)) for p in params]
    t = llvm_type(INT32.with_lanes(lanes))
    w.declares.add(f"declare {t} @llvm.{name}({', '.join(types)})")
    arguments = ", ".join(f"{p} {x}" for p, x in zip(types, args, strict=True))
    return w.line(f"call {t} @llvm.{name}({arguments})")


def _neon(w: KernelWriter, name: str, c: str, a: str, b: str, lanes: int) -> str:
    """Call Arm's intrinsic `name`, which adds sums of four products of bytes."""
    full = f"aarch64.neon.{name}.v{lanes}i32.v{4 * lanes}i8"
    return _machine(w, full, (INT32, _FOUR, _FOUR), [c, a, b], lanes)


def _dot_of_signed(w: KernelWriter, c: str, a: str, b: str, lanes: int) -> str:
    """By an instruction for two signed operands: the sum of (a - 128) b, plus 128 times the sum
    of b, which all products with the same `b` in a basic block share."""
    byte, word = _FOUR.with_lanes(4 * lanes), INT32.with_lanes(lanes)
    shifted = w.line(f"xor {llvm_type(byte)} {a}, {splat('-128', byte)}")
    half = _neon(w, "sdot", "zeroinitializer", splat("64", byte), b, lanes)
    missing = w.line(f"shl {llvm_type(word)} {half}, {splat('1', word)}")
    total = _neon(w, "sdot", c, shifted, b, lanes)
    return w.line(f"add {llvm_type(word)} {total}, {missing}")


def _dot_of_pairs(w: KernelWriter, c: str, a: str, b: str, lanes: int) -> str:
    """Even and odd bytes as 16-bit numbers, two of them in each lane, multiplied and summed.

    Not `pmaddubsw`, which saturates (see `dot4_small`). The widening of an operand is shared by all
    products of a basic block that it takes part in.
    """
    half = DType("int16", 2 * lanes)
    t, eight = llvm_type(half), splat("8", half)
    byte = llvm_type(DType("int8", 4 * lanes))
    x, y = (w.line(f"bitcast {byte} {v} to {t}") for v in (a, b))
    even = (
        w.line(f"and {t} {x}, {splat('255', half)}"),
        w.line(f"ashr {t} {w.line(f'shl {t} {y}, {eight}')}, {eight}"),
    )
    odd = w.line(f"lshr {t} {x}, {eight}"), w.line(f"ashr {t} {y}, {eight}")
    for lhs, rhs in (even, odd):
        c = dot2(w, c, lhs, rhs, lanes)
    return c


def _dot_of_words(w: KernelWriter, c: str, a: str, b: str, lanes: int, bits: int) -> str:
    """By widening each number of a lane with shifts, and multiplying in 32 bits."""
    word, count = INT32.with_lanes(lanes), 32 // bits
    t, few = llvm_type(word), llvm_type(DType(f"int{bits}", count * lanes))
    x, y = (w.line(f"bitcast {few} {v} to {t}") for v in (a, b))
    last = splat(str(32 - bits), word)
    widen = "lshr" if bits == 8 else "ashr"  # bytes of the left side are unsigned
    # The first number in memory is in the lowest bits: all targets are little-endian.
    for k in range(count):
        by = splat(str(32 - bits * (k + 1)), word)
        lhs = w.line(f"{widen} {t} {w.line(f'shl {t} {x}, {by}')}, {last}")
        rhs = w.line(f"ashr {t} {w.line(f'shl {t} {y}, {by}')}, {last}")
        c = w.line(f"add {t} {c}, {w.line(f'mul {t} {lhs}, {rhs}')}")
    return c


DOT: dict[str, Callable[[KernelWriter, str, str, str, int], str]] = {
    "dot4": dot4,
    "dot4_small": dot4_small,
    "dot2": dot2,
    "dot2_bf16": dot2_bf16,
}
