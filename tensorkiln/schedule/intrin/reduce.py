"""Add up the lanes of a vector, or find the largest or smallest of them."""

from __future__ import annotations

import re

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import REDUCE_BINARY, IntImm, Ramp, Var, VectorReduce, binary, const
from tensorkiln.ir.stmt import For, Store
from tensorkiln.schedule.primitives.instruction import Instruction, typed_name

NUMBERS = tuple(t.name for t in PROGRAM_TYPES.values() if t.is_float or t.is_integer)


def reduce_lanes(op: str, lanes: int, dtype: str = "float32") -> Instruction:
    """c[0] = op of c[0] and all a[l], for `op` sum, max, min or prod. The lanes are reduced as a
    tree: the upper half is combined with the lower half until one lane is left."""
    a, c = buffer("a", (lanes,), dtype), buffer("c", (1,), dtype)
    lane, zero = Var("l"), (IntImm(0),)
    step = Store(c, zero, binary(REDUCE_BINARY[op], Load(c, zero), Load(a, (lane,))))
    vector = Load(a, (Ramp(IntImm(0), IntImm(1), lanes),))
    total = binary(REDUCE_BINARY[op], Load(c, zero), VectorReduce(op, vector))
    loop = For(lane, IntImm(0), const(lanes), "serial", step)
    return Instruction.of(reduce_name(op, lanes, dtype), (a, c), loop, Store(c, zero, total))


def reduce_name(op: str, lanes: int, dtype: str) -> str:
    """The instruction's name: `sum_16`, `max_8_float64`."""
    return typed_name(f"{op}_{lanes}", dtype)


def reduce_named(name: str) -> Instruction | None:
    """The instruction called `name`; None for a name of another form, an unknown dtype, or lanes
    that are not a power of two above 1."""
    match = re.fullmatch(r"(sum|max|min|prod)_(\d+)(?:_(\w+))?", name)
    if match is None:
        return None
    op, lanes, dtype = match[1], int(match[2]), match[3] or "float32"
    whole = lanes > 1 and lanes & (lanes - 1) == 0
    if not whole or dtype not in NUMBERS or name != reduce_name(op, lanes, dtype):
        return None
    return reduce_lanes(op, lanes, dtype)
