"""Schedules find loops by role: the rules by which primitives pass roles on, programs renamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tensorkiln.families.normalization.program import rows_program, softmax
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.choose import schedule_group, trace_of
from tensorkiln.schedule.primitives import Nest, Schedule, ScheduleError, Split, TraceStep, replay
from tensorkiln.schedule.register_tile import finished
from tensorkiln.schedule.tree.surgery import renewed
from tensorkiln.script import T
from tensorkiln.script.parser import from_source
from tests.rotation import rows_in_turn
from tests.schedule.groups import groups_of
from tests.schedule.test_policies_checked import AVX2, CASES


@T.prim_func
def sums(A: T.Buffer((10, 16)), C: T.Buffer((10,))) -> None:
    for i in T.serial(10, annotations={"role": "row"}):
        C[i] = T.float32(0)
        for k in T.serial(16, annotations={"role": "term", "my.note": 1}):
            C[i] = C[i] + A[i, k]


@T.prim_func
def copied(A: T.Buffer((10, 16)), C: T.Buffer((10, 16))) -> None:
    t = T.alloc_buffer((10, 16), "float32")
    for i in range(10):
        for j in T.serial(16, annotations={"role": "column"}):
            t[i, j] = A[i, j]
    for i in T.serial(10, annotations={"role": "row"}):
        for j in range(16):
            C[i, j] = t[i, j]


def test_a_split_has_the_old_role_outside() -> None:
    s = Schedule(sums)
    assert s.split("i", 4, tail="peel") == Split(("i_0", "i_1"), "i_tail")
    assert [s.role(loop) for loop in ("i_0", "i_1", "i_tail")] == ["row", "row.inner", "row"]
    assert s.loops(role="row") == ("i_0", "i_tail") and s.loops(role="none") == ()
    made = s.split("k", (None, 2, 4), roles=("term", "vector", "lane"))
    assert [s.role(loop) for loop in made.loops] == ["term", "vector", "lane"]
    assert [s.loop(loop).attrs.get("my.note") for loop in made.loops] == [1, None, None]
    with pytest.raises(ScheduleError, match="1 roles for 2 loops"):
        s.split("i_tail", 2, roles=("row",))


def test_loops_without_roles_have_parts_without_roles() -> None:
    s = Schedule(copied)
    made = s.split("i", 5)
    assert s.role(made.outer) == s.role(made.inner) == s.role("t") == ""
    assert s.loops(role="") == (*made.loops, "j_1")


def test_copies_keep_roles() -> None:
    s = Schedule(sums)
    assert s.fission("i").parts == ("i", "i_1")
    made = s.partition("i_1", 4)
    assert (made.first, made.rest) == ("i_1", "i_1_tail")
    assert s.loops(role="row") == ("i", "i_1", "i_1_tail")
    assert s.loops(role="term") == ("k", "k_1")


def test_loops_of_partial_sums_have_roles() -> None:
    s = Schedule(sums)
    s.compose_reduction("C", "C_1")
    lane = s.split("k", 4, roles=("term", "lane")).inner
    made = s.rfactor("C_1", lane)
    assert [s.role(loop) for loop in made.loops] == ["row", "lane"]
    start = s.decompose_reduction(made.partial, "i")
    assert isinstance(start, Nest) and [s.role(x) for x in start.loops] == ["row", "lane"]


def test_loops_of_a_block_that_moved_have_its_roles() -> None:
    s = Schedule(copied)
    made = s.compute_at("t", "i_1")
    assert made.block == "t" and [s.role(loop) for loop in made.loops] == ["column"]


def test_a_fused_loop_has_the_first_role() -> None:
    s = Schedule(copied)
    assert s.role(s.fuse("i", "j")) == "column"
    assert s.role(s.fuse("i_1", "j_1")) == "row"


def test_text_has_roles_and_kernels_have_none() -> None:
    text = IRModule((Schedule(sums).func,)).script()
    assert 'annotations={"role": "row"}' in text
    again = from_source(text).functions[0]
    assert isinstance(again, PrimFunc) and Schedule(again).loops(role="row") == ("i",)
    assert "role" not in finished(Schedule(sums)).script()


@pytest.mark.parametrize("name", rows_in_turn(CASES, family=lambda name: CASES[name].op_class))
def test_names_of_loops_mean_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose loops all have one name, which those over lanes have otherwise, is scheduled
    by the same steps. (The text may differ in the order of additions, which is by name.)"""
    groups = list(groups_of(CASES[name].module(), AVX2))
    init, apply, steps = Schedule.__init__, Schedule.apply, []

    def renaming(self: Schedule, f: PrimFunc, check: bool = True) -> None:
        init(self, replace(f, body=renewed(f.body, lambda _: "l")), check)

    def recording(self: Schedule, step: TraceStep) -> Any:
        places = {loop: n for n, loop in enumerate(self.loops())}
        args = [places.get(a, a) for a in step.args if not isinstance(a, tuple)]
        steps.append((step.primitive, args, step.options))
        return apply(self, step)

    monkeypatch.setattr(Schedule, "apply", recording)
    for group in groups:
        schedule_group(group, AVX2)
    expected, steps = steps, []
    monkeypatch.setattr(Schedule, "__init__", renaming)
    for group in groups:
        schedule_group(group, AVX2)
    assert steps == expected


