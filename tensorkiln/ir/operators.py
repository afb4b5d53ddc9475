"""What scalar and vector expressions are made of: tables of operators and intrinsics."""

from __future__ import annotations

# op -> (python spelling or None, result is bool)
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
ON_BITS = ("bitand", "bitor", "bitxor", "shl", "shr")  # not of floats
UNARY = ("neg", "not", "abs", "sqrt", "floor", "ceil", "round", "trunc")
# Elementary functions and machine operations; arity. Expanded by the code generator's own
# polynomials (`exp`, `erf`, ...) or mapped to an LLVM intrinsic (`fma`, `rint`).
# `dot4(c, a, b)` adds to each lane of c the products of its four elements of a and of b.
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
    "pow": 2,
    "fmod": 2,
    "isnan": 1,
    "dot4": 3,
    "dot2": 3,
    "bitcast_i32": 1,
    "bitcast_f32": 1,
    "bitcast_i64": 1,
    "bitcast_f64": 1,
}  # What their operands are, and how many of each a lane has.
DOTS: dict[str, tuple[tuple[str, int], ...]] = {
    "dot4": (("int32", 1), ("uint8", 4), ("int8", 4)),
    "dot2": (("int32", 1), ("int16", 2), ("int16", 2)),
}
# Same bits, another type: (operand, result).
BITCASTS: dict[str, tuple[str, str]] = {
    "bitcast_i32": ("float32", "int32"),
    "bitcast_f32": ("int32", "float32"),
    "bitcast_i64": ("float64", "int64"),
    "bitcast_f64": ("int64", "float64"),
}
