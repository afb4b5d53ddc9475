"""Values of one type as values of another, and the pieces that scalars and vectors say differently:
the same number in every lane, a choice between two values, the bits of a value."""

from __future__ import annotations

import re

from tensorkiln.codegen.c_like.code import (
    COMPARISON,
    PREFIX,
    SHIFT,
    Code,
    at_least,
    call,
    infix,
    prefix,
    ternary,
)
from tensorkiln.codegen.c_like.writer import TextWriter
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import IntImm
from tensorkiln.ir.expr import cast as converted

_LITERAL = re.compile(r"-?\d+")


def type_name(dtype: DType) -> str:
    """How names of helpers call a type: `f32`, `f32x8`; 16-bit floats by their bits."""
    name = dtype.row.short if dtype.is_bool else dtype.row.stored.short
    return name if dtype.lanes == 1 else f"{name}x{1 << (dtype.lanes - 1).bit_length()}"


def unsigned(dtype: DType) -> DType:
    """The unsigned type of as many bits."""
    return DType(f"uint{dtype.bits}", dtype.lanes)


def signed(dtype: DType) -> DType:
    """The signed type of as many bits."""
    return DType(f"int{dtype.bits}", dtype.lanes)


def splat(w: TextWriter, x: str, dtype: DType) -> str:
    """The scalar `x` in every lane of `dtype`; itself if that has one lane."""
    if dtype.lanes == 1:
        return x
    t, count = w.type(dtype), w.count(dtype)
    if w.dialect.splat:
        return Code(w.dialect.splat.format(type=t, x=x))

    def make() -> str:
        items = w.dialect.vector_of.format(type=t, items=", ".join(["x"] * count))
        return define(w, t, f"splat_{t}", [(w.type(dtype.element), "x")], [], items)

    return call(w.helper(f"splat_{t}", make), x)


def define(
    w: TextWriter,
    result: str,
    name: str,
    parameters: list[tuple[str, str]],
    lines: list[str],
    value: str,
) -> str:
    """The text of a function that computes `value` after `lines`."""
    body = "".join(f"    {line}\n" for line in [*lines, f"return {value};"])
    return f"{w.definition(name, result, parameters)}\n{{\n{body}}}\n"


def cast(w: TextWriter, x: str, dtype: DType) -> str:
    """`x` as a scalar of the type, by the language's own conversion."""
    template, t = w.dialect.cast, w.type(dtype)
    if template.startswith("("):
        return prefix(template.replace("{x}", "").format(type=t), x)
    if dtype.is_int and _LITERAL.fullmatch(x):
        # Without a suffix it has no type yet, and must fit the one that it is converted to.
        constant = converted(IntImm(int(x), INT64), dtype)
        assert isinstance(constant, IntImm)
        return w.dialect.integer(constant.value, dtype)
    return narrowed(w, Code(template.format(type=t, x=x)), dtype)


def narrowed(w: TextWriter, x: str, dtype: DType) -> str:
    """A number that the type of values of `dtype` holds, with as many bits as `dtype` has."""
    if dtype.bits >= 32 or dtype.is_bool or not w.dialect.narrow:
        return x
    return Code(w.dialect.narrow.format(x=x, bits=dtype.bits))


def choose(w: TextWriter, condition: str, a: str, b: str) -> str:
    """One of two values by a scalar condition."""
    template = w.dialect.conditional
    if template == "{condition} ? {a} : {b}":
        return ternary(condition, a, b)
    # Comparisons in parentheses: `f(a < b, c > d)` may be read as one of a type `a<b, c>`.
    condition, a, b = (at_least(x, SHIFT) for x in (condition, a, b))
    return Code(template.format(condition=condition, a=a, b=b))


