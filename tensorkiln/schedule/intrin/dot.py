"""Dot products of two or four narrow numbers, accumulated in 32 bits, and products of pairs of
float32, each of which has a sum of its own."""

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
    small = name == "dot4_small"
    return Instruction(dot_name(left_type, lanes, count, small), template, implementation)


def dot_by_lane(name: str, lanes: int) -> Instruction:
    """acc[l] += a[count*l + k] * b[count*l + k] for k < count in each lane l, as one of `DOTS`."""
    (sums, _), (left_type, count), (right_type, _) = DOTS[name]
    a, b = (buffer(n, (count * lanes,), t) for n, t in (("a", left_type), ("b", right_type)))
    acc = buffer("acc", (lanes,), sums)
    lane, k, zero = Var("l"), Var("k"), IntImm(0)
    place, total = (lane * count + k,), Load(acc, (lane,))
    step = total + cast(Load(a, place), acc.dtype) * cast(Load(b, place), acc.dtype)
    terms = For(k, zero, const(count), "serial", Store(acc, (lane,), step))
    nest = For(lane, zero, const(lanes), "serial", terms)
    all_lanes, all_bytes = ((Ramp(zero, IntImm(1), n),) for n in (lanes, count * lanes))
    value = intrin(name, Load(acc, all_lanes), Load(a, all_bytes), Load(b, all_bytes))
    full = dot_name(left_type, lanes, count, name == "dot4_small", by_lane=True)
    return Instruction.of(full, (a, b, acc), nest, Store(acc, all_lanes, value))


_OPERANDS = {"uint8": "u8i8", "int16": "i16", "bfloat16": "bf16"}


def dot_name(
    left_type: str, lanes: int, count: int, small: bool = False, by_lane: bool = False
) -> str:
    """The name of `dot_lanes` for `tensorize`, by the type of its left operand: `dot4_16_u8i8`,
    `dot2_8_i16`, `dot2_8_bf16`; `dot4_small_16_u8i8` where the right one is `small`. `by_lane`: of
    `dot_by_lane`, `dot4_16_u8i8_by_lane`."""
    return f"dot{count}{'_small' * small}_{lanes}_{_OPERANDS[left_type]}{'_by_lane' * by_lane}"


def pair_products(lanes: int) -> Instruction:
    """acc[2*l + b] += a[b] * w[2*l + b] for b < 2 and every pair l of `lanes` lanes: the first
    products of all pairs have sums of their own, and so have the second ones."""
    a, w, acc = (buffer(n, (m,), "float32") for n, m in (("a", 2), ("w", lanes), ("acc", lanes)))
    pair, b, zero = Var("l"), Var("b"), IntImm(0)
    lane = pair * 2 + b
    step = intrin("fma", Load(a, (b,)), Load(w, (lane,)), Load(acc, (lane,)))
    terms = For(b, zero, const(2), "serial", Store(acc, (lane,), step))
    nest = For(pair, zero, const(lanes // 2), "serial", terms)
    two, all_lanes = Load(a, (Ramp(zero, IntImm(1), 2),)), (Ramp(zero, IntImm(1), lanes),)
    repeated = Shuffle(two, two, (0, 1) * (lanes // 2))
    value = intrin("fma", repeated, Load(w, all_lanes), Load(acc, all_lanes))
    return Instruction.of(f"pair_products_{lanes}", (a, w, acc), nest, Store(acc, all_lanes, value))


def pair_sums(lanes: int, starts: bool = False) -> Instruction:
    """c[l] += p[2*l] + p[2*l + 1] for every lane l, of two vectors p: what `pair_products` sums
    joins a total, or starts one (c[l] = ..., `pair_totals`)."""
    p, c = buffer("p", (2, lanes), "float32"), buffer("c", (lanes,), "float32")
    half, pair, zero = Var("h"), Var("l"), IntImm(0)
    lane = half * (lanes // 2) + pair
    first, second = (Load(p, (half, pair * 2 + b)) for b in range(2))
    step = Store(c, (lane,), first + second if starts else Load(c, (lane,)) + (first + second))
    pairs = For(pair, zero, const(lanes // 2), "serial", step)
    nest = For(half, zero, const(2), "serial", pairs)
    all_lanes = Ramp(zero, IntImm(1), lanes)
    low, high = (Load(p, (const(h), all_lanes)) for h in range(2))
    even, odd = (Shuffle(low, high, tuple(range(b, 2 * lanes, 2))) for b in range(2))
    total = even + odd if starts else Load(c, (all_lanes,)) + (even + odd)
    name = f"pair_{'totals' if starts else 'sums'}_{lanes}"
    return Instruction.of(name, (p, c), nest, Store(c, (all_lanes,), total))


PAIRS = tuple(
    i for n in (4, 8, 16) for i in (pair_products(n), pair_sums(n), pair_sums(n, starts=True))
)
DOT4_I8 = dot4()
DOT4_ROW_I8 = dot4_row()
DOT_LANES = tuple(dot_lanes(name, lanes) for name in DOTS for lanes in (4, 8, 16)) + tuple(
    dot_by_lane(name, lanes) for name in ("dot4", "dot4_small") for lanes in (4, 8, 16)
)
