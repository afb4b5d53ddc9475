"""Tables of the operators and intrinsics of scalar and vector expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorkiln.base.text import listed
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.hints import agree

# What is wrong with a node, and a hint how to correct it.
Fault = tuple[str, str]

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


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """An elementary function or machine operation on operands of one type, lane by lane.

    `operand` is the only type that it takes, `result` the type that it gives; empty: any, and that
    of the operands.
    """

    arity: int = 1
    operand: str = ""
    result: str = ""

    def dtype(self, args: Sequence[Any]) -> DType:
        """The type of its value, for these expressions."""
        dtype: DType = args[0].dtype
        return DType(self.result, dtype.lanes) if self.result else dtype

    def fault(self, name: str, types: Sequence[DType]) -> Fault | None:
        """What is wrong with operands of these types; None if nothing is."""
        first, mismatch = types[0], next((t for t in types if t != types[0]), None)
        if mismatch is not None:
            return f"{name} of {', '.join(map(str, types))}", agree(first, mismatch)
        if self.operand not in ("", first.name):
            fits = listed(n for n, (operand, _) in BITCASTS.items() if operand == first.name)
            hint = f"{name} takes {self.operand}, {first} takes {fits or 'a Cast'}"
            return f"{name} of {first}", hint
        return None


@dataclass(frozen=True, slots=True)
class Dot:
    """An intrinsic that adds sums of products to its first operand. `operands`: for each the type,
    and how many elements there are per lane of the result."""

    operands: tuple[tuple[str, int], ...]

    @property
    def arity(self) -> int:
        return len(self.operands)

    def dtype(self, args: Sequence[Any]) -> DType:
        """The type of its value, for these expressions."""
        dtype: DType = args[0].dtype
        return dtype

    def fault(self, name: str, types: Sequence[DType]) -> Fault | None:
        """What is wrong with operands of these types; None if nothing is."""
        operand_types = [DType(t, types[0].lanes * count) for t, count in self.operands]
        if list(types) == operand_types:
            return None
        hint = f"{name} takes {', '.join(map(str, operand_types))}"
        return f"{name} of {', '.join(map(str, types))}", hint


# `dot4(c, a, b)` adds to lane i of c the sum of a[4 * i + k] * b[4 * i + k] for k in 0..3; `dot2`
# and `dot2_bf16` do so for two elements per lane. `dot4_small` is `dot4` of elements of b that are
# at most 64 in magnitude; of others its sums may be wrong. `dot2_bf16` multiplies exactly and sums
# in float32; in which order, with how many roundings, and whether denormals count, is the
# processor's.
DOTS: dict[str, tuple[tuple[str, int], ...]] = {
    "dot4": (("int32", 1), ("uint8", 4), ("int8", 4)),
    "dot4_small": (("int32", 1), ("uint8", 4), ("int8", 4)),
    "dot2": (("int32", 1), ("int16", 2), ("int16", 2)),
    "dot2_bf16": (("float32", 1), ("bfloat16", 2), ("bfloat16", 2)),
}
# intrinsic on whole tiles (`ir/tiles.py`) -> the dot product that it adds to each sum: to c[m, n],
# for every row k of b, those of a[m, count * k + j] * b[k, count * n + j]. Of bfloat16, the first
# factors of each pair are summed, then the second ones, both by fused multiply-adds in the order of
# k, then c plus the two sums; denormals count as 0.
TILE_DOTS: dict[str, str] = {"tile_dot4": "dot4", "tile_dot2_bf16": "dot2_bf16"}
# The code generator expands elementary functions to polynomials (`exp`, `erf`, ...) or to an LLVM
# intrinsic (`fma`). The `bitcast` ones reinterpret the bits as another type.
# `exp_nonpositive` is `exp` of what is at most 0, or NaN, with fewer operations: softmax's.
_EXPONENTIAL = ("exp", "exp_nonpositive", "log", "erf", "tanh", "sigmoid", "gelu")
_CIRCULAR = ("sin", "cos", "tan", "asin", "acos", "atan")
_HYPERBOLIC = ("sinh", "cosh", "asinh", "acosh", "atanh")
INTRINSICS: Mapping[str, Intrinsic | Dot] = {
    "fma": Intrinsic(3),
    **dict.fromkeys((*_EXPONENTIAL, *_CIRCULAR, *_HYPERBOLIC), Intrinsic()),
    "pow": Intrinsic(2),
    "fmod": Intrinsic(2),
    "isnan": Intrinsic(result="bool"),
    **{name: Dot(operands) for name, operands in DOTS.items()},
    **{name: Dot(DOTS[dot]) for name, dot in TILE_DOTS.items()},
    "bitcast_i32": Intrinsic(operand="float32", result="int32"),
    "bitcast_f32": Intrinsic(operand="int32", result="float32"),
    "bitcast_i64": Intrinsic(operand="float64", result="int64"),
    "bitcast_f64": Intrinsic(operand="int64", result="float64"),
}
BITCASTS: Mapping[str, tuple[str, str]] = {
    name: (row.operand, row.result)
    for name, row in INTRINSICS.items()
    if isinstance(row, Intrinsic) and row.operand
}