def cast_bits(w: TextWriter, x: str, src: DType, dst: DType) -> str:
    """The bits of x as a value of a type of as many bits. Scalars are integers of one size, or a
    float and an integer."""
    if w.type(src) == w.type(dst):
        return x
    if src.lanes > 1:
        return vector_bits(w, w.type(dst), x)
    if src.is_float == dst.is_float or 16 in (src.bits, dst.bits):
        return cast(w, x, dst)
    a, b = w.type(src), w.type(dst)
    if w.dialect.scalar_bits:
        # A literal, or what C computes, may have another size than its type here.
        if src.is_int and not x.isidentifier() and not x.startswith(f"({a})"):
            x = cast(w, x, src)
        return Code(w.dialect.scalar_bits.format(type=b, x=x))
    name = f"bits_of_{type_name(src)}" if dst.is_int else f"{type_name(dst)}_of_bits"
    if not (src.is_int and not src.is_unsigned) and not (dst.is_int and not dst.is_unsigned):
        name += "_u"

    def make() -> str:
        lines = [f"union {{ {a} from; {b} to; }} bits;", "bits.from = x;"]
        return define(w, b, name, [(a, "x")], lines, "bits.to")

    return call(w.helper(name, make), x)


def vector_bits(w: TextWriter, t: str, x: str) -> str:
    """The bits of a vector x as lanes of the vector type `t`."""
    template = w.dialect.vector_bits
    if template.startswith("("):  # a cast
        return prefix(template.replace("{x}", "").format(type=t), x)
    return Code(template.format(type=t, x=x))


def test_of(w: TextWriter, comparison: str, bits: int, lanes: int) -> str:
    """A comparison of vectors as integers of `bits`, which are 0 or -1."""
    template = w.dialect.comparison
    if template == "{x}":
        return comparison
    return Code(template.format(type=w.mask_type(bits, lanes), x=comparison), PREFIX)


def convert_vector(w: TextWriter, x: str, t: str) -> str:
    """The numbers of a vector as lanes of the vector type `t`."""
    return call(*w.dialect.convert_vector.format(type=t, x=x).removesuffix(")").split("(", 1))


def as_mask(w: TextWriter, mask: str, bits: int, target_bits: int, lanes: int) -> str:
    """A vector of conditions with `target_bits` bits per lane."""
    if bits == target_bits:
        return mask
    return convert_vector(w, mask, w.mask_type(target_bits, lanes))


def select(w: TextWriter, mask: str, bits: int, x: str, y: str, dtype: DType) -> str:
    """mask ? x : y; `bits` are those of a lane of the mask."""
    if dtype.lanes == 1:
        return choose(w, mask, x, y)
    t, mask_dtype = w.type(dtype), signed(DType(f"int{dtype.bits}", dtype.lanes))
    m = w.type(mask_dtype)
    mask = as_mask(w, mask, bits, dtype.bits, dtype.lanes)
    if w.dialect.choice:
        return Code(w.dialect.choice.format(mask=mask, a=x, b=y))

    def make() -> str:
        a, b = ((v if t == m else vector_bits(w, m, v)) for v in "ab")
        chosen = f"(mask & {a}) | (~mask & {b})"
        value = chosen if t == m else vector_bits(w, t, f"({chosen})")
        return define(w, t, f"select_{t}", [(m, "mask"), (t, "a"), (t, "b")], [], value)

    return call(w.helper(f"select_{t}", make), mask, x, y)


def from_mask(w: TextWriter, mask: str, bits: int, dtype: DType) -> str:
    """A vector of conditions as numbers, 1 and 0, of an integer type."""
    whole = DType(f"uint{bits}", dtype.lanes)
    unit = splat(w, w.dialect.integer(1, whole.element), whole)
    numbers = infix("&", vector_bits(w, w.type(whole), mask), unit, COMPARISON - 1)
    return numbers if whole == dtype else convert_vector(w, numbers, w.type(dtype))


def zero_of(w: TextWriter, dtype: DType) -> str:
    """0 in every lane."""
    d = w.dialect
    zero = d.real(0.0, dtype.element) if dtype.is_float else d.integer(0, dtype.element)
    return splat(w, zero, dtype)


def number_of(w: TextWriter, value: float, dtype: DType) -> str:
    """A literal in every lane."""
    d, element = w.dialect, dtype.element
    return splat(
        w, d.real(value, element) if element.is_float else d.integer(int(value), element), dtype
    )
