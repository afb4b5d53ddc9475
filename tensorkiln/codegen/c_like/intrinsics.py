"""`Intrin`: multiply-adds, dot products, instructions of devices, elementary functions."""

from __future__ import annotations

from tensorkiln.codegen.c_like.code import COMPARISON, PRODUCT, SUM, Code, call, infix
from tensorkiln.codegen.c_like.conversions import convert, function_of
from tensorkiln.codegen.c_like.device_instructions import device_instruction
from tensorkiln.codegen.c_like.dot import dot
from tensorkiln.codegen.c_like.remainder import remainder
from tensorkiln.codegen.c_like.types import cast_bits, test_of
from tensorkiln.codegen.c_like.writer import Expressions, TextWriter
from tensorkiln.codegen.expand.math import expand
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import BITCASTS, DEVICE_INSTRUCTIONS, DOTS, Intrin


def _intrin(w: TextWriter, e: Intrin) -> str:
    if e.name in DEVICE_INSTRUCTIONS:
        return device_instruction(w, e)
    args, dtype = [w.value(a) for a in e.args], e.args[0].dtype
    if e.name in DOTS:
        return dot(w, e.name, args, dtype.lanes)
    if e.name == "fma":
        return _multiply_add(w, args, dtype)
    if e.name == "isnan":
        return _isnan(w, args[0], dtype)
    if e.name == "fmod":
        return _fmod(w, args, dtype)
    if e.name in BITCASTS:
        return cast_bits(w, args[0], dtype, DType(BITCASTS[e.name][1], dtype.lanes))
    count = w.count(dtype)
    name = f"{e.name}_{dtype.row.short}" + (f"x{count}" if count > 1 else "")

    def make() -> str:
        parameters, lets, answer = expand(e.name, dtype.with_lanes(count), w.dialect.reassociates)
        return function_of(w, name, parameters, lets, answer)

    return call(w.helper(name, make), *args)


def _multiply_add(w: TextWriter, args: list[str], dtype: DType) -> str:
    """a * b + c, which a compiler may make one operation, as LLVM's may."""
    if dtype.bits == 16:
        wide = DType("float32", dtype.lanes)
        a, b, c = (convert(w, x, dtype, wide) for x in args)
        return convert(w, infix("+", infix("*", a, b, PRODUCT), c, SUM), wide, dtype)
    return infix("+", infix("*", args[0], args[1], PRODUCT), args[2], SUM)


def _fmod(w: TextWriter, args: list[str], dtype: DType) -> str:
    if dtype.bits > 16:
        return remainder(w, args[0], args[1], dtype)
    wide = DType("float32", dtype.lanes)
    x, y = (convert(w, a, dtype, wide) for a in args)
    return convert(w, remainder(w, x, y, wide), wide, dtype)


def _isnan(w: TextWriter, x: str, dtype: DType) -> str:
    if dtype.bits == 16:
        wide = DType("float32", dtype.lanes)
        x, dtype = convert(w, x, dtype, wide), wide
    if not x.isidentifier():
        name = w.fresh()
        w.declare(w.type(dtype), name, x)
        x = name
    if w.dialect.isnan:
        return Code(w.dialect.isnan.format(x=x), COMPARISON)
    test = infix("!=", x, x, COMPARISON)
    return test if dtype.lanes == 1 else test_of(w, test, dtype.bits, dtype.lanes)


EXPRESSIONS: Expressions = {Intrin: _intrin}
