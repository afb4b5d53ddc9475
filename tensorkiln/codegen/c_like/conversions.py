"""`Cast`: conversions between element types."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.codegen.c_like.code import COMPARISON, Code, call, infix
from tensorkiln.codegen.c_like.narrow import NARROW
from tensorkiln.codegen.c_like.types import (
    cast,
    cast_bits,
    convert_vector,
    from_mask,
    test_of,
    zero_of,
)
from tensorkiln.codegen.c_like.writer import Expressions, TextWriter
from tensorkiln.codegen.expand.math_builder import Lets
from tensorkiln.ir.dtype import FLOAT64, DType
from tensorkiln.ir.expr import Cast, Expr, Var


def _cast(w: TextWriter, e: Cast) -> str:
    x, src, dst = w.value(e.a), e.a.dtype, e.dtype
    if src.lanes == 1:
        return convert(w, x, src, dst)
    if src.is_bool:
        return _of_mask(w, x, w.mask_bits(e.a), dst)
    if dst.is_bool:
        return nonzero(w, x, src)
    return convert(w, x, src, dst)


def nonzero(w: TextWriter, x: str, src: DType) -> str:
    """A vector of masks: which lanes of x are not 0."""
    if src.is_half:
        wide = DType("float32", src.lanes)
        x, src = convert(w, x, src, wide), wide
    test = infix("!=", x, zero_of(w, src), COMPARISON)
    return test_of(w, test, src.bits, src.lanes)


def _of_mask(w: TextWriter, mask: str, bits: int, dst: DType) -> str:
    """A vector of conditions as a vector of numbers."""
    if dst.is_int:
        return from_mask(w, mask, bits, dst)
    whole = DType(f"uint{bits}", dst.lanes)
    return convert(w, from_mask(w, mask, bits, whole), whole, dst)


def convert(w: TextWriter, x: str, src: DType, dst: DType) -> str:
    """The value x of type `src` as one of `dst`; vectors are of numbers, not of bools."""
    if src == dst:
        return x
    if src.is_half or dst.is_half:
        return _narrow(w, x, src, dst)
    if dst.is_bool and src.is_float and w.dialect.nonzero:
        return Code(w.dialect.nonzero.format(x=x), COMPARISON)
    if dst.is_bool:
        zero = zero_of(w, src) if not src.is_bool else "false"
        return infix("!=", x, zero, COMPARISON)
    if src.is_float and dst.is_int:
        from tensorkiln.codegen.c_like.expansions import to_integer

        return call(to_integer(w, src, dst), x)
    if src.lanes == 1:
        return cast(w, x, dst)
    if src.is_int and dst.is_int and src.bits == dst.bits:
        return cast_bits(w, x, src, dst)
    return convert_vector(w, x, w.type(dst))


def _narrow(w: TextWriter, x: str, src: DType, dst: DType) -> str:
    """Casts from or to float16 and bfloat16, by way of float32."""
    single = DType("float32", src.lanes)
    if src.is_half:
        return convert(w, call(_program(w, src.name, "float32", src.lanes), x), single, dst)
    if src.element == FLOAT64 or (src.is_int and src.bits > 16):
        # Rounding to nearest twice may differ from doing it once, so the first goes to odd.
        exact = FLOAT64.with_lanes(src.lanes) if w.dialect.has(FLOAT64) else src
        x = call(_program(w, exact.name, "odd", src.lanes), convert(w, x, src, exact))
    else:
        x = convert(w, x, src, single)
    return call(_program(w, "float32", dst.name, src.lanes), x)


def _program(w: TextWriter, src: str, dst: str, lanes: int) -> str:
    """The function of a program of NARROW."""
    count = 1 << (lanes - 1).bit_length()
    to, of = (PROGRAM_TYPES[t].short if t in PROGRAM_TYPES else t for t in (dst, src))
    name = f"{to}_of_{of}" + (f"x{count}" if lanes > 1 else "")

    def make() -> str:
        parameter, lets, result = NARROW[src, dst](count)
        return function_of(w, name, [parameter], lets, result)

    return w.helper(name, make)


def function_of(
    w: TextWriter, name: str, parameters: Sequence[Var], lets: Lets, result: Expr
) -> str:
    """The text of a function that computes let-bindings, then a result."""
    params = [(w.type(p.dtype), p.name) for p in parameters]
    head = w.definition(name, w.type(result.dtype), params)
    with w.function() as state:
        for p in parameters:
            state.names[p] = w.name(p.name)
        for var, e in lets:
            text = w.value(e)
            if e.dtype.is_bool and e.dtype.lanes > 1:
                state.masks[var] = w.mask_bits(e)
            state.names[var] = w.constant(text, e, var.name)
        w.line(f"return {w.value(result)};")
        body = w.body()
    return f"{head}\n{{\n{body}\n}}\n"


EXPRESSIONS: Expressions = {Cast: _cast}
