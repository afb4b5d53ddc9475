"""Every legal value of every knob gives a kernel that computes what NumPy does in float64."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Call, Function, GlobalRef
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.kernels.case import Build, rand
from tensorkiln.kernels.folders import built_in_families
from tensorkiln.kernels.knobs import ATTRIBUTE, Knob
from tensorkiln.pipeline import relax_passes
from tensorkiln.schedule.choose import fitting, knobs_of, schedule_group
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target
from tests import processors
from tests.emulated.machine import Library, load
from tests.rotation import rows_in_turn
from tests.schedule.battery import Battery, arguments
from tests.schedule.groups import groups_of
from tests.schedule.test_policies_checked import CASES as POLICIES

ARM = {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
# Without FMA, with 16 registers of 4 floats; with FMA, of 8; 32 registers of 16; of Arm; of C.
TARGETS = {
    "v2": Target({"kind": "llvm", "mcpu": "x86-64-v2"}),
    "v3": Target({"kind": "llvm", "mcpu": "x86-64-v3"}),
    "v4": Target({"kind": "llvm", "mcpu": "x86-64-v4"}),
    "neon": Target({"kind": "llvm", **ARM}),
    "c": Target({"kind": "c", "mcpu": "x86-64-v3"}),
}
N, H = Var("N"), Var("H")


def _conv(filters: int, channels: int, *size: int, **attrs: object) -> Build:
    return lambda g, x: g.relu(g.conv2d(x, rand(filters, channels, *size), rand(filters), **attrs))


def _linear(k: int, n: int) -> Build:
    return lambda g, x: g.relu(g.linear(x, rand(k, n), rand(n)))


def _attention(causal: bool) -> Build:
    return lambda g, q, k, v: g.attention(q, k, v, scale=0.2, causal=causal)


def _window(op: str, channels: int, **attrs: object) -> Build:
    return lambda g, x: g.emit(op, g.conv2d(x, rand(channels, 3, 1, 1)), **attrs)


PADDED = {"padding": (1, 1, 1, 1)}
STRIDED = {"strides": (2, 2)}
# Sizes that no tile, vector, panel or block divides, those that are 1, and unknown ones.
CASES: dict[str, tuple[str, Build, tuple[tuple[int | Var, ...], ...]]] = {
    "linear": ("linear_packed", _linear(301, 70), ((37, 301),)),
    "linear_pairs": ("linear_packed", _linear(330, 70), ((37, 330),)),
    "linear_few": ("linear_packed", _linear(5, 33), ((1, 5),)),
    "linear_open": ("linear_packed", _linear(90, 40), ((N, 90),)),
    "matmul": ("matmul_packed", lambda g, x, y: g.matmul(x, y), ((2, 19, 75), (2, 75, 41))),
    "conv": ("conv2d_direct", _conv(40, 40, 3, 3, **PADDED, **STRIDED), ((1, 40, 9, 13),)),
    "conv_1x1": ("conv2d_direct", _conv(50, 90, 1, 1), ((2, 90, 5, 7),)),
    "conv_planar": ("conv2d_direct", _conv(33, 3, 7, 5, **STRIDED), ((1, 3, 19, 23),)),
    "conv_grouped": ("conv2d_direct", _conv(64, 8, 3, 3, groups=8), ((1, 64, 5, 6),)),
    "conv_open": ("conv2d_direct", _conv(24, 17, 3, 3, **PADDED, **STRIDED), ((1, 17, H, 11),)),
    "depthwise": ("conv2d_depthwise", _conv(19, 1, 3, 3, groups=19, **PADDED), ((1, 19, 9, 11),)),
    "depthwise_open": (
        "conv2d_depthwise",
        _conv(19, 1, 3, 3, groups=19, **PADDED),
        ((1, 19, H, 11),),
    ),
    "depthwise_5x5": (
        "conv2d_depthwise",
        _conv(17, 1, 5, 5, groups=17, **STRIDED),
        ((1, 17, 13, 12),),
    ),
    "winograd": ("conv2d_winograd", _conv(40, 40, 3, 3, **PADDED), ((1, 40, 21, 19),)),
    "winograd_open": ("conv2d_winograd", _conv(32, 32, 3, 3, **PADDED), ((1, 32, H, 17),)),
    "attention": ("attention_fused", _attention(False), ((1, 2, 13, 32),) * 3),
    "attention_long": (
        "attention_fused",
        _attention(True),
        ((1, 1, 11, 32), (1, 1, 300, 32), (1, 1, 300, 32)),
    ),
    "max_pool": (
        "pool_blocked",
        _window("max_pool2d", 20, kernel=(3, 3), **STRIDED, **PADDED),
        ((1, 3, 13, 29),),
    ),
    "avg_pool": ("pool_blocked", _window("avg_pool2d", 16, kernel=(2, 3)), ((1, 3, 5, 31),)),
    "softmax": ("softmax_rows", lambda g, x: g.softmax(x), ((3, 301),)),
    "layer_norm": (
        "layer_norm_rows",
        lambda g, x: g.layer_norm(x, rand(261), rand(261)),
        ((5, 261),),
    ),
    "sum": ("loops", lambda g, x: g.sum(x, axes=(1,)), ((9, 293),)),
}
# `make test` tries so many mixtures of values of each case, which have different ones of each knob
# while there are any; `make fuzz` so many more, and all values one by one.
MIXTURES = {"v2": 2, "v3": 1, "v4": 1, "neon": 1, "c": 1}
_MORE = 8


def test_every_family_with_knobs_has_a_case() -> None:
    assert {row.op_class for row in built_in_families() if row.knobs} == {
        case[0] for case in CASES.values()
    }


@dataclass(frozen=True)
class Variants:
    """A pass: each graph function again for each of its choices, with knobs of its own; `made` has
    the choices of these functions, by name."""

    target: Target
    mixtures: int
    singles: bool
    made: dict[str, dict[str, int]] = field(default_factory=dict)

    def __call__(self, mod: IRModule) -> IRModule:
        functions: list[AnyFunction] = []
        for f in mod.functions:
            functions.append(f)
            if not isinstance(f, Function) or f.is_primitive:
                continue
            kind = CASES[f.name][0]
            for n, (group, choice) in enumerate(self.choices(mod, f, kind)):
                own = replace(
                    group,
                    name=f"{group.name}_{f.name}_{n}",
                    attrs=Attrs.of(
                        **{
                            **group.attrs,
                            ATTRIBUTE: tuple((kind, k, v) for k, v in sorted(choice.items())),
                        }
                    ),
                )
                name = f"{f.name}_variant_{n}"
                self.made[name] = choice
                functions += [own, _calling(replace(f, name=name), group.name, own.name)]
        return mod.with_functions(tuple(functions))

    def choices(
        self, mod: IRModule, f: Function, kind: str
    ) -> Iterator[tuple[Function, dict[str, int]]]:
        """The group of a kernel class that a function calls, with choices for it."""
        group, knobs = _knobs(mod, f, kind, self.target)
        for k in knobs if self.singles else ():
            for value in k.values:
                if value != k.untuned:
                    yield group, {k.name: value}
        draw = random.Random(f"{f.name} {self.target}")
        orders = {k.name: draw.sample(k.values, len(k.values)) for k in knobs}
        for n in range(self.mixtures):
            yield group, {name: order[n % len(order)] for name, order in orders.items()}


def _calling(f: Function, old: str, new: str) -> Function:
    """A function that calls another one."""
    bindings = [
        replace(b, value=replace(b.value, callee=GlobalRef(new)))
        if isinstance(b.value, Call) and b.value.callee == GlobalRef(old)
        else b
        for b in f.bindings
    ]
    return replace(f, bindings=tuple(bindings))


def _knobs(
    mod: IRModule, f: Function, kind: str, target: Target
) -> tuple[Function, tuple[Knob, ...]]:
    for b in f.bindings:
        callee = mod[b.value.callee.name] if _calls(b.value) else None
        if isinstance(callee, Function):
            group = Group(callee, callee.name, target)
            family = next(fitting(group, target))
            if family.op_class == kind:
                return callee, knobs_of(family, group, target)
    raise AssertionError(f"{f.name}: no group of {kind}")


def _calls(value: object) -> bool:
    return isinstance(value, Call) and isinstance(value.callee, GlobalRef)


def battery(names: Iterable[str]) -> Battery:
    """The functions of cases."""
    b = Battery()
    for name in names:
        _, build, shapes = CASES[name]
        sizes = [{"N": n, "H": n} for n in (1, 23)] if {N, H} & set(shapes[0]) else [{}]
        b.add(name, build, *shapes, sizes=sizes, tolerance=2e-5)
    return b


@cache
def compiled(
    level: str, names: tuple[str, ...], more: bool
) -> tuple[Battery, Library, Mapping[str, dict[str, int]]]:
    """Cases with their variants in one library."""
    target = TARGETS[level]
    if target.arch != "aarch64":
        processors.require(target)
    b = battery(names)
    passes = relax_passes(target)
    at = next(i for i, p in enumerate(passes) if isinstance(p, LowerGroups))
    variants = Variants(target, MIXTURES[level] + _MORE * more, more)
    functions = tuple(c.function for c in b.cases.values())
    executable = tk.compile(
        IRModule(functions, "knobs"), target, relax_pipeline=[*passes[:at], variants, *passes[at:]]
    )
    return b, load(executable), variants.made


def check(level: str, name: str, names: tuple[str, ...], more: bool) -> None:
    """All variants of a case, of a library of several cases, with one thread and with three."""
    b, run, made = compiled(level, names, more)
    own = {v: choice for v, choice in made.items() if v.rpartition("_variant_")[0] == name}
    assert len(own) >= MIXTURES[level]
    case = b.cases[name]
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        (want,) = case.reference(inputs, sizes)
        for variant, choice in own.items():
            for threads in (1, 3):
                run.set_num_threads(threads)
                got = np.asarray(run[variant](*inputs.values()))
                case.compare(got, want, f"{name} {choice} {dict(sizes)}")


def _levels(names: Iterable[str]) -> list[object]:
    return [pytest.param(x, marks=[pytest.mark.emulated] * (x == "neon")) for x in names]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", _levels(rows_in_turn(TARGETS, family=lambda _: "")))
def test_values(level: str, name: str) -> None:
    check(level, name, tuple(CASES), more=False)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", _levels(TARGETS))
def test_all_values(level: str, name: str) -> None:
    check(level, name, (name,), more=True)


# -- proofs ------------------------------------------------------------------------------------


def with_choice(group: Group, kind: str, choice: Mapping[str, int]) -> Group:
    rows = tuple((kind, k, v) for k, v in sorted(choice.items()))
    attrs = Attrs.of(**{**group.function.attrs, ATTRIBUTE: rows})
    return Group(replace(group.function, attrs=attrs), group.name, group.target)


def _proved(name: str, target: Target, mixtures: int) -> int:
    draw, proved = random.Random(f"{name} {target}"), 0
    for group in groups_of(POLICIES[name].module(), target):
        family = next(fitting(group, target))
        knobs = knobs_of(family, group, target)
        for _ in range(mixtures if knobs else 0):
            choice = {k.name: draw.choice(k.values) for k in knobs}
            made = with_choice(group, family.op_class, choice)
            one = schedule_group(made, target, check=True)
            assert isinstance(one, PrimFunc) and one.op_class == family.op_class
            assert one.script() == schedule_group(made, target).script()
            proved += 1
    return proved


# Their programs are small enough to be proved in a second with whatever tiles.
QUICK = (
    "conv",
    "conv_planar",
    "conv_grouped",
    "depthwise",
    "linear",
    "linear_rows",
    "linear_pieces",
    "winograd",
    "winograd_overhang",
    "softmax_chains",
    "layer_norm",
    "max_pool",
    "sum_last",
    "attention",
    "conv_bytes_few",
    "linear_bytes",
    "matmul_16",
)


@pytest.mark.parametrize("name", QUICK)
def test_every_step_is_proved(name: str) -> None:
    assert _proved(name, TARGETS["v2"], 1)


@pytest.mark.fuzz
@pytest.mark.parametrize("level", ["v2", "v3", "v4", "neon"])
@pytest.mark.parametrize("name", [n for n in POLICIES if not n.startswith("attention_")])
def test_every_step_is_proved_of_more(name: str, level: str) -> None:
    _proved(name, TARGETS[level], 3)


def test_what_is_fetched_ahead_of_few_terms() -> None:
    """Whatever the blocks of terms: one of all five is a loop of one step, in which nothing can be
    spread over steps."""
    function, target = battery(["linear_few"]).cases["linear_few"].function, TARGETS["v2"]
    module = IRModule((function,), "few")
    (group,) = (g for g in groups_of(module, target) if "linear" in g.name)
    family = next(fitting(group, target))
    knobs = {k.name: k.values for k in knobs_of(family, group, target)}
    for fetch, block in product(knobs["fetch"], knobs["block"]):
        choice = {"fetch": fetch, "block": block}
        schedule_group(with_choice(group, family.op_class, choice), target, check=True)
