"""Instructions of a device's threads, from the table in `ir/device_instructions.py`, and copies of
vectors, which every code generator has."""

from __future__ import annotations

import re
from collections.abc import Callable

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.device_instructions import DEVICE_INSTRUCTIONS, SUBGROUP
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
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


def thread_fma(lanes: int) -> Instruction:
    """acc[l] += a[l] * b[l] for every lane l, each rounded once."""
    a, b, acc = (buffer(n, (lanes,), "float32") for n in ("a", "b", "acc"))
    lane = Var("l")
    index = (lane,)
    step = Store(acc, index, Load(acc, index) + Load(a, index) * Load(b, index))
    vectors = (Load(x, _all(lanes)) for x in (a, b, acc))
    code = Store(acc, _all(lanes), intrin("thread_fma", *vectors))
    return Instruction.of(f"thread_fma_{lanes}", (a, b, acc), _loop(lane, lanes, step), code)


def thread_dot4() -> Instruction:
    """c[0] += a[k] * b[k] for k < 4, in int8; c is int32."""
    a, b, c = buffer("a", (4,), "int8"), buffer("b", (4,), "int8"), buffer("c", (1,), "int32")
    k, first = Var("k"), (_ZERO,)
    product = cast(Load(a, (k,)), "int32") * cast(Load(b, (k,)), "int32")
    step = Store(c, first, Load(c, first) + product)
    total = intrin("thread_dot4", Load(c, first), Load(a, _all(4)), Load(b, _all(4)))
    return Instruction.of("thread_dot4", (a, b, c), _loop(k, 4, step), Store(c, first, total))


def thread_load_half(lanes: int) -> Instruction:
    """b[l] = float32(a[l]) for every lane l, where a is float16 in memory."""
    a, b = buffer("a", (lanes,), "float16"), buffer("b", (lanes,), "float32")
    lane, memory = Var("l"), {0: DEVICE_INSTRUCTIONS["thread_load_half"].memory[0]}
    step = Store(b, (lane,), cast(Load(a, (lane,)), "float32"))
    code = Store(b, _all(lanes), intrin("thread_load_half", Load(a, _all(lanes))))
    name = f"thread_load_half_{lanes}"
    return Instruction.of(name, (a, b), _loop(lane, lanes, step), code, memory)


def thread_round_tf32(lanes: int) -> Instruction:
    """b[l] = a[l] rounded to 11 significant bits, for every lane l."""
    a, b = buffer("a", (lanes,), "float32"), buffer("b", (lanes,), "float32")
    lane = Var("l")
    step = Store(b, (lane,), intrin("thread_round_tf32", Load(a, (lane,))))
    code = Store(b, _all(lanes), intrin("thread_round_tf32", Load(a, _all(lanes))))
    name = f"thread_round_tf32_{lanes}"
    return Instruction.of(name, (a, b), _loop(lane, lanes, step), code)


def thread_exp2(lanes: int) -> Instruction:
    """b[l] = 2 to the power a[l], within 2^-22 of it, for every lane l."""
    a, b = buffer("a", (lanes,), "float32"), buffer("b", (lanes,), "float32")
    lane = Var("l")
    step = Store(b, (lane,), intrin("thread_exp2", Load(a, (lane,))))
    code = Store(b, _all(lanes), intrin("thread_exp2", Load(a, _all(lanes))))
    return Instruction.of(f"thread_exp2_{lanes}", (a, b), _loop(lane, lanes, step), code)


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


_OF_THREADS: dict[str, Callable[[int], Instruction]] = {
    "thread_exp2": thread_exp2,
    "thread_fma": thread_fma,
    "thread_load_half": thread_load_half,
    "thread_round_tf32": thread_round_tf32,
}


def device_named(name: str) -> Instruction | None:
    """The instruction called `name`: `thread_fma_4`, `copy_8_int8_to_shared`, `subgroup_sum_32`;
    None for a name of another form, or a count or type that no row of the table has."""
    if name == "thread_dot4":
        return thread_dot4()
    if match := re.fullmatch(r"(thread_\w+)_(\d+)", name):
        make, count = _OF_THREADS.get(match[1]), int(match[2])
        return make(count) if make and count in _COUNTS and name == f"{match[1]}_{count}" else None
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


__all__ = [
    "SUBGROUP",
    "copy_vector",
    "device_named",
    "subgroup_reduce",
    "thread_dot4",
    "thread_exp2",
    "thread_fma",
    "thread_load_half",
    "thread_round_tf32",
]