# The steps of the softmax of 3 x 2 x 37 as version 0.1.0 printed them before loops had roles.
OLD_TRACE = """\
f = split(f, "k", 8, ("k_0", "l"), "peel")
f = rfactor(f, "top_1", "l", 1, "register")
f = decompose_reduction(f, "top_1_rf", "k_0")
f = tensorize(f, "l_1", "max_8")
f = split(f, "k_0", 4, ("k_0_0", "o"), "peel")
f = rfactor(f, "top_1_rf", "o", 0, "register")
f = decompose_reduction(f, "top_1_rf_rf", "k_0_0")
f = reorder(f, "o_1", "l_1")
f = split(f, "j", 8, ("j_0", "l"), "peel")
f = split(f, "k_1", 8, ("k_1_0", "l"), "peel")
f = rfactor(f, "total_1", "l_5", 1, "register")
f = decompose_reduction(f, "total_1_rf", "k_1_0")
f = tensorize(f, "l_5_1", "sum_8")
f = split(f, "k_1_0", 4, ("k_1_0_0", "o"), "peel")
f = rfactor(f, "total_1_rf", "o_3", 0, "register")
f = decompose_reduction(f, "total_1_rf_rf", "k_1_0_0")
f = reorder(f, "o_3_1", "l_5_1")
f = split(f, "j_1", 8, ("j_1_0", "l"), "peel")
f = vectorize(f, "l_2")
f = unroll(f, "o_2")
f = vectorize(f, "l_3")
f = unroll(f, "o")
f = vectorize(f, "l")
f = unroll(f, "o_1")
f = vectorize(f, "l_1")
f = vectorize(f, "l_4")
f = vectorize(f, "l_5_2")
f = unroll(f, "o_3_2")
f = vectorize(f, "l_5_3")
f = unroll(f, "o_3")
f = vectorize(f, "l_5")
f = unroll(f, "o_3_1")
f = vectorize(f, "l_5_1")
f = vectorize(f, "l_6")
f = fuse(f, "i0", "i1")
"""


def test_old_traces_are_read() -> None:
    """A trace names loops and has no results, so it means the same as before."""
    (group,) = groups_of(CASES["softmax"].module(), AVX2)
    program = rows_program(group, softmax)
    made = schedule_group(group, AVX2)
    for trace in (trace_of(group, AVX2), OLD_TRACE):
        s = Schedule(program)
        s.func = replay(trace, program, check=False)
        assert replace(finished(s), op_class=made.op_class).script() == made.script()
