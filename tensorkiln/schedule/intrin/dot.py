"""Dot products of two or four narrow numbers, accumulated in 32 bits."""

from __future__ import annotations

from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    DOTS,
    Broadcast,
    Expr,
    IntImm,
    Ramp,
    Shuffle,
    Var,
    VectorReduce,
    binary,
    cast,
    const,
    intrin,
)
from tensorkiln.ir.stmt import For, PrimFunc, Store, seq
from tensorkiln.schedule.primitives.instruction import Instruction

_INT32 = DType("int32")
ROW = 16


def _wide(e: Expr) -> Expr:
    return cast(e, _INT32)


def dot4(name: str = "dot4_i8", dtype: str = "int8") -> Instruction:
    """c[0] += a[k] * b[k] for k < 4, as one product of vectors and the sum of its lanes."""
    a, b, c = buffer("a", (4,), dtype), buffer("b", (4,), dtype), buffer("c", (1,), "int32")
    k, zero = Var("k"), (IntImm(0),)
    product = _wide(Load(a, (k,))) * _wide(Load(b, (k,)))
    step = Store(c, zero, Load(c, zero) + product)
    four = (Ramp(IntImm(0), IntImm(1), 4),)
    products = binary("mul", _wide(Load(a, four)), _wide(Load(b, four)))
    total = Load(c, zero) + VectorReduce("add", products)
    loop = For(k, IntImm(0), const(4), "serial", step)
    return Instruction.of(name, (a, b, c), loop, Store(c, zero, total))


def dot4_row(name: str = "dot4_16_i8", dtype: str = "int8") -> Instruction:
    """acc[l] += a[k] * b[l, k] for k < 4 in each of 16 lanes l."""
    a, b = buffer("a", (4,), dtype), buffer("b", (ROW, 4), dtype)
    acc = buffer("acc", (ROW,), "int32")
    lane, k = Var("l"), Var("k")
    product = _wide(Load(a, (k,))) * _wide(Load(b, (lane, k)))
    step = Store(acc, (lane,), Load(acc, (lane,)) + product)
    nest = For(lane, IntImm(0), const(ROW), "serial", For(k, IntImm(0), const(4), "serial", step))
    lanes = (Ramp(IntImm(0), IntImm(1), ROW),)

    def add(n: int) -> Store:
        x = Broadcast(_wide(Load(a, (const(n),))), ROW)
        y = _wide(Load(b, (lanes[0], const(n))))
        return Store(acc, lanes, Load(acc, lanes) + binary("mul", x, y))

    return Instruction.of(name, (a, b, acc), nest, seq(*map(add, range(4))))


def dot_lanes(name: str, lanes: int) -> Instruction:
    """acc[l] += a[k] * b[count*l + k] for k < count in each lane l, as one of `DOTS`."""
    (sums, _), (left_type, count), (right_type, _) = DOTS[name]
    a, b = buffer("a", (count,), left_type), buffer("b", (count * lanes,), right_type)
    acc = buffer("acc", (lanes,), sums)
    lane, k, zero = Var("l"), Var("k"), IntImm(0)
    x, y, total = Load(a, (k,)), Load(b, (lane * count + k,)), Load(acc, (lane,))
    wide = cast(x, acc.dtype), cast(y, acc.dtype)
    step = intrin("fma", *wide, total) if acc.dtype.is_float else total + wide[0] * wide[1]
    terms = For(k, zero, const(count), "serial", Store(acc, (lane,), step))
    few, all_lanes = Load(a, (Ramp(zero, IntImm(1), count),)), (Ramp(zero, IntImm(1), lanes),)
    repeated = Shuffle(few, few, tuple(range(count)) * lanes)
    weights = Load(b, (Ramp(zero, IntImm(1), count * lanes),))
    value = intrin(name, Load(acc, all_lanes), repeated, weights)
    nest, code = For(lane, zero, const(lanes), "serial", terms), Store(acc, all_lanes, value)
    template, implementation = (PrimFunc(name, (a, b, acc), s) for s in (nest, code))
    return Instruction(dot_name(left_type, lanes, count), template, implementation)


_OPERANDS = {"uint8": "u8i8", "int16": "i16", "bfloat16": "bf16"}


def dot_name(left_type: str, lanes: int, count: int) -> str:
    """The name of `dot_lanes` for `tensorize`, by the type of its left operand: `dot4_16_u8i8`,
    `dot2_8_i16`, `dot2_8_bf16`."""
    return f"dot{count}_{lanes}_{_OPERANDS[left_type]}"


DOT4_I8 = dot4()
DOT4_ROW_I8 = dot4_row()
DOT_LANES = tuple(dot_lanes(name, lanes) for name in DOTS for lanes in (4, 8, 16))
