"""Tables of the operators and intrinsics of scalar and vector expressions."""

from __future__ import annotations

# op -> (Python spelling or None, result is bool)
BINARY: dict[str, tuple[str | None, bool]] = {
    "add": ("+", False),
    "sub": ("-", False),
    "mul": ("*", False),
    "div": ("/", False),
    "floordiv": ("//", False),
    "floormod": ("%", False),
    "min": (None, False),
    "max": (None, False),
    "bitand": ("&", False),
    "bitor": ("|", False),
    "bitxor": ("^", False),
    "shl": ("<<", False),
    "shr": (">>", False),
    "lt": ("<", True),
    "le": ("<=", True),
    "gt": (">", True),
    "ge": (">=", True),
    "eq": ("==", True),
    "ne": ("!=", True),
    "and": (None, True),
    "or": (None, True),
}
ON_BITS = ("bitand", "bitor", "bitxor", "shl", "shr")  # not defined for floats
UNARY = ("neg", "not", "abs", "sqrt", "floor", "ceil", "round", "trunc")
# name -> number of operands, for elementary functions and machine operations. The code generator
# expands them to polynomials (`exp`, `erf`, ...) or to an LLVM intrinsic (`fma`).
# `dot4(c, a, b)` adds to lane i of c the sum of a[4 * i + k] * b[4 * i + k] for k in 0..3; `dot2`
# and `dot2_bf16` do so for two elements per lane. `dot2_bf16` multiplies exactly and sums in
# float32; in which order, with how many roundings, and whether denormals count, is the processor's.
INTRINSICS: dict[str, int] = {
    "fma": 3,
    "exp": 1,
    "log": 1,
    "erf": 1,
    "tanh": 1,
    "sigmoid": 1,
    "gelu": 1,
    "sin": 1,
    "cos": 1,
    "tan": 1,
    "asin": 1,
    "acos": 1,
    "atan": 1,
    "sinh": 1,
    "cosh": 1,
    "asinh": 1,
    "acosh": 1,
    "atanh": 1,
    "pow": 2,
    "fmod": 2,
    "isnan": 1,
    "dot4": 3,
    "dot2": 3,
    "dot2_bf16": 3,
    "tile_dot4": 3,
    "tile_dot2_bf16": 3,
    "bitcast_i32": 1,
    "bitcast_f32": 1,
    "bitcast_i64": 1,
    "bitcast_f64": 1,
}
# intrinsic -> (dtype, elements per lane of the result) of each operand.
DOTS: dict[str, tuple[tuple[str, int], ...]] = {
    "dot4": (("int32", 1), ("uint8", 4), ("int8", 4)),
    "dot2": (("int32", 1), ("int16", 2), ("int16", 2)),
    "dot2_bf16": (("float32", 1), ("bfloat16", 2), ("bfloat16", 2)),
}
# intrinsic on whole tiles (`ir/tiles.py`) -> the dot product that it adds to each sum: to c[m, n],
# for every row k of b, those of a[m, count * k + j] * b[k, count * n + j]. Of bfloat16, the first
# factors of each pair are summed, then the second ones, both by fused multiply-adds in the order of
# k, then c plus the two sums; denormals count as 0.
TILE_DOTS: dict[str, str] = {"tile_dot4": "dot4", "tile_dot2_bf16": "dot2_bf16"}
# Reinterpret the bits as another type: name -> (operand's dtype, result's dtype).
BITCASTS: dict[str, tuple[str, str]] = {
    "bitcast_i32": ("float32", "int32"),
    "bitcast_f32": ("int32", "float32"),
    "bitcast_i64": ("float64", "int64"),
    "bitcast_f64": ("int64", "float64"),
}
