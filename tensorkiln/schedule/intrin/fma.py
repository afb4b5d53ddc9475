"""Vector times scalar plus vector, the update of one row of a register tile."""

from __future__ import annotations

from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import Broadcast, IntImm, Ramp, Var, const, intrin
from tensorkiln.ir.stmt import For, Store
from tensorkiln.schedule.primitives.instruction import Instruction, typed_name

LANES = (4, 8, 16)


def fma_row(lanes: int, dtype: str = "float32") -> Instruction:
    """acc[l] += a[0] * b[l] for every lane l, as one fused multiply-add."""
    a, b = buffer("a", (1,), dtype), buffer("b", (lanes,), dtype)
    acc = buffer("acc", (lanes,), dtype)
    lane, zero = Var("l"), IntImm(0)
    product = Load(a, (zero,)) * Load(b, (lane,))
    update = Store(acc, (lane,), Load(acc, (lane,)) + product)
    loop = For(lane, zero, const(lanes), "serial", update)
    all_lanes = (Ramp(zero, IntImm(1), lanes),)
    wide = Broadcast(Load(a, (zero,)), lanes)
    value = intrin("fma", wide, Load(b, all_lanes), Load(acc, all_lanes))
    name = typed_name(f"fma_{lanes}", dtype)
    return Instruction.of(name, (a, b, acc), loop, Store(acc, all_lanes, value))


FMA_ROWS = tuple(fma_row(lanes) for lanes in LANES)
