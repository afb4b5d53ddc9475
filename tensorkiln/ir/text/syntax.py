"""What printer and parser must agree on: operator spellings, levels, defaults."""

from __future__ import annotations

CLASS = "Module"  # what the class of a printed module is called
# Python's binding strength, loosest first.
COMPARE, NOT, NEG, ATOM = 4, 3, 11, 12
# op -> (symbol, level); an operator that is not here is written T.op(a, b)
INFIX: dict[str, tuple[str, int]] = {
    "or": ("or", 1),
    "and": ("and", 2),
    "lt": ("<", COMPARE),
    "le": ("<=", COMPARE),
    "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
    "eq": ("==", COMPARE),
    "ne": ("!=", COMPARE),
    "bitor": ("|", 5),
    "bitxor": ("^", 6),
    "bitand": ("&", 7),
    "shl": ("<<", 8),
    "shr": (">>", 8),
    "add": ("+", 9),
    "sub": ("-", 9),
    "mul": ("*", 10),
    "div": ("/", 10),
    "floordiv": ("//", 10),
    "floormod": ("%", 10),
}
# loop kind -> its word in the script
KIND_WORDS = {
    "serial": "serial",
    "parallel": "parallel",
    "vectorized": "vectorized",
    "unrolled": "unroll",
    "thread": "thread_binding",
}
# Words after `R.` that are not operators; an operator of such a name is written R.op("name", ...).
GRAPH_WORDS = frozenset(
    {
        "Tensor",
        "Tuple",
        "Shape",
        "Prim",
        "String",
        "Str",
        "Callable",
        "Object",
        "const",
        "shape",
        "prim_value",
        "str",
        "tuple",
        "match_cast",
        "function",
        "dataflow",
        "call_tir",
        "call_tir_inplace",
        "call_packed",
        "call_dps_packed",
        "op",
        "output",
    }
)
# Constants of at most this many elements are printed in place.
INLINE_ELEMENTS = 16
