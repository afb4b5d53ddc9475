"""`fmod`, exact for any quotient: a function of scalars, as in `codegen/llvm/remainder.py`."""

from __future__ import annotations

from tensorkiln.codegen.c_like.code import COMPARISON, Code, call
from tensorkiln.codegen.c_like.types import (
    cast,
    cast_bits,
    choose,
    define,
    number_of,
    type_name,
    unsigned,
)
from tensorkiln.codegen.c_like.writer import TextWriter
from tensorkiln.ir.dtype import DType


def remainder(w: TextWriter, x: str, y: str, dtype: DType) -> str:
    """x - trunc(x / y) y with the sign of x, for float32 or float64; NaN of an infinite x and of
    y = 0."""
    name = f"fmod_{type_name(dtype)}"
    return call(w.helper(name, lambda: _text(w, name, dtype)), x, y)


def _text(w: TextWriter, name: str, dtype: DType) -> str:
    if dtype.lanes > 1:
        return _by_lane(w, name, dtype)
    form, t, u = dtype.row, w.type(dtype), unsigned(dtype)
    ut = w.type(u)

    def number(value: int) -> str:
        return number_of(w, value, u)

    def let(name: str, x: str) -> str:
        return w.dialect.constant.format(type=ut, name=name, x=x)

    def if_tiny(size: str, tiny: str, otherwise: str) -> str:
        return choose(w, Code(f"{size} < {number(unit)}", COMPARISON), Code(tiny), Code(otherwise))

    unit, width = 1 << form.mantissa, number(form.mantissa)
    one_text, zero, infinity = number(1), number(0), number(form.infinity)
    bits = [cast_bits(w, v, dtype, u) for v in "xy"]
    nan = number_of(w, float("nan"), dtype)
    piece = number(dtype.bits - form.digits)
    lines = [
        let("size", f"{bits[0]} & {number((1 << dtype.bits - 1) - 1)}"),
        let("by", f"{bits[1]} & {number((1 << dtype.bits - 1) - 1)}"),
        let("sign", f"{bits[0]} & {number(1 << dtype.bits - 1)}"),
        f"if (by == {zero} || by > {infinity} || size >= {infinity}) {{",
        f"    return {nan};",
        "}",
        "if (size < by) {",
        "    return x;",
        "}",
        let("n", if_tiny("by", "by", f"(by & {number(unit - 1)}) | {number(unit)}")),
        let("m", if_tiny("size", "size", f"(size & {number(unit - 1)}) | {number(unit)}")),
        let("last", if_tiny("by", one_text, f"by >> {width}")),
        *w.dialect.variables(ut, ["steps", "rest"]),
        f"steps = ({if_tiny('size', one_text, f'size >> {width}')}) - last;",
        "rest = m % n;",
        f"while (steps != {zero} && rest != {zero}) {{",
        "    " + let("s", choose(w, Code(f"steps < {piece}", COMPARISON), "steps", piece)),
        "    rest = (rest << s) % n;",
        "    steps = steps - s;",
        "}",
        f"if (rest == {zero}) {{",
        f"    return {cast_bits(w, 'sign', u, dtype)};",
        "}",
        w.dialect.constant.format(type=t, name="whole", x=cast(w, "rest", dtype)),
        let("top", f"({cast_bits(w, 'whole', dtype, u)} >> {width}) + last"),
        f"if (top <= {number(form.mantissa + form.bias)}) {{",
        "    " + let("low", f"(rest << (last - {one_text})) | sign"),
        f"    return {cast_bits(w, 'low', u, dtype)};",
        "}",
        let("moved", f"(last - {number(form.mantissa + form.bias)}) << {width}"),
        let("high", f"({cast_bits(w, 'whole', dtype, u)} + moved) | sign"),
    ]
    return define(w, t, name, [(t, "x"), (t, "y")], lines, cast_bits(w, "high", u, dtype))


def _by_lane(w: TextWriter, name: str, dtype: DType) -> str:
    t, lane = w.type(dtype), w.dialect.lane.format
    items = [
        remainder(w, lane(x="x", i=k), lane(x="y", i=k), dtype.element)
        for k in range(w.count(dtype))
    ]
    value = w.dialect.vector_of.format(type=t, items=",\n        ".join(items))
    return define(w, t, name, [(t, "x"), (t, "y")], [], value)
