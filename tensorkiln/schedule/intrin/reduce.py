"""Add up the lanes of a vector, or find the largest or smallest of them."""

from __future__ import annotations

import re

from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import REDUCE_BINARY, IntImm, Ramp, Var, VectorReduce, binary, const
from tensorkiln.ir.stmt import For, PrimFunc, Store
from tensorkiln.schedule.primitives.instruction import Instruction

DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)


def reduce_lanes(op: str, lanes: int, dtype: str = "float32") -> Instruction:
    """c[0] = op of c[0] and all a[l], for `op` sum, max, min or prod. The lanes are reduced as a
    tree: the upper half is combined with the lower half until one lane is left."""
    a, c = buffer("a", (lanes,), dtype), buffer("c", (1,), dtype)
    lane, zero = Var("l"), (IntImm(0),)
    step = Store(c, zero, binary(REDUCE_BINARY[op], Load(c, zero), Load(a, (lane,))))
    vector = Load(a, (Ramp(IntImm(0), IntImm(1), lanes),))
    total = binary(REDUCE_BINARY[op], Load(c, zero), VectorReduce(op, vector))
    params = (a, c)
    name = reduce_name(op, lanes, dtype)
    return Instruction(
        name,
        PrimFunc(name, params, For(lane, IntImm(0), const(lanes), "serial", step)),
        PrimFunc(name, params, Store(c, zero, total)),
    )


def reduce_name(op: str, lanes: int, dtype: str) -> str:
    """The instruction's name: `sum_16`, `max_8_float64`."""
    return f"{op}_{lanes}" if dtype == "float32" else f"{op}_{lanes}_{dtype}"


def reduce_named(name: str) -> Instruction | None:
    """The instruction called `name`; None for a name of another form, an unknown dtype, or lanes
    that are not a power of two above 1."""
    found = re.fullmatch(r"(sum|max|min|prod)_(\d+)(?:_(\w+))?", name)
    if found is None:
        return None
    op, lanes, dtype = found[1], int(found[2]), found[3] or "float32"
    whole = lanes > 1 and lanes & (lanes - 1) == 0
    if not whole or dtype not in DTYPES or name != reduce_name(op, lanes, dtype):
        return None
    return reduce_lanes(op, lanes, dtype)
