"""Sizes as text: C for host code, with overflow checks, and expressions for people.

Sizes are numbers, symbols written `"s_<name>"`, or formulas over symbols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import prove
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.base.schema import Dim
from tensorkiln.codegen.c_text.literals import integer_literal
from tensorkiln.ir.conditions import SizeCondition
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Select, Unary, Var, binary, int_value
from tensorkiln.ir.text.names import VariableNames
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.visit import free_vars


@dataclass(frozen=True, slots=True)
class Formula:
    """Arithmetic over symbols: as people read it, and as C whose operations note in a local
    variable `large` what does not fit into 64 bits (crt/sizes.h). `size_of` makes both.

    `s_n * 4` and `kiln_mul(s_n, 4, &large)`
    """

    text: str
    checked: str = field(compare=False)

    def __str__(self) -> str:
        """As people read it."""
        return self.text


Size = int | str | Formula
_SYMBOL = re.compile(r"\bs_(\w+)")
_PLAIN_NAME = re.compile(r"[\w.:/]+\Z")
_C_OPS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "/",
    "floormod": "%",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&&",
    "or": "||",
}
_CHECKED = {"add": "kiln_add", "sub": "kiln_sub", "mul": "kiln_mul"}


def symbols_in(size: Size) -> tuple[str, ...]:
    """Names of the symbols in an expression, without their `s_`."""
    return () if isinstance(size, int) else tuple(_SYMBOL.findall(str(size)))


def spelled(name: str) -> str:
    """A dimension's name as part of an expression: quoted if it could be read as an expression
    itself, such as `'a + b'`."""
    return name if _PLAIN_NAME.match(name) else f"'{name}'"


def shown_size(size: Size, symbols: Mapping[str, str]) -> Dim:
    """A size for people: `s_n` becomes the model's name for symbol `n`."""
    if isinstance(size, int):
        return size
    if isinstance(size, str) and size.startswith("s_") and size[2:] in symbols:
        return symbols[size[2:]]
    text = str(size).replace("kiln_floor", "floor")
    return _SYMBOL.sub(lambda m: spelled(symbols.get(m[1], m[1])), text)


def size_of(e: Expr, names: Mapping[Var, str]) -> Size:
    """A size, or a condition over sizes, in which every dimension is at least 0.

    Raises UnsupportedError for operators that sizes do not have.
    """
    n = int_value(e)
    if n is not None:
        return n
    if isinstance(e, Var):
        return f"s_{names[e]}"
    text, checked = _texts(e, names)
    return Formula(_without_parentheses(text), checked)


def _texts(e: Expr, names: Mapping[Var, str]) -> tuple[str, str]:
    """C text of an expression, and the same with arithmetic that is checked."""
    match e:
        case IntImm(value):
            return (integer_literal(value),) * 2
        case Var():
            return (f"s_{names[e]}",) * 2
        case Binary("min" | "max" as op, a, b):
            (x, cx), (y, cy) = _texts(a, names), _texts(b, names)
            if not (isinstance(a, Var | IntImm) and isinstance(b, Var | IntImm)):
                return f"kiln_{op}({x}, {y})", f"kiln_{op}({cx}, {cy})"  # each side stands once
            sign = "<" if op == "min" else ">"
            return f"({x} {sign} {y} ? {x} : {y})", f"(({cx} {sign} {cy}) ? {cx} : {cy})"
        case Binary("floordiv" | "floormod" as op, a, b) if not _divides_in_c(a, b):
            (x, cx), (y, cy) = _texts(a, names), _texts(b, names)
            noting = f"kiln_divide({cx}, {cy}, &large)"  # INT64_MIN // -1
            return f"kiln_{op}({x}, {y})", noting if op == "floordiv" else f"kiln_{op}({cx}, {cy})"
        case Binary(op, a, b) if op in _C_OPS:
            (x, cx), (y, cy) = _texts(a, names), _texts(b, names)
            plain = f"({cx} {_C_OPS[op]} {cy})"
            noting = f"{_CHECKED[op]}({cx}, {cy}, &large)" if op in _CHECKED else plain
            return f"({x} {_C_OPS[op]} {y})", noting
        case Select(c, a, b):
            (x, cx), (y, cy), (z, cz) = (_texts(part, names) for part in (c, a, b))
            return f"({x} ? {y} : {z})", f"({cx} ? {cy} : {cz})"
        case Cast(a, dtype) if dtype.is_int:
            return _texts(a, names)
        case Unary():
            return _unary_texts(e, names)
    raise _no_form(e)


def _unary_texts(e: Unary, names: Mapping[Var, str]) -> tuple[str, str]:
    x, checked = _texts(e.a, names)
    match e.op:
        case "not":
            return f"!{x}", f"!({checked})"
        case "neg":
            return f"(-{x})", f"kiln_sub(0, {checked}, &large)"
        case "abs":
            noting = f"(({checked} < 0) ? kiln_sub(0, {checked}, &large) : {checked})"
            return f"({x} < 0 ? -{x} : {x})", noting
        case "floor" | "ceil" | "round" | "trunc":
            return x, checked
    raise _no_form(e)


def _no_form(e: Expr) -> UnsupportedError:
    return UnsupportedError(f"no C form for the size {e}", hint="sizes are + - * // % of sizes")


def _without_parentheses(words: str) -> str:
    """`words` without parentheses around the whole: `(n + 1)` becomes `n + 1`, while `(a) * (b)`
    stays."""
    depth = 0
    for i, c in enumerate(words):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(words) - 1:
            return words
    return words[1:-1] if words[:1] == "(" else words


def _divides_in_c(a: Expr, b: Expr) -> bool:
    """Whether `a / b` in C, which rounds towards zero and traps at 0, is safe and rounds down:
    `b` is a positive constant and `a` is provably not negative."""
    bounds = Bounds.dims([v for e in (a, b) for v in free_vars(e)])
    positive = (int_value(b) or 0) > 0  # not a dimension, which may be 0
    return positive and prove(binary("ge", a, 0), bounds)


def condition_text(condition: SizeCondition, names: Mapping[Var, str]) -> str:
    """A condition for people, with its reason: `n >= 5 (top: a last dimension of 5 or more)`."""
    holds = expression_text(condition.holds, names)
    return f"{holds} ({condition.reason})" if condition.reason else holds


def expression_text(e: Expr, names: Mapping[Var, str]) -> str:
    """An expression for people: `sequence + past <= 512`, dimensions by the given names."""
    printer = VariableNames()
    printer.of.update({v: spelled(names[v]) for v in free_vars(e)})
    # In scripts, functions of numbers belong to T.
    return re.sub(r"\bT\.(max|min)\(", r"\1(", TirPrinter(printer).expr(e))
