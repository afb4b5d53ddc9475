"""Instructions of a device's threads, from the table in `ir/device_instructions.py`, and copies of
vectors, which every code generator has."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.device_instructions import DEVICE_INSTRUCTIONS, DeviceInstruction
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Expr,
    IntImm,
    Ramp,
    Var,
    binary,
    cast,
    const,
    intrin,
)
from tensorkiln.ir.stmt import THREAD_INDICES, For, If, Let, Stmt, Store
from tensorkiln.schedule.intrin.reduce import NUMBERS
from tensorkiln.schedule.primitives.instruction import Instruction, typed_name

_ZERO = IntImm(0)
_COUNTS = (2, 4, 8, 16)


def _loop(lane: Var, count: int, body: Stmt) -> For:
    return For(lane, _ZERO, const(count), "serial", body)


def _all(lanes: int) -> tuple[Ramp]:
    return (Ramp(_ZERO, IntImm(1), lanes),)


# What an instruction computes in each lane, where other operations say it; any other is its own.
_LANES: dict[str, Callable[..., Expr]] = {
    "thread_fma": lambda a, b, acc: acc + a * b,
    "thread_load_half": lambda a: cast(a, "float32"),
}


def of_lanes(row: DeviceInstruction, signature: tuple[DType, ...]) -> Instruction:
    """b[l] = the instruction of a[l] for every lane l, or c[l] = that of a[l] and b[l]; with three
    operands, acc[l] = that of a[l], b[l] and acc[l]."""
    lanes = signature[0].lanes
    names = ("a", "b", "acc") if row.arity == 3 else "abc"[: row.arity + 1]
    types = signature[1:] if row.arity == 3 else (*signature[1:], signature[0])
    buffers = tuple(buffer(n, (lanes,), t.element) for n, t in zip(names, types, strict=True))
    operands, result, lane = buffers[: row.arity], buffers[-1], Var("l")
    in_lane = _LANES.get(row.name, partial(intrin, row.name))
    step = Store(result, (lane,), in_lane(*(Load(x, (lane,)) for x in operands)))
    vectors = (Load(x, _all(lanes)) for x in operands)
    code = Store(result, _all(lanes), intrin(row.name, *vectors))
    name = f"{row.name}_{lanes}"
    return Instruction.of(name, buffers, _loop(lane, lanes, step), code, row.memory)


def _in_lanes(name: str) -> Instruction | None:
    """The instruction `thread_fma_4`: that of the table for 4 lanes."""
    row = DEVICE_INSTRUCTIONS.get(name.rpartition("_")[0])
    for signature in row.signatures if row is not None else ():
        if row is not None and name == f"{row.name}_{signature[0].lanes}" != f"{row.name}_1":
            return of_lanes(row, signature)
    return None


def thread_dot4() -> Instruction:
    """c[0] += a[k] * b[k] for k < 4, in int8; c is int32."""
    a, b, c = buffer("a", (4,), "int8"), buffer("b", (4,), "int8"), buffer("c", (1,), "int32")
    k, first = Var("k"), (_ZERO,)
    product = cast(Load(a, (k,)), "int32") * cast(Load(b, (k,)), "int32")
    step = Store(c, first, Load(c, first) + product)
    total = intrin("thread_dot4", Load(c, first), Load(a, _all(4)), Load(b, _all(4)))
    return Instruction.of("thread_dot4", (a, b, c), _loop(k, 4, step), Store(c, first, total))


def copy_vector(lanes: int, dtype: str = "float32", into: str = "") -> Instruction:
    """b[l] = a[l] for every lane l, as one load and one store; b is in memory of scope `into`, ""
    for any."""
    a, b = buffer("a", (lanes,), dtype), buffer("b", (lanes,), dtype)
    lane = Var("l")
    step, memory = Store(b, (lane,), Load(a, (lane,))), {1: (into,)} if into else {}
    code = Store(b, _all(lanes), Load(a, _all(lanes)))
    name = typed_name(f"copy_{lanes}", dtype) + (f"_to_{into}" if into else "")
    return Instruction.of(name, (a, b), _loop(lane, lanes, step), code, memory)


def subgroup_reduce(op: str, threads: int, dtype: str = "float32") -> Instruction:
    """c[0] = op of c[0] and all a[t], where thread t of a sub-group holds a[t], for `op` sum, max
    or min. Thread 0 writes c, which threads share."""
    row = DEVICE_INSTRUCTIONS[f"subgroup_{op}"]
    a, c = buffer("a", (threads,), dtype), buffer("c", (1,), dtype)
    lane, t, first = Var("l"), Var("t"), (_ZERO,)

    step = Store(c, first, binary(REDUCE_BINARY[op], Load(c, first), Load(a, (lane,))))
    value = intrin(row.name, Load(a, (t,)), const(threads))
    reduction = Var("found", value.dtype)
    store = Store(c, first, binary(REDUCE_BINARY[op], Load(c, first), reduction))
    update = Let(reduction, value, If(binary("eq", t, 0), store))
    code = For(t, _ZERO, const(threads), "thread", update, Attrs.of(thread=THREAD_INDICES[0]))
    name, memory = typed_name(f"{row.name}_{threads}", dtype), {1: ("shared", "global")}
    loop = _loop(lane, threads, step)
    return Instruction.of(name, (a, c), loop, code, memory, row.participants, threads)


def device_named(name: str) -> Instruction | None:
    """The instruction called `name`: `thread_fma_4`, `copy_8_int8_to_shared`, `subgroup_sum_32`;
    None for a name of another form, or a count or type that no row of the table has."""
    if name == "thread_dot4":
        return thread_dot4()
    if name.startswith("thread_"):
        return _in_lanes(name)
    if match := re.fullmatch(
        r"copy_(\d+)(?:_(\w+?))??(?:_to_(shared|local|register|global))?", name
    ):
        count, dtype = int(match[1]), match[2] or "float32"
        if count not in _COUNTS or dtype not in NUMBERS:
            return None
        instruction = copy_vector(count, dtype, match[3] or "")
        return instruction if instruction.name == name else None
    if match := re.fullmatch(r"subgroup_(sum|max|min)_(\d+)(?:_(\w+))?", name):
        op, count, dtype = match[1], int(match[2]), match[3] or "float32"
        types = {s[0].name for s in DEVICE_INSTRUCTIONS[f"subgroup_{op}"].signatures}
        if dtype not in types or count not in (1 << k for k in range(1, 8)):
            return None
        return subgroup_reduce(op, count, dtype)
    return None


__all__ = ["copy_vector", "device_named", "of_lanes", "subgroup_reduce", "thread_dot4"]
