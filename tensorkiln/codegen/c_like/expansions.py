"""Functions that a kernel's text calls: operations that a language lacks, or leaves undefined for
some operands. Each is written for scalars and vectors alike, and stands in the text only if it is
called."""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.codegen.c_like.code import (
    COMPARISON,
    PREFIX,
    PRODUCT,
    SHIFT,
    SUM,
    Code,
    at_least,
    infix,
)
from tensorkiln.codegen.c_like.remainder import remainder
from tensorkiln.codegen.c_like.types import (
    cast,
    cast_bits,
    choose,
    convert_vector,
    define,
    number_of,
    select,
    test_of,
    type_name,
    unsigned,
    vector_bits,
    zero_of,
)
from tensorkiln.codegen.c_like.writer import TextWriter
from tensorkiln.ir.dtype import DType

_F32, _I32 = "float32", "int32"


def helper_of(w: TextWriter, op: str, dtype: DType) -> str:
    """The name of the function that computes an operation on values of `dtype`."""
    name = f"{op}_{type_name(dtype)}"
    by_lane = ("div", "floordiv", "floormod") if dtype.is_int else ("floormod",)
    if dtype.lanes > 1 and op in by_lane:
        return w.helper(name, lambda: _by_lane(w, op, name, dtype))
    return w.helper(name, lambda: _MAKERS[op](w, op, name, dtype))


def _params(w: TextWriter, dtype: DType, names: str) -> list[tuple[str, str]]:
    return [(w.type(dtype), p) for p in names]


def _test(w: TextWriter, text: str, dtype: DType) -> str:
    """A comparison of values of `dtype` as a condition; of vectors, with their number of bits."""
    if dtype.lanes == 1:
        return Code(f"({text})")
    test = test_of(w, Code(text, COMPARISON), dtype.bits, dtype.lanes)
    return Code(at_least(test, PREFIX))


def signed_like(dtype: DType) -> DType:
    """The integers of a comparison's result."""
    return DType(f"int{dtype.bits}", dtype.lanes)


