"""Tables shared by printer and parser: operator symbols, precedences, words of the script."""

from __future__ import annotations

CLASS = "Module"  # name of the class in the text of a module
# Precedence of Python's operators: a greater number binds tighter.
COMPARE, NOT, NEG = 4, 3, 11
# op -> (symbol, precedence); any other operator is written as a call, such as T.min(a, b)
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
# loop kind -> the function of T that makes such a loop
KIND_WORDS = {
    "serial": "serial",
    "parallel": "parallel",
    "vectorized": "vectorized",
    "unrolled": "unroll",
    "thread": "thread_binding",
}
# Names after `R.` that are not operators; an operator of such a name prints as R.op("name", ...).
_GRAPH_WORDS = (
    "Tensor Tuple Shape Prim String Str Callable Object const shape prim_value str tuple "
    "match_cast function dataflow call_tir call_tir_inplace call_packed call_dps_packed op output"
)
GRAPH_WORDS = frozenset(_GRAPH_WORDS.split())
# Constants of at most this many elements are printed by their values.
INLINE_ELEMENTS = 16
