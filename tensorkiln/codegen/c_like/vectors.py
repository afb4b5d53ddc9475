"""Vectors from scalars, from lanes of other vectors, and their reduction to a scalar."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.codegen.c_like import arithmetic
from tensorkiln.codegen.c_like.code import PRODUCT, SUM, Code, call, infix, prefix
from tensorkiln.codegen.c_like.types import as_mask, cast_bits, define, splat, type_name, unsigned
from tensorkiln.codegen.c_like.writer import Expressions, TextWriter
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Broadcast,
    CallExtern,
    Expr,
    Ramp,
    Shuffle,
    VectorReduce,
)
from tensorkiln.ir.visit import walk


def _broadcast(w: TextWriter, e: Broadcast) -> str:
    x = w.value(e.a)
    if not e.dtype.is_bool:
        return splat(w, x, e.dtype)
    mask = DType("int8", e.lanes)
    return splat(w, prefix(f"({w.type(mask.element)})", prefix("-", x)), mask)


def _ramp(w: TextWriter, e: Ramp) -> str:
    """base + stride * (0, 1, 2, ...), as unsigned numbers, which wrap around."""
    dtype, u = e.dtype, unsigned(e.dtype)
    start, step = (cast_bits(w, splat(w, w.value(x), dtype), dtype, u) for x in (e.base, e.stride))
    items = ", ".join(w.dialect.integer(i, u.element) for i in range(w.count(dtype)))
    counts = Code(w.dialect.vector_of.format(type=w.type(u), items=items))
    return cast_bits(w, infix("+", start, infix("*", step, counts, PRODUCT), SUM), u, dtype)


def _shuffle(w: TextWriter, e: Shuffle) -> str:
    dtype = e.a.dtype
    if dtype.is_bool:
        dtype = DType(f"int{w.mask_bits(e.a)}", dtype.lanes)
    sources = {k // dtype.lanes for k in e.lanes}
    vectors = [
        _operand(w, e, k) if k in sources else _left_out(w, x) for k, x in enumerate((e.a, e.b))
    ]
    return lanes_of(w, vectors, e.lanes, dtype)


def _operand(w: TextWriter, e: Shuffle, k: int) -> str:
    """The name of a constant for an operand of a shuffle. Masks get the width of the first
    operand."""
    x = (e.a, e.b)[k]
    if k == 1 and x.dtype.is_bool:
        bits, wide = w.mask_bits(e.a), e.a.dtype.lanes
        y = as_mask(w, w.value(x), w.mask_bits(x), bits, wide)
        return _held(w, y, w.type(DType(f"int{bits}", wide)))
    return _named(w, w.value(x), x)


def _left_out(w: TextWriter, e: Expr) -> str:
    """An operand of which no lane is taken. It is computed only if it calls C functions."""
    if any(isinstance(x, CallExtern) for x in walk(e)):
        w.line(w.dialect.discard.format(x=w.value(e)))
    return ""


def _named(w: TextWriter, text: str, e: Expr) -> str:
    return text if text.isidentifier() else w.constant(text, e)


def _held(w: TextWriter, text: str, t: str) -> str:
    """Declare a constant of type `t` with the value `text`, and return its name."""
    name = w.fresh()
    w.line(f"const {t} {name} = {text};")
    return name


def lanes_of(w: TextWriter, vectors: Sequence[str], lanes: Sequence[int], dtype: DType) -> str:
    """Lanes of two vectors of type `dtype`; those of the second count after those of the first."""
    vector_type = dtype.with_lanes(len(lanes))
    elements = [
        w.dialect.lane.format(x=vectors[k // dtype.lanes], i=k % dtype.lanes) for k in lanes
    ]
    if len(set(elements)) == 1:
        return splat(w, elements[0], vector_type)
    elements += [elements[-1]] * (w.count(vector_type) - len(elements))
    return Code(w.dialect.vector_of.format(type=w.type(vector_type), items=", ".join(elements)))


def _vector_reduce(w: TextWriter, e: VectorReduce) -> str:
    """Combine the halves of the vector until one lane is left: one order for all targets."""
    x, dtype = w.value(e.a), e.a.dtype
    op = REDUCE_BINARY.get(e.op, e.op)
    if dtype.is_bool:
        dtype = DType(f"int{w.mask_bits(e.a)}", dtype.lanes)
        op = {"and": "bitand", "or": "bitor", "min": "bitand", "max": "bitor"}[op]
    name = f"{e.op}_of_{type_name(dtype)}"
    if e.a.dtype.is_half:
        name = f"{e.op}_of_{dtype.row.short}x{dtype.lanes}"
    total = call(w.helper(name, lambda: _reduction(w, name, op, dtype)), x)
    return infix("!=", total, "0", 4) if e.a.dtype.is_bool else total


def _reduction(w: TextWriter, name: str, op: str, dtype: DType) -> str:
    lines, x, lanes = [], "x", dtype.lanes
    while lanes > 2:
        lanes //= 2
        half = dtype.with_lanes(lanes)
        whole = dtype.with_lanes(2 * lanes)
        low = lanes_of(w, [x, x], range(lanes), whole)
        high = lanes_of(w, [x, x], range(lanes, 2 * lanes), whole)
        t = w.type(half)
        lines += [f"const {t} low{lanes} = {low};", f"const {t} high{lanes} = {high};"]
        x = f"x{lanes}"
        combination = arithmetic.binary(w, op, f"low{lanes}", f"high{lanes}", half)
        lines.append(f"const {t} {x} = {combination};")
    a, b = (Code(w.dialect.lane.format(x=x, i=k)) for k in range(2))
    value = arithmetic.binary(w, op, a, b, dtype.element)
    return define(w, w.type(dtype.element), name, [(w.type(dtype), "x")], lines, value)


EXPRESSIONS: Expressions = {
    Broadcast: _broadcast,
    Ramp: _ramp,
    Shuffle: _shuffle,
    VectorReduce: _vector_reduce,
}
