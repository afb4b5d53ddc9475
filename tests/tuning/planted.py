"""A kernel family with a knob whose values make every kind of bad kernel, as another package."""

from __future__ import annotations

from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Expr, IntImm, int_value, intrin
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.kernels import Family
from tensorkiln.kernels.knobs import Knob
from tensorkiln.schedule.build import loop
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target

SLOW, FAST, WRONG, PART, ENDLESS, CRASH, OUTSIDE, RAISES = range(8)
REPEATS = 40


def fits(call: Call, out: TensorType, target: Target) -> bool:
    shape = out.static_shape()
    return shape is not None and len(shape) == 1 and out.layout is None


def program(group: Group, variant: int) -> PrimFunc:
    """out[i] = exp(x[i]), or what `variant` says."""
    x, out = group.element(group.main.args[0]), group.out
    n = int_value(out.shape[0])

    def store(i: Expr) -> Stmt:
        return Store(out, (i,), intrin("exp", x(i)))

    def whole(extent: int = n) -> Stmt:
        return loop("i", extent, store, "lane")

    def sums(_: Expr) -> Stmt:
        return Store(out, (IntImm(0),), Load(out, (IntImm(0),)) + x(IntImm(0)))

    body = whole(n - 1 if variant == PART else n)
    if variant == SLOW:
        body = seq(*(whole() for _ in range(REPEATS)))
    elif variant == WRONG:
        body = loop("i", n, lambda i: Store(out, (i,), intrin("exp", x(i)) * 1.5), "lane")
    elif variant == ENDLESS:
        body = seq(body, loop("e", 1 << 60, sums, "term"))
    elif variant == CRASH:
        body = seq(body, Store(out, (IntImm(1 << 40),), x(IntImm(0))))
    elif variant == OUTSIDE:
        body = seq(body, Store(out, (IntImm(n + 5),), x(IntImm(0))))
    return PrimFunc(group.name, group.params, body)


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    variant = group.knob("way")
    if variant == RAISES:
        raise RuntimeError("no such way")
    return Schedule(program(group, variant), check)


def knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    return (Knob("way", tuple(range(8)), SLOW, "what the kernel does"),)


FAMILY = Family(
    op_class="planted",
    operators=("exp",),
    schedule="planted:schedule",
    fits=fits,
    knobs=knobs,
)
