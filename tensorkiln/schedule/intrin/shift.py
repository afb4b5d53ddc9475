"""Vector shifts: the vector that begins inside one vector and ends in the next."""

from __future__ import annotations

import re

from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import IntImm, Ramp, Shuffle, Var, const
from tensorkiln.ir.stmt import For, Store
from tensorkiln.schedule.intrin.reduce import NUMBERS
from tensorkiln.schedule.primitives.instruction import Instruction, typed_name


def shift(by: int, lanes: int, dtype: str = "float32") -> Instruction:
    """c[l] = element l + by of the concatenation of the vectors a[0] and a[1]."""
    a, c = buffer("a", (2, lanes), dtype), buffer("c", (lanes,), dtype)
    lane, all_lanes = Var("l"), Ramp(IntImm(0), IntImm(1), lanes)
    position = lane + by
    step = Store(c, (lane,), Load(a, (position // lanes, position % lanes)))
    first, second = (Load(a, (const(k), all_lanes)) for k in range(2))
    value = Shuffle(first, second, tuple(range(by, by + lanes)))
    loop = For(lane, IntImm(0), const(lanes), "serial", step)
    code = Store(c, (all_lanes,), value)
    return Instruction.of(shift_name(by, lanes, dtype), (a, c), loop, code)


def shift_name(by: int, lanes: int, dtype: str) -> str:
    """The instruction's name: `shift_3_16`, `shift_1_8_float64`."""
    return typed_name(f"shift_{by}_{lanes}", dtype)


def shift_named(name: str) -> Instruction | None:
    """The instruction called `name`; None for a name of another form, an unknown dtype, or a shift
    by no or all lanes."""
    match = re.fullmatch(r"shift_(\d+)_(\d+)(?:_(\w+))?", name)
    if match is None:
        return None
    by, lanes, dtype = int(match[1]), int(match[2]), match[3] or "float32"
    valid = dtype in NUMBERS and 0 < by < lanes and name == shift_name(by, lanes, dtype)
    return shift(by, lanes, dtype) if valid else None
