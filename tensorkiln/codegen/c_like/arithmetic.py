"""Binary and unary operations on values that are already text."""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.c_like.code import (
    AND,
    BITS,
    COMPARISON,
    OR,
    PRODUCT,
    SHIFT,
    SUM,
    Code,
    call,
    infix,
    prefix,
)
from tensorkiln.codegen.c_like.conversions import convert
from tensorkiln.codegen.c_like.expansions import helper_of
from tensorkiln.codegen.c_like.types import (
    cast,
    cast_bits,
    narrowed,
    splat,
    test_of,
    unsigned,
    vector_bits,
)
from tensorkiln.codegen.c_like.writer import TextWriter
from tensorkiln.ir.dtype import DType

COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_PLAIN = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "bitand": ("&", BITS),
    "bitor": ("|", BITS),
    "bitxor": ("^", BITS),
}


def compare(w: TextWriter, op: str, x: str, y: str, dtype: DType) -> str:
    """x op y: a bool, or a vector of masks of as many bits as the operands, 16-bit floats apart."""
    if dtype.is_half:
        wide = DType("float32", dtype.lanes)
        x, y, dtype = convert(w, x, dtype, wide), convert(w, y, dtype, wide), wide
    text = infix(COMPARE[op], x, y, COMPARISON)
    return text if dtype.lanes == 1 else test_of(w, text, dtype.bits, dtype.lanes)


def binary(
    w: TextWriter, op: str, x: str, y: str, dtype: DType, *, number: int | None = None
) -> str:
    """x op y of operands of type `dtype`, except comparisons of vectors of bool. `number` is the
    value of y if it is a constant. Integers wrap around: C leaves that undefined for signed ones,
    so they are computed as unsigned."""
    if op in COMPARE:
        return compare(w, op, x, y, dtype)
    if dtype.is_float:
        return _float_binary(w, op, x, y, dtype)
    if dtype.is_bool:
        return infix("&&" if op == "and" else "||", x, y, AND if op == "and" else OR)
    if op in _PLAIN:
        return _wrapping(w, op, x, y, dtype)
    if op in ("shl", "shr") and number is not None and 0 <= number < dtype.bits:
        return _shift(w, op, x, number, dtype)
    if op in ("floordiv", "floormod") and number is not None and number > 0:
        power = number & (number - 1) == 0
        if power and op == "floordiv":
            return _shift(w, "shr", x, number.bit_length() - 1, dtype)
        if power:
            last = splat(w, w.dialect.integer(number - 1, dtype.element), dtype)
            return _narrowed(w, infix("&", x, last, BITS), dtype)
    if op in ("shl", "shr", "div", "floordiv", "floormod", "min", "max"):
        return call(helper_of(w, op, dtype), x, y)
    raise InternalError(f"{w.func.name}: no integer operation {op}")


def _float_binary(w: TextWriter, op: str, x: str, y: str, dtype: DType) -> str:
    if dtype.bits == 16:
        wide = DType("float32", dtype.lanes)
        x, y = convert(w, x, dtype, wide), convert(w, y, dtype, wide)
        return convert(w, binary(w, op, x, y, wide), wide, dtype)
    if op == "div":
        return infix("/", x, y, PRODUCT)
    if op in ("add", "sub", "mul"):
        return infix(*_swap(_PLAIN[op], x, y))
    if op in ("min", "max", "floordiv", "floormod"):
        return call(helper_of(w, op, dtype), x, y)
    raise InternalError(f"{w.func.name}: no float operation {op}")


def _swap(spelling: tuple[str, int], x: str, y: str) -> tuple[str, str, str, int]:
    return spelling[0], x, y, spelling[1]


def _wrapping(w: TextWriter, op: str, x: str, y: str, dtype: DType) -> str:
    sign, level = _PLAIN[op]
    if dtype.lanes > 1:
        if dtype.is_unsigned or level == BITS:
            return infix(sign, x, y, level)
        t, u = w.type(dtype), w.type(unsigned(dtype))
        a, b = (vector_bits(w, u, v) for v in (x, y))
        return vector_bits(w, t, infix(sign, a, b, level))
    if level == BITS or w.dialect.wraps or (dtype.is_unsigned and dtype.bits >= 32):
        return _narrowed(w, infix(sign, x, y, level), dtype)
    if dtype.bits == 8 or (dtype.bits == 16 and (not dtype.is_unsigned or op != "mul")):
        return _narrowed(w, infix(sign, x, y, level), dtype)  # an int holds the result
    u = w.dialect.scalar(DType(f"uint{max(dtype.bits, 32)}"))
    a, b = (prefix(f"({u})", v) for v in (x, y))
    return cast(w, infix(sign, a, b, level), dtype)


def _narrowed(w: TextWriter, text: str, dtype: DType) -> str:
    """The int that C computes for narrow operands, as its own type again."""
    if dtype.lanes > 1 or dtype.bits >= 32:
        return text
    return narrowed(w, text, dtype) if w.dialect.narrow else cast(w, text, dtype)


def _shift(w: TextWriter, op: str, x: str, count: int, dtype: DType) -> str:
    if count == 0:
        return x
    if dtype.lanes > 1:
        by = splat(w, w.dialect.integer(count, dtype.element), dtype)
        if op == "shr" or dtype.is_unsigned:
            return infix(">>" if op == "shr" else "<<", x, by, SHIFT)
        u = unsigned(dtype)
        shift = infix("<<", cast_bits(w, x, dtype, u), cast_bits(w, by, dtype, u), SHIFT)
        return cast_bits(w, shift, u, dtype)
    if op == "shr":
        return _narrowed(w, infix(">>", x, str(count), SHIFT), dtype)
    plain = dtype.is_unsigned and dtype.bits >= 32
    wide = x if plain else cast(w, x, DType(f"uint{max(dtype.bits, 32)}"))
    text = infix("<<", wide, str(count), SHIFT)
    return text if plain else cast(w, text, dtype)


def unary(w: TextWriter, op: str, x: str, dtype: DType) -> str:
    """op x of an operand of type `dtype`, no vector of bool."""
    if dtype.is_float:
        if dtype.bits == 16:
            wide = DType("float32", dtype.lanes)
            return convert(w, unary(w, op, convert(w, x, dtype, wide), wide), wide, dtype)
        return prefix("-", x) if op == "neg" else call(helper_of(w, op, dtype), x)
    if op == "not":
        # At a looser level than it has: compilers warn of `!a == b`.
        if dtype.is_bool:
            return Code(prefix("!", x), COMPARISON)
        return _narrowed(w, prefix("~", x), dtype)
    if op not in ("neg", "abs") or (op == "abs" and dtype.is_unsigned):
        return x  # to round an integer, or take the absolute value of an unsigned one
    if op == "abs":
        return call(helper_of(w, op, dtype), x)
    zero = splat(w, w.dialect.integer(0, dtype.element), dtype)
    return _wrapping(w, "sub", zero, x, dtype)
