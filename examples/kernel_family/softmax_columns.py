"""A kernel family from another package: softmax over an axis that is not the last one.

    y[i, k, j] = exp(x[i, k, j] - top[i, j]) / total[i, j]

Such as the softmax over the classes of each pixel. Tensorkiln itself computes it in plain loops,
which compute the maximum and the sum again for each element. Here the lanes of a vector are
neighbours along j, so that top and total are one vector each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, const, int_value, intrin, maximum
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.ir.stmt import Alloc, PrimFunc, Stmt, Store, seq
from tensorkiln.kernels import Family, Knob, light
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.build import loop, nest
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target


def fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether shapes are known, and what follows the axis is whole vectors of float32."""
    x, shape = call.args[0].type, out.static_shape()
    axis = call.attrs.axis % out.ndim
    if shape is None or axis == out.ndim - 1 or out.dtype.name != "float32":
        return False
    plain = isinstance(x, TensorType) and x.layout is None and out.layout is None
    return plain and shape[-1] % target.vector_lanes("float32") == 0


def knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    """How many elements along the axis are computed in a round of a loop."""
    terms = int_value(out.shape[call.attrs.axis % out.ndim])
    values = tuple(n for n in (1, 2, 4) if n == 1 or n <= terms)
    return (Knob("terms", values, untuned=1, doc="elements of the axis in a round"),)


def program(group: Group, lanes: int) -> PrimFunc:
    """for i, j: the maximum, exponentials and their sum, and the division, in vectors along j."""
    call, out = group.anchor, group.out_type
    axis = call.attrs.axis % out.ndim
    steps = [int_value(n) for n in out.shape]
    steps[-1] //= lanes
    terms = steps.pop(axis)
    top, total = (buffer(name, (lanes,), out.dtype, "local") for name in ("top", "total"))
    x = group.element(call.args[0])

    def vector(*index: Expr) -> Stmt:
        def at(k: Expr, lane: Expr) -> tuple[Expr, ...]:
            whole = [*index[:axis], k, *index[axis:]]
            return (*whole[:-1], whole[-1] * lanes + lane)

        def value(k: Expr, lane: Expr) -> Expr:
            return simplify_value(x(*at(k, lane)), {})

        def element(k: Expr, lane: Expr) -> tuple[Expr, ...]:
            return group.store_index(at(k, lane))

        def start(b: Buffer, number: float) -> Stmt:
            return loop("l", lanes, lambda i: Store(b, (i,), const(number, out.dtype)), "lane")

        def highest(k: Expr, lane: Expr) -> Stmt:
            return Store(top, (lane,), maximum(Load(top, (lane,)), value(k, lane)))

        def exponential(k: Expr, lane: Expr) -> Stmt:
            e = intrin("exp", value(k, lane) - Load(top, (lane,)))
            return Store(group.out, element(k, lane), e)

        def add(k: Expr, lane: Expr) -> Stmt:
            e = Load(group.out, element(k, lane))
            return Store(total, (lane,), Load(total, (lane,)) + e)

        def divide(k: Expr, lane: Expr) -> Stmt:
            e = Load(group.out, element(k, lane))
            return Store(group.out, element(k, lane), e / Load(total, (lane,)))

        def passes(*bodies: Callable[[Expr, Expr], Stmt]) -> Stmt:
            return loop("k", terms, lambda k: seq(*map(partial(lane_loop, k), bodies)), "term")

        def lane_loop(k: Expr, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
            return loop("l", lanes, partial(body, k), "lane")

        maxima = seq(start(top, float("-inf")), passes(highest))
        sums = seq(start(total, 0), passes(exponential, add))
        return Alloc(top, Alloc(total, seq(maxima, sums, passes(divide))))

    names = [f"i{d}" for d in range(len(steps))]
    body = nest(names, steps, vector, ["task"] * len(steps))
    return PrimFunc(group.name, group.params, body)


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """Vectors in registers; threads share what is left when there is enough of it."""
    lanes = target.vector_lanes("float32")
    s = Schedule(program(group, lanes), check)
    if (terms := group.knob("terms")) > 1:
        for name in s.loops(role="term"):
            s.unroll(s.split(name, terms, tail="peel").inner)
    for name in s.loops(role="lane"):
        s.vectorize(name)
    for name in ("top", "total"):
        s.set_scope(name, "register")
    around = s.loops(role="task")
    if around and prod(int_value(n) for n in group.out_type.shape) > 4096:
        s.parallel(s.fuse(*around) if len(around) > 1 else around[0])
    return s


FAMILY = Family(
    op_class="softmax_columns",
    operators=("softmax",),
    schedule="softmax_columns:schedule",
    fits=fits,
    prologue=light,
    knobs=knobs,
)
