"""Processor-specific parts of C text: attributes for the features that functions use, and
instructions that C has no operator for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tensorkiln.codegen.c_like.types import define
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.operators import DOTS
from tensorkiln.target import Target
from tensorkiln.target.dots import (
    integer_dot,
    multiplies_pairs,
    saturates_byte_pairs,
    sums_word_pairs,
)

if TYPE_CHECKING:
    from tensorkiln.codegen.c_like.writer import TextWriter

# Features of x86-64 that change the code of loops, in the spelling of compilers.
_X86 = [
    "sse3",
    "ssse3",
    "sse4.1",
    "sse4.2",
    "popcnt",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "bmi",
    "bmi2",
    "lzcnt",
    "avx512f",
    "avx512cd",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vnni",
    "avxvnni",
]
_ARM = ("dotprod", "i8mm")
# Those of bfloat16 are named only where an instruction of them stands: older compilers lack them.


def features_c(target: Target, body: str) -> tuple[list[str], list[str]]:
    """(text before the functions of a file, text after them): the processor features that functions
    may use beyond those of the command line, and that a * b + c may be contracted. GCC notes that
    the calling convention of vectors wider than the processor's depends on features, which does not
    matter, because no function is called with such a vector from elsewhere."""
    names: tuple[str, ...] = ()
    if target.arch == "x86_64":
        candidates = [*_X86, *(["avx512bf16"] if "_dpbf16_" in body else [])]
        names = tuple(f for f in candidates if f in target.features)
    elif target.arch == "aarch64":
        candidates = [*_ARM, *(["bf16"] if "vbfdot" in body else [])]
        names = tuple(f"+{f}" for f in candidates if f in target.features)
    listed = ",".join(names)
    floats = re.search(r"\b(float|double)\b", body) is not None
    clang: list[str] = []
    gcc: list[str] = []
    if names:
        attribute = f'__attribute__((target("{listed}")))'
        clang.append(f"#pragma clang attribute push({attribute}, apply_to = function)")
        gcc.append(f'#pragma GCC target("{"".join(names) if names[0][0] == "+" else listed}")')
    if floats:
        clang.append("#pragma STDC FP_CONTRACT ON")
        gcc.append('#pragma GCC optimize("fp-contract=fast")')
    if "vector_size" in body:
        gcc.append('#pragma GCC diagnostic ignored "-Wpsabi"')
        clang.append('#pragma clang diagnostic ignored "-Wpsabi"')
    # Also where a command hides what it compiles, since a library may be asked to export kernels.
    begin = ["#if defined(__GNUC__)", "#pragma GCC visibility push(default)", "#endif"]
    end = ["#if defined(__GNUC__)", "#pragma GCC visibility pop", "#endif"]
    if clang or gcc:
        begin += ["#if defined(__clang__)", *clang, "#elif defined(__GNUC__)", *gcc, "#endif"]
    if names:
        end += ["#if defined(__clang__)", "#pragma clang attribute pop", "#endif"]
    return ["\n".join([*begin, ""])], ["\n".join(end)]


_PREFIX = {512: "_mm512", 256: "_mm256", 128: "_mm"}


def machine_dot(w: TextWriter, function_name: str, name: str, lanes: int) -> str | None:
    """The function for a dot product by an instruction of the processor; None where there is none.
    They are those of the LLVM kernels (codegen/llvm/dot.py)."""
    bits, target = 32 * lanes, w.target
    if name == "dot2_bf16":
        return (
            _pairs(w, function_name, lanes) if multiplies_pairs(target, "bfloat16", bits) else None
        )
    if target.arch == "x86_64" and bits in _PREFIX:
        if choice := integer_dot(target, bits):
            vex = "_avx" if choice == "avxvnni" else ""
            verb = "dpwssd" if name == "dot2" else "dpbusd"
            return _x86(
                w,
                function_name,
                name,
                lanes,
                f"{_PREFIX[bits]}_{verb}{vex}_epi32(V(c), V(a), V(b))",
            )
        if sums_word_pairs(target, bits):
            return _x86_pairs(w, function_name, name, lanes)
    if target.arch == "aarch64" and bits == 128 and name != "dot2":
        return _neon(w, function_name, lanes)
    return None


def _x86(w: TextWriter, function_name: str, name: str, lanes: int, value: str) -> str:
    """A function of vectors of this text in terms of <immintrin.h>, whose type V(x) is."""
    w.file.headers.add("immintrin.h")
    t = w.type(DType("int32", lanes))
    machine = f"__m{32 * lanes}i"
    value = re.sub(r"V\((\w+)\)", rf"({machine})\1", value)
    return define(w, t, function_name, _given(w, name, lanes), [], f"({t}){value}")


def _pairs(w: TextWriter, function_name: str, lanes: int) -> str:
    bits, t = 32 * lanes, w.type(FLOAT32.with_lanes(lanes))
    if w.target.arch == "aarch64":
        w.file.headers.add("arm_neon.h")
        x, y = (f"vreinterpretq_bf16_u16((uint16x8_t){v})" for v in "ab")
        value = f"({t})vbfdotq_f32((float32x4_t)c, {x}, {y})"
    else:
        w.file.headers.add("immintrin.h")
        m = f"__m{bits}"
        x, y = (f"({m}bh){v}" for v in "ab")
        value = f"({t}){_PREFIX[bits]}_dpbf16_ps(({m})c, {x}, {y})"
    return define(w, t, function_name, _given(w, "dot2_bf16", lanes), [], value)


def _given(w: TextWriter, name: str, lanes: int) -> list[tuple[str, str]]:
    types = (w.type(DType(dtype, count * lanes)) for dtype, count in DOTS[name])
    return list(zip(types, "cab", strict=True))


def _x86_pairs(w: TextWriter, function_name: str, name: str, lanes: int) -> str:
    """Two products of 16-bit numbers are one instruction. Bytes become such numbers first, even and
    odd ones; the instruction for pairs of bytes would saturate."""
    bits = 32 * lanes
    p, t = _PREFIX[bits], w.type(DType("int32", lanes))
    if name == "dot2":
        value = f"(({t}){p}_madd_epi16(V(a), V(b)) + c)"
        return _x86(w, function_name, name, lanes, value)
    if name == "dot4_small" and saturates_byte_pairs(w.target, bits):
        pairs = f"{p}_maddubs_epi16(V(a), V(b))"
        value = f"(({t}){p}_madd_epi16({pairs}, {p}_set1_epi16(1)) + c)"
        return _x86(w, function_name, name, lanes, value)
    w.file.headers.add("immintrin.h")
    m, whole = f"__m{bits}i", f"si{bits}"
    lines = [
        f"const {m} x = ({m})a, y = ({m})b;",
        f"const {m} even = {p}_madd_epi16({p}_and_{whole}(x, {p}_set1_epi16(255)),",
        f"    {p}_srai_epi16({p}_slli_epi16(y, 8), 8));",
        f"const {m} odd = {p}_madd_epi16({p}_srli_epi16(x, 8), {p}_srai_epi16(y, 8));",
    ]
    value = f"({t}){p}_add_epi32({p}_add_epi32(({m})c, even), odd)"
    return define(w, t, function_name, _given(w, name, lanes), lines, value)


def _neon(w: TextWriter, function_name: str, lanes: int) -> str | None:
    t, params = w.type(DType("int32", lanes)), _given(w, "dot4", lanes)
    if w.target.has("i8mm"):
        w.file.headers.add("arm_neon.h")
        value = f"({t})vusdotq_s32((int32x4_t)c, (uint8x16_t)a, (int8x16_t)b)"
        return define(w, t, function_name, params, [], value)
    if not w.target.has("dotprod"):
        return None
    w.file.headers.add("arm_neon.h")
    lines = [
        "const int8x16_t less = (int8x16_t)veorq_u8((uint8x16_t)a, vdupq_n_u8(128));",
        "const int32x4_t half = vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(64), (int8x16_t)b);",
        "const int32x4_t total = vdotq_s32((int32x4_t)c, less, (int8x16_t)b);",
    ]
    return define(
        w, t, function_name, params, lines, f"({t})vaddq_s32(total, vshlq_n_s32(half, 1))"
    )
