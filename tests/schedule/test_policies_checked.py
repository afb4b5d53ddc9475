"""The compiler's own schedules, each step of them proved."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tensorkiln.families.conv2d.program import Conv, conv2d_program
from tensorkiln.ir.stmt import For
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.kernels.case import Build
from tensorkiln.kernels.folders import cases
from tensorkiln.schedule.choose import schedule_group, trace_of
from tensorkiln.schedule.primitives import Schedule, replay
from tensorkiln.schedule.register_tile import finished
from tensorkiln.target import Target
from tests.rotation import rows_in_turn
from tests.schedule.battery import typed
from tests.schedule.groups import groups_of
from tests.transform.graphs import graph

AVX512 = Target({"kind": "llvm", "mcpu": "x86-64-v4", "winograd": 0})
AVX2 = Target({"kind": "llvm", "mcpu": "x86-64-v3", "winograd": 0})
SSE = Target({"kind": "llvm", "mcpu": "x86-64-v2"})
TARGETS = {"avx512": AVX512, "v3": AVX2}
# What no proof takes: places of images of unknown sizes; and what these targets lack.
UNPROVED = {"images", "conv_tiles"}
CASES = {name: case for name, case in cases("CASES").items() if name not in UNPROVED}


def _transpose(*axes: int) -> Build:
    return lambda g, x: g.transpose(x, axes=axes)


@pytest.mark.parametrize(
    ("name", "processor"),
    rows_in_turn(product(CASES, TARGETS), family=lambda row: CASES[row[0]].op_class),
)
def test_every_step_is_proved(name: str, processor: str) -> None:
    case, classes, target = CASES[name], set(), TARGETS[processor]
    for group in groups_of(case.module(), target):
        proved = schedule_group(group, target, check=True)
        assert proved.script() == schedule_group(group, target).script()
        classes.add(proved.op_class)
    assert case.op_class in classes


PAIRS = {
    **dict.fromkeys(("linear_pieces", "linear_rows"), "pair_sums_4"),
    **dict.fromkeys(("conv_pieces", "conv_grouped", "conv_open_signal"), "pair_sums_4"),
    **dict.fromkeys(("winograd", "winograd_overhang"), "pair_totals_4"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_step_of_pairs_is_proved(name: str) -> None:
    """Terms of which a processor without broadcasts multiplies two at once."""
    case, target = CASES[name], SSE.replace(winograd=4 if name.startswith("winograd") else 0)
    groups = [g for g in groups_of(case.module(), target) if g.anchor is not None]
    group = next(g for g in groups if "pair_products_4" in trace_of(g, target))
    proved = schedule_group(group, target, check=True)
    assert proved.op_class == case.op_class
    assert proved.script() == schedule_group(group, target).script()
    assert PAIRS[name] in trace_of(group, target)


# Of operands of bfloat16, and the classes of their kernels. With a symbolic size, strides of moves
# are products of symbols, which the proof does not take.
HALVES: dict[str, tuple[Build, tuple[int, ...], set[str]]] = {
    "attention": (
        lambda g, x: g.attention(x, x, x, scale=0.25, wide=True),
        (1, 2, 9, 32),
        {"attention_fused", "movement"},
    ),
    "attention_causal": (
        lambda g, x: g.cast(
            g.attention(x, x, x, scale=0.25, causal=True, wide=True), dtype="bfloat16"
        ),
        (1, 1, 37, 64),
        {"attention_fused", "movement"},
    ),
    "transpose": (_transpose(0, 2, 1, 3), (2, 12, 9, 64), {"movement"}),
    "transpose_parallel": (_transpose(1, 0), (300, 301), {"movement"}),
    "interleave": (_transpose(1, 0), (2, 80), {"movement"}),
    "cast": (
        lambda g, x: g.transpose(g.cast(g.cast(x, dtype="float32"), dtype="bfloat16"), axes=(1, 0)),
        (40, 33),
        {"movement"},
    ),
}


@pytest.mark.parametrize("mcpu", ["cooperlake", "sapphirerapids", "x86-64-v3"])
@pytest.mark.parametrize("name", HALVES)
def test_every_step_of_halves_is_proved(name: str, mcpu: str) -> None:
    build, shape, kinds = HALVES[name]
    target, found = Target({"kind": "llvm", "mcpu": mcpu}), set()
    for group in groups_of(graph(build, x=typed("bfloat16", *shape)), target):
        proved = schedule_group(group, target, check=True)
        assert proved.script() == schedule_group(group, target).script()
        found.add(proved.op_class)
    if mcpu != "x86-64-v3":
        assert found == kinds


def test_a_trace_replays() -> None:
    groups = groups_of(CASES["conv_pieces"].module(), AVX2)
    group = next(g for g in groups if g.anchor is not None)
    trace = trace_of(group, AVX2)
    assert 'f = split_even(f, "w", ' in trace and "f = parallel(f, " in trace
    s = Schedule(conv2d_program(Conv(group)))
    s.func = replay(trace, s.func, check=False)
    made = schedule_group(group, AVX2)
    assert replace(finished(s), op_class=made.op_class).script() == made.script()


def test_a_transpose_is_made_of_steps() -> None:
    (group,) = groups_of(graph(_transpose(1, 0), x=(40, 64)), AVX2)
    trace = trace_of(group, AVX2)
    assert 'f = split(f, "q", 8, tail="overlap")' in trace
    assert '"transpose_8x8")' in trace


@pytest.mark.parametrize(
    ("features", "lanes"), [(["+zve32f", "+zvl64b"], 2), (["+v", "+zvl2048b"], 64)]
)
@pytest.mark.parametrize(
    "name",
    ["conv", "softmax_chains", "layer_norm", "global_pool", "attention_wide", "transpose"],
)
def test_vectors_of_other_lengths(name: str, features: list[str], lanes: int) -> None:
    target = Target({"kind": "llvm", "mtriple": "riscv64-unknown-linux-gnu", "mattr": features})
    assert target.vector_lanes("float32") == lanes
    groups = groups_of(CASES[name].module(), target)
    classes = [schedule_group(g, target, check=True).op_class for g in groups]
    assert CASES[name].op_class in classes


@pytest.mark.parametrize("fpu", [True, False], ids=["cortex-m4", "cortex-m0plus"])
@pytest.mark.parametrize(
    "name",
    [
        "conv_pieces",
        "conv_parallel",
        "conv_one_weight",
        *(name for name in CASES if name.startswith("pool_")),
        "conv_bytes",
        "conv_grouped",
        "conv_bytes_grouped",
        "conv_bytes_few",
        "depthwise_bytes",
        "linear_odd",
        "linear_bytes",
    ],
)
def test_tiles_of_scalars(name: str, fpu: bool) -> None:
    cpu = ("thumbv7em-none-eabihf", "cortex-m4") if fpu else ("thumbv6m-none-eabi", "cortex-m0plus")
    target = Target({"kind": "c", "mtriple": cpu[0], "mcpu": cpu[1]})
    assert target.vector_lanes("float32") == 1
    case = CASES[name]
    programs = [schedule_group(g, target, check=True) for g in groups_of(case.module(), target)]
    assert case.op_class in [p.op_class for p in programs]
    anchored = [s for p in programs if p.op_class == case.op_class for s in walk_stmt(p.body)]
    # Without an operating system there are no threads to share work.
    assert "parallel" not in [s.kind for s in anchored if isinstance(s, For)]
