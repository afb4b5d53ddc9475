"""Literals, variables and operations of expressions."""

from __future__ import annotations

from tensorkiln.codegen.c_like import arithmetic
from tensorkiln.codegen.c_like.arithmetic import COMPARE
from tensorkiln.codegen.c_like.code import (
    AND,
    BITS,
    COMPARISON,
    OR,
    PRODUCT,
    SUM,
    Code,
    call,
    infix,
    prefix,
)
from tensorkiln.codegen.c_like.types import as_mask, cast, choose, select
from tensorkiln.codegen.c_like.writer import Expressions, TextWriter
from tensorkiln.ir.dtype import HANDLE
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    Expr,
    FloatImm,
    IntImm,
    Select,
    Unary,
    Var,
    int_value,
)

_INDEX = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT)}
_DIVISION = {"floordiv": "/", "floormod": "%"}


def _int(w: TextWriter, e: IntImm) -> str:
    return w.dialect.integer(e.value, e.dtype)


def _float(w: TextWriter, e: FloatImm) -> str:
    return w.dialect.real(e.value, e.dtype)


def _var(w: TextWriter, e: Var) -> str:
    name = w.state.names[e]
    return infix("!=", name, "0", COMPARISON) if e in w.state.bytes else name


def _binary(w: TextWriter, e: Binary) -> str:
    if e.dtype == HANDLE and e.op == "add":
        return Code(f"(void *)((char *){w.value(e.a)} + {w.value(e.b)})", 8)
    dtype = e.a.dtype
    if dtype.is_bool:
        return _of_bools(w, e)
    if dtype.lanes == 1 and dtype.is_int:
        plain = _index(w, e)
        if plain is not None:
            return plain
    if e.op == "bitxor" and isinstance(e.a, IntImm) and isinstance(e.b, IntImm):
        # clang takes `2 ^ 2` for a power that somebody meant.
        return w.dialect.integer(e.a.value ^ e.b.value, e.dtype)
    x, y = w.value(e.a), w.value(e.b)
    number = int_value(e.b.a if isinstance(e.b, Broadcast) else e.b)
    return arithmetic.binary(w, e.op, x, y, dtype, number=number)


def _index(w: TextWriter, e: Binary) -> str | None:
    """Index arithmetic in C's own operators, because it does not overflow; None for other
    expressions."""
    literals = isinstance(e.a, IntImm) and isinstance(e.b, IntImm)  # of which C computes an int
    index = e.op in _INDEX and not e.dtype.is_unsigned and e.dtype.bits >= 32
    if index and not (literals and e.dtype.bits > 32) and w.tame(e):
        sign, level = _INDEX[e.op]
        if isinstance(e.b, IntImm) and e.b.value < 0 and e.op == "add":
            return infix("-", w.value(e.a), w.dialect.integer(-e.b.value, e.dtype), level)
        return infix(sign, w.value(e.a), w.value(e.b), level)
    divisor = int_value(e.b)
    divides = e.op in _DIVISION and divisor is not None and divisor > 0
    if divides and is_natural(w, e.a) and e.dtype.bits >= 32:
        return infix(_DIVISION[e.op], w.value(e.a), w.value(e.b), PRODUCT)
    return None


def is_natural(w: TextWriter, e: Expr) -> bool:
    """Whether an index is known not to be negative."""
    match e:
        case IntImm(value):
            return value >= 0
        case Var():
            return e in w.natural
        case Binary("add" | "mul" | "min", a, b):
            return bool(w.tame(e)) and is_natural(w, a) and is_natural(w, b)
        case Binary("floordiv" | "floormod", a, b):
            return is_natural(w, a) and (int_value(b) or 0) > 0
        case Binary("max", a, b):
            return is_natural(w, a) or is_natural(w, b)
    return False


def _of_bools(w: TextWriter, e: Binary) -> str:
    x, y = w.value(e.a), w.value(e.b)
    lanes = e.dtype.lanes
    if lanes == 1:
        if e.op in ("and", "or"):
            return infix("&&" if e.op == "and" else "||", x, y, AND if e.op == "and" else OR)
        return infix(COMPARE[e.op], x, y, COMPARISON) if e.op in COMPARE else _extremum(e, x, y)
    bits = w.mask_bits(e.a)
    y = as_mask(w, y, w.mask_bits(e.b), bits, lanes)
    if e.op in ("and", "or", "min", "max"):
        return infix("&" if e.op in ("and", "min") else "|", x, y, BITS)
    # true is -1 as a mask, so the order of unsigned numbers is that of masks turned around
    if e.op in ("eq", "ne"):
        text = infix("^", x, y, BITS)
        return prefix("~", text) if e.op == "eq" else text
    a, b = (x, y) if e.op in ("lt", "le") else (y, x)
    return infix("&" if e.op in ("lt", "gt") else "|", prefix("~", a), b, BITS)


def _extremum(e: Binary, x: str, y: str) -> str:
    return infix("&&" if e.op == "min" else "||", x, y, AND if e.op == "min" else OR)


def _unary(w: TextWriter, e: Unary) -> str:
    x = w.value(e.a)
    if e.dtype.is_bool and e.dtype.lanes > 1:
        return prefix("~", x) if e.op == "not" else x
    signed = e.dtype.is_int and e.dtype.lanes == 1 and not e.dtype.is_unsigned
    if e.op == "neg" and signed and e.dtype.bits >= 32 and w.tame(e):
        return prefix("-", x)
    return arithmetic.unary(w, e.op, x, e.dtype)


def _select(w: TextWriter, e: Select) -> str:
    z, x, y = w.value(e.cond), w.value(e.a), w.value(e.b)
    if e.cond.dtype.lanes == 1:
        if e.dtype.is_bool and e.dtype.lanes > 1:
            y = as_mask(w, y, w.mask_bits(e.b), w.mask_bits(e.a), e.dtype.lanes)
        is_number = e.dtype.is_int and not e.dtype.is_bool
        if is_number and isinstance(e.a, IntImm) and isinstance(e.b, IntImm):
            # Literals alone are of the type that the language finds for them.
            if w.dialect.only_words:
                x = x if e.dtype.is_unsigned else call(w.type(e.dtype), x)
            elif e.dtype.bits == 64:
                x = cast(w, x, e.dtype)
        x_bits = choose(w, z, x, y)
        promoted = is_number and e.dtype.bits < 32 and e.dtype.lanes == 1
        return cast(w, x_bits, e.dtype) if promoted and not w.dialect.only_words else x_bits
    if e.dtype.is_bool:
        bits, lanes = w.mask_bits(e.a), e.dtype.lanes
        z, y = (as_mask(w, v, w.mask_bits(p), bits, lanes) for v, p in ((z, e.cond), (y, e.b)))
        x_bits, y_bits = infix("&", z, x, BITS), infix("&", prefix("~", z), y, BITS)
        return infix("|", x_bits, y_bits, BITS)
    return select(w, z, w.mask_bits(e.cond), x, y, e.dtype)


EXPRESSIONS: Expressions = {
    IntImm: _int,
    FloatImm: _float,
    Var: _var,
    Binary: _binary,
    Unary: _unary,
    Select: _select,
}