def _extremum(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    """`a < b ? a : b`, for any types."""
    test = _test(w, f"a {'<' if op == 'min' else '>'} b", dtype)
    value = select(w, test, dtype.bits, Code("a"), Code("b"), dtype)
    return define(w, w.type(dtype), name, _params(w, dtype, "ab"), [], value)


# ---- integers ----------------------------------------------------------------------------------


def _by_lane(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    """No processor divides vectors of integers, and remainders of floats are loops."""
    function, t, count = helper_of(w, op, dtype.element), w.type(dtype), w.count(dtype)
    lane = w.dialect.lane
    items = [
        f"{function}({lane.format(x='a', i=k)}, {lane.format(x='b', i=k)})" for k in range(count)
    ]
    value = w.dialect.vector_of.format(type=t, items=",\n        ".join(items))
    return define(w, t, name, _params(w, dtype, "ab"), [], value)


def _division(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    """`div` rounds to zero, the others to minus infinity. By 0 it is 0, and the least number by -1
    wraps around."""
    t = w.type(dtype)
    lines = ["if (b == 0) {", f"    return {number_of(w, 0, dtype)};", "}"]
    whole = cast(w, infix("/", "a", "b", PRODUCT), dtype)
    if dtype.is_unsigned:
        rem = cast(w, infix("%", "a", "b", PRODUCT), dtype)
        value = rem if op == "floormod" else whole
        return define(w, t, name, _params(w, dtype, "ab"), lines, value)
    lines += ["if (b == -1) {", f"    return {'0' if op == 'floormod' else _minus(w, dtype)};", "}"]
    if op == "div":
        return define(w, t, name, _params(w, dtype, "ab"), lines, whole)
    constant = w.dialect.constant.format
    below = "rest != 0 && ((rest < 0) != (b < 0))"
    lines += [
        constant(type=t, name="rest", x=cast(w, infix("%", "a", "b", PRODUCT), dtype)),
        constant(type="bool", name="below", x=below),
    ]
    pair = ("rest + b", "rest") if op == "floormod" else ("a / b - 1", "a / b")
    down = choose(w, "below", *(Code(x, SUM) for x in pair))
    return define(w, t, name, _params(w, dtype, "ab"), lines, cast(w, down, dtype))


def _minus(w: TextWriter, dtype: DType, x: str = "a") -> str:
    """-x of a signed scalar, which wraps around."""
    wide = DType(f"uint{max(32, dtype.bits)}")
    return cast(w, infix("-", "0u", cast(w, x, wide), SUM), dtype)


def _shift(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    """A count of at least the number of bits, or a negative one, shifts all of them out."""
    t, u, last = w.type(dtype), unsigned(dtype), dtype.bits - 1
    largest = number_of(w, last, u)
    constant = w.dialect.constant.format
    count = cast_bits(w, "b", dtype, u) if dtype.lanes > 1 else cast(w, "b", u)
    lines = [constant(type=w.type(u), name="count", x=count)]
    over = _test(w, f"count > {largest}", u)
    arithmetic = op == "shr" and not dtype.is_unsigned
    if arithmetic:
        within = select(w, over, dtype.bits, largest, "count", u)
        lines.append(constant(type=w.type(u), name="within", x=within))
        by = cast_bits(w, "within", u, dtype) if dtype.lanes > 1 else "within"
        right = infix(">>", "a", by, SHIFT)
        value = right if dtype.lanes > 1 else cast(w, right, dtype)
        return define(w, t, name, _params(w, dtype, "ab"), lines, value)
    wide = u if dtype.bits >= 32 or dtype.lanes > 1 else DType("uint32")
    bits = cast_bits(w, "a", dtype, u) if dtype.lanes > 1 else cast(w, "a", wide)
    moved = f"{bits} {'<<' if op == 'shl' else '>>'} (count & {largest})"
    if dtype.lanes > 1:
        shifted = Code(f"({w.type(u)})({moved})")
        value = cast_bits(w, select(w, over, dtype.bits, zero_of(w, u), shifted, u), u, dtype)
    else:
        chosen = choose(w, over, "0u", Code(moved, SHIFT))
        value = cast(w, chosen, dtype)
    return define(w, t, name, _params(w, dtype, "ab"), lines, value)


def _absolute(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    t = w.type(dtype)
    if dtype.is_float:
        ui = unsigned(dtype)
        mask = number_of(w, (1 << dtype.bits - 1) - 1, ui)
        bits = cast_bits(w, "x", dtype, ui)
        value = cast_bits(w, Code(f"({bits} & {mask})"), ui, dtype)
        return define(w, t, name, _params(w, dtype, "x"), [], value)
    u = unsigned(dtype)
    if dtype.lanes == 1:
        value = choose(w, Code("x < 0", COMPARISON), _minus(w, dtype, "x"), "x")
        return define(w, t, name, _params(w, dtype, "x"), [], value)
    minus = vector_bits(w, t, f"({zero_of(w, u)} - {vector_bits(w, w.type(u), 'x')})")
    test = _test(w, f"x < {zero_of(w, dtype)}", dtype)
    value = select(w, test, dtype.bits, minus, Code("x"), dtype)
    return define(w, t, name, _params(w, dtype, "x"), [], value)


# ---- floats ------------------------------------------------------------------------------------


def _root(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    t = w.type(dtype)
    if dtype.lanes > 1:
        function, lane = helper_of(w, op, dtype.element), w.dialect.lane
        items = ", ".join(f"{function}({lane.format(x='x', i=k)})" for k in range(w.count(dtype)))
        value = w.dialect.vector_of.format(type=t, items=items)
        return define(w, t, name, _params(w, dtype, "x"), [], value)
    return w.dialect.square_root(w, name, dtype)


def _with_sign(w: TextWriter, dtype: DType) -> str:
    """The function that gives a number that is not negative the sign of another."""
    t, u = w.type(dtype), unsigned(dtype)
    name = f"copysign_{type_name(dtype)}"

    def make() -> str:
        sign = number_of(w, 1 << dtype.bits - 1, u)
        bits = [cast_bits(w, v, dtype, u) for v in ("size", "sign")]
        value = cast_bits(w, Code(f"({bits[0]} | ({bits[1]} & {sign}))"), u, dtype)
        return define(w, t, name, [(t, "size"), (t, "sign")], [], value)

    return w.helper(name, make)


def _round(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    """floor, ceil, trunc, or to even, keeping the sign of zero, NaN and infinity. Adding and
    subtracting 2**23 (2**52 for float64) rounds smaller numbers; larger ones are whole."""
    t = w.type(dtype)
    if w.dialect.rounded:
        value = w.dialect.rounded.format(op=op, x="x")
        return define(w, t, name, _params(w, dtype, "x"), [], value)
    magic = number_of(w, 2.0**23 if dtype.name == _F32 else 2.0**52, dtype)
    unit, zero = number_of(w, 1.0, dtype), zero_of(w, dtype)
    size, sign = helper_of(w, "abs", dtype), _with_sign(w, dtype)
    lines = [f"const {t} size = {size}(x);", f"{t} near = (size + {magic}) - {magic};"]

    def step(test: str, operator: str) -> None:
        by = select(w, _test(w, test, dtype), dtype.bits, unit, zero, dtype)
        lines.append(f"near = near {operator} ({by});")

    if op == "trunc":
        step("near > size", "-")
    lines.append(f"near = {sign}(near, x);")
    if op == "floor":
        step("near > x", "-")
    if op == "ceil":
        step("near < x", "+")
        lines.append(f"near = {sign}(near, x);")
    test = _test(w, f"size < {magic}", dtype)
    value = select(w, test, dtype.bits, Code("near"), Code("x"), dtype)
    return define(w, t, name, _params(w, dtype, "x"), lines, value)


def _floor_division(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    t, floor = w.type(dtype), helper_of(w, "floor", dtype)
    return define(w, t, name, _params(w, dtype, "ab"), [], f"{floor}(a / b)")


def _floor_remainder(w: TextWriter, op: str, name: str, dtype: DType) -> str:
    """The remainder with the sign of b, exact but for one addition."""
    t, zero = w.type(dtype), zero_of(w, dtype)
    lines = [w.dialect.constant.format(type=t, name="rest", x=remainder(w, "a", "b", dtype))]
    lines += [f"if ((rest < {zero} && b > {zero}) || (rest > {zero} && b < {zero})) {{"]
    lines += ["    return rest + b;", "}"]
    return define(w, t, name, _params(w, dtype, "ab"), lines, "rest")


def to_integer(w: TextWriter, src: DType, dst: DType) -> str:
    """The function that converts floats to integers: it cuts off, saturates, and makes NaN 0."""
    name = f"{type_name(dst)}_of_{type_name(src)}"

    def make() -> str:
        low = 0 if dst.is_unsigned else -(1 << dst.bits - 1)
        high = low + (1 << dst.bits)  # the first number that is too large, exact as a float
        # Numbers between low - 1 and low are cut off to low.
        under = (
            f"x <= {number_of(w, float(low - 1), src)}"
            if _exact(low - 1, src)
            else (f"x < {number_of(w, float(low), src)}")
        )
        above, below = _test(w, f"x >= {number_of(w, float(high), src)}", src), _test(w, under, src)
        lower, upper = number_of(w, low, dst), number_of(w, high - 1, dst)
        s, t = w.type(src), w.type(dst)
        if src.lanes == 1:
            nan = Code(w.dialect.isnan.format(x="x") or "x != x", COMPARISON)
            chosen = cast(w, "x", dst)
            for test, x in (below, lower), (above, upper), (nan, number_of(w, 0, dst)):
                chosen = choose(w, test, x, Code(chosen))
            return define(w, t, name, [(s, "x")], [], chosen)
        m = w.type(signed_like(src))
        real = _test(w, "x == x", src)
        lines = [
            f"const {m} above = {above};",
            f"const {m} below = {below};",
            f"const {m} inside = {real} & ~(above | below);",
            f"const {s} safe = {select(w, 'inside', src.bits, 'x', zero_of(w, src), src)};",
        ]
        value = Code(f"{_cut_off(w, 'safe', src, dst)}")
        value = Code(select(w, "above", src.bits, upper, value, dst))
        value = Code(select(w, "below", src.bits, lower, value, dst))
        return define(w, t, name, [(s, "x")], lines, value)

    return w.helper(name, make)


def _exact(value: int, dtype: DType) -> bool:
    return abs(value) <= 1 << (24 if dtype.name == _F32 else 53)


def _cut_off(w: TextWriter, x: str, src: DType, dst: DType) -> str:
    """A vector of floats that are in range as integers; narrow ones by way of 32 bits, for which
    there are instructions."""
    if dst.bits >= 32:
        return convert_vector(w, x, w.type(dst))
    return convert_vector(w, convert_vector(w, x, w.type(DType(_I32, src.lanes))), w.type(dst))


_MAKERS: dict[str, Callable[[TextWriter, str, str, DType], str]] = {
    "min": _extremum,
    "max": _extremum,
    "div": _division,
    "floordiv": lambda w, op, n, d: (_floor_division if d.is_float else _division)(w, op, n, d),
    "floormod": lambda w, op, n, d: (_floor_remainder if d.is_float else _division)(w, op, n, d),
    "shl": _shift,
    "shr": _shift,
    "abs": _absolute,
    "sqrt": _root,
    "floor": _round,
    "ceil": _round,
    "round": _round,
    "trunc": _round,
}
