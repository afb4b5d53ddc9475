"""Sizes as text: C for the entry file, and expressions for people."""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import prove
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.host_function import spelled
from tensorkiln.codegen.scalars import integer_literal
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Select, Unary, Var, binary, int_value
from tensorkiln.ir.text.names import Names
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.visit import free_vars

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


def c_expression(e: Expr, names: Mapping[Var, str]) -> str:
    """C text of a size or of a condition on sizes, whose dimensions are assumed to be at least 1.
    UnsupportedError for an operation without a C form."""
    match e:
        case IntImm(value):
            return integer_literal(value)
        case Var():
            return f"s_{names[e]}"
        case Binary("min" | "max" as op, a, b):
            x, y = c_expression(a, names), c_expression(b, names)
            return f"({x} {'<' if op == 'min' else '>'} {y} ? {x} : {y})"
        case Binary("floordiv" | "floormod" as op, a, b) if not _divides_in_c(a, b):
            return f"kiln_{op}({c_expression(a, names)}, {c_expression(b, names)})"
        case Binary(op, a, b) if op in _C_OPS:
            return f"({c_expression(a, names)} {_C_OPS[op]} {c_expression(b, names)})"
        case Unary("not", a):
            return f"!{c_expression(a, names)}"
        case Unary("neg", a):
            return f"(-{c_expression(a, names)})"
        case Unary("abs", a):
            x = c_expression(a, names)
            return f"({x} < 0 ? -{x} : {x})"
        case Unary("floor" | "ceil" | "round" | "trunc", a):
            return c_expression(a, names)
        case Select(c, a, b):
            parts = [c_expression(x, names) for x in (c, a, b)]
            return f"({parts[0]} ? {parts[1]} : {parts[2]})"
        case Cast(a, dtype) if dtype.is_int:
            return c_expression(a, names)
    raise UnsupportedError(f"no C form for the size {e}", hint="sizes are + - * // % of sizes")


def _divides_in_c(a: Expr, b: Expr) -> bool:
    """Whether `a / b` in C, which rounds towards zero and traps at 0, is safe and rounds down:
    `b` is a positive constant and `a` is provably not negative."""
    bounds = Bounds.dims([v for e in (a, b) for v in free_vars(e)], least=1)
    positive = (int_value(b) or 0) > 0  # not a dimension: that of an outer function may be 0
    return positive and prove(binary("ge", a, 0), bounds)


def expression_text(e: Expr, names: Mapping[Var, str]) -> str:
    """An expression for people: `sequence + past <= 512`, dimensions by the given names."""
    printer = Names()
    printer.of.update({v: spelled(names[v]) for v in free_vars(e)})
    return TirPrinter(printer).expr(e)
