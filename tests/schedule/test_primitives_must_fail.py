"""Schedules that are refused: the class, the place and the hint of each error."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.primitives import (
    PRIMITIVES,
    Schedule,
    ScheduleError,
    bind,
    block,
    cache_read,
    compose_reduction,
    loop,
    loops_of,
    parallel,
    replay,
    split_even,
    unroll,
    vectorize,
)
from tensorkiln.script import T
from tests.schedule import corpus as c


@T.prim_func
def guarded(A: T.Buffer((10,)), C: T.Buffer((10,))) -> None:
    for i in range(16):
        if i < 10:
            C[i] = A[i]


@T.prim_func
def mixed(A: T.Buffer((4, 8)), C: T.Buffer((4, 8))) -> None:
    for i in T.parallel(4):
        for j in T.serial(8):
            C[i, j] = A[i, j]


# program, primitive, arguments, options; what the message says; what the hint says
OUTER = ("inside of", "loops over blockIdx are the outer ones")
ROWS: list[tuple[PrimFunc, str, tuple[Any, ...], dict[str, Any], str, str]] = [
    (c.matmul, "split", ("ii", 2), {}, "no loop or block 'ii'; matmul has i, j, C", "mean 'i'"),
    (c.matmul, "split", ("C", 2), {}, "'C' is a block, expected a loop", "loops: i, j, k"),
    (c.matmul, "split", (3, 2), {}, "named by a string, not int", "names: i, j"),
    (c.matmul, "split", ("i", 4), {}, "4 does not divide the extent 6", 'tail="guard"'),
    (c.row_sum, "split", ("i", 4), {}, "4 does not divide the extent n", 'tail="peel"'),
    (c.matmul, "split", ("i", 0), {}, "factor=0", "positive number"),
    (c.matmul, "split", ("i", (None, None)), {}, "one extent may be None", "(None, 4, 8)"),
    (c.matmul, "split", ("i", (2, 4)), {}, "2 * 4 = 8 is not the extent 6", "leave one of them"),
    (c.matmul, "split", ("i", 2), {"tail": "trim"}, "tail='trim'", "'guard'"),
    (c.matmul, "split", ("i", 2), {"names": ("a",)}, "1 names for 2 loops", "one name for each"),
    (c.matmul, "split", ("i", 9), {"tail": "peel"}, "longer than the loop", 'tail="guard"'),
    (c.matmul, "split", ("i", 9), {"tail": "overlap"}, "not longer than the loop", 'tail="guard"'),
    (c.matmul, "split", ("k", 3), {"tail": "overlap"}, "more than once", "updates what"),
    (c.matmul, "split", ("i", (4, None)), {"tail": "overlap"}, "the outermost extent", "(None, 4)"),
    (parallel(c.matmul, "i"), "split", ("i", 4), {"tail": "overlap"}, "run at once", 'tail="peel"'),
    (c.row_sum, "split_even", ("i", 4), {}, "the extent n is not a number", "use split"),
    (c.matmul, "split_even", ("i", 0), {}, "largest=0", "positive number"),
    (c.matmul, "partition", ("i", 7), {}, "cannot prove that 7 lies in the extent 6", "peel"),
    (c.matmul, "partition", ("i", 6), {}, "one of the two loops would be empty", "inside"),
    (c.row_sum, "partition", ("i", 2), {}, "cannot prove that 2 lies in the extent n", "peel"),
    (c.matmul, "fuse", ("i",), {}, "two loops or more", "fuse(f, 'i', 'j')"),
    (c.matmul, "fuse", ("j", "k"), {}, "'k' is not directly inside 'j'", "nothing stands between"),
    (c.lower, "fuse", ("i_1", "j_1"), {}, "the range of 'j_1' depends on 'i_1'", "a condition"),
    (mixed, "fuse", ("i", "j"), {}, "'i' is parallel and 'j' is serial", "fuse first"),
    (c.matmul, "reorder", ("i", "i"), {}, "two different loops", "reorder(f, 'j', 'i')"),
    (c.matmul, "reorder", ("k", "j"), {}, "'k' is not directly inside 'j': a", "split the nest"),
    (c.lower, "reorder", ("j_1", "i_1"), {}, "the range of 'j_1' depends on 'i_1'", "keep 'i_1'"),
    (c.skewed, "reorder", ("j_1", "i_1"), {}, "the other way", "loop 'i_1' carries"),
    (c.matmul, "tile", ("i", "j", 2, 2), {"tail": "peel"}, "four nests", "split each loop"),
    (c.row_sum, "vectorize", ("i",), {}, "the extent is not a number", "split the loop"),
    (guarded, "vectorize", ("i",), {}, "a condition inside it depends on it", 'tail="peel"'),
    (c.rows_of_scratch, "vectorize", ("i",), {}, "its own 't'", "inside the allocation"),
    (c.reshape, "vectorize", ("i",), {}, "two dimensions of 'C'", "moves along one"),
    (c.lower, "vectorize", ("i_1",), {}, "the range of 'j_1' inside it depends", "inner loop"),
    (c.prefix_sum, "vectorize", ("i",), {}, "may run at once", "keep it serial"),
    (c.row_sum, "unroll", ("i",), {}, "the extent is not a number", "split the loop"),
    (mixed, "parallel", ("j",), {}, "'i' is parallel already", "fuse both"),
    (mixed, "unroll", ("i",), {}, "the loop is parallel already", "mark a loop once"),
    (c.least, "parallel", ("i",), {}, "is updated by block 'C_1'", "rfactor"),
    (c.matmul, "bind", ("i", "blockIdx"), {}, "no thread index 'blockIdx'", "blockIdx.x"),
    (c.row_sum, "bind", ("i", "threadIdx.x"), {}, "the extent is not a number", "split the loop"),
    (bind(c.matmul, "j", "blockIdx.x"), "bind", ("i", "threadIdx.x"), {}, *OUTER),
    (bind(c.matmul, "i", "threadIdx.x"), "bind", ("j", "blockIdx.x"), {}, *OUTER),
    (bind(c.add, "i", "blockIdx.x"), "vectorize", ("i",), {}, "the loop is thread already", "once"),
    (bind(c.matmul, "j", "threadIdx.x"), "parallel", ("i",), {}, "'j' inside it is bound", "too"),
    (mixed, "bind", ("j", "blockIdx.x"), {}, "'i', which is parallel", "bind both"),
    (
        cache_read(bind(c.matmul, "i", "blockIdx.x"), "C_1", "A", "shared", at="j"),
        "bind",
        ("j", "threadIdx.x"),
        {},
        "shared buffer 'A_shared' would be allocated inside of loop 'j' over threadIdx.x",
        "around the loops over threadIdx",
    ),
    (
        bind(c.matmul, "j", "threadIdx.x"),
        "cache_read",
        ("C_1", "A", "shared"),
        {"at": "j"},
        "shared buffer 'A_shared' would be allocated inside",
        "make it local",
    ),
    (
        cache_read(bind(c.matmul, "j", "threadIdx.x"), "C_1", "A", "local", at="j"),
        "set_scope",
        ("A_local", "shared"),
        {},
        "shared buffer 'A_local' would be allocated inside",
        "make it local",
    ),
    (vectorize(c.transpose, "i"), "vectorize", ("j",), {}, "'i' around it is", "fuse both"),
    (c.lanes, "vectorize", ("i",), {}, "'C' inside it has lanes already", "around scalars"),
    (
        cache_read(c.lower, "C_1", "A", "local", at="j_1"),
        "fission",
        ("j_1",),
        {},
        "no constant size in scope 'local'",
        "set_scope('A_local', 'global')",
    ),
    (c.matmul, "prefetch", ("k", "A", 0), {}, "ahead=0", "a positive number of steps"),
    (c.matmul, "prefetch", ("k", "A", 1, 4), {}, "locality=4", "0 (used once)"),
    (c.matmul, "prefetch", ("k", "D", 1), {}, "no buffer 'D'", "A"),
    (c.add, "prefetch", ("i", "C", 1), {}, "nothing here reads 'C'", "what the loop reads"),
    (c.blur_twice, "prefetch", ("i", "t", 1), {}, "'t' is not a parameter", "in the caches"),
    (c.matmul, "prefetch_next", ("i", "A", 4), {}, "locality=4", "0 (used once)"),
    (c.matmul, "prefetch_next", ("i", "D"), {}, "no buffer 'D'", "A"),
    (c.matmul, "prefetch_next", ("k", "A"), {}, "no serial loop inside", "split the loop"),
    (c.matmul, "prefetch_next", ("j", "B"), {}, "several pieces of memory", "a loop inside"),
    (c.row_sum, "prefetch_next", ("j", "A"), {}, "no constant size", "split the loops"),
    (unroll(c.matmul, "k"), "prefetch", ("k", "A", 1), {}, "the loop is unrolled", "around it"),
    (c.row_sum, "prefetch", ("j", "A", 1), {}, "no constant size", "split the loops"),
    (
        split_even(compose_reduction(c.matmul, "C", "C_1"), "k", 3),
        "rfactor",
        ("C_1_1", "k_tail_1"),
        {},
        "continues a sum that another block begins",
        "before the loop is cut",
    ),
    (c.matmul, "annotate", ("i", "a b", 1), {}, "the key 'a b' is not a name", "annotate(f"),
    (c.matmul, "annotate", ("i", "thread", 1), {}, "your own has a dot", "mine."),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r[0].name}-{r[1]}-{r[2]}")
def test_refused(row: tuple[PrimFunc, str, tuple[Any, ...], dict[str, Any], str, str]) -> None:
    f, primitive, args, options, message, hint = row
    text = f.script()
    with pytest.raises(ScheduleError) as e:
        PRIMITIVES[primitive](f, *args, **options)
    assert isinstance(e.value, UserError) and e.value.code == "illegal-schedule"
    assert e.value.where.startswith(primitive)
    assert message in e.value.message, e.value.message
    assert hint in e.value.hint, e.value.hint
    assert f.script() == text


def test_enough_of_them() -> None:
    assert len(ROWS) >= 20


def test_a_loop_is_marked_once() -> None:
    f = bind(c.matmul, "i", "blockIdx.x")
    with pytest.raises(ScheduleError, match="bound to a thread index") as e:
        PRIMITIVES["split"](f, "i", 2)
    assert "split first" in e.value.hint
    with pytest.raises(ScheduleError, match="'i' is bound to blockIdx.x already"):
        bind(f, "j", "blockIdx.x")
    with pytest.raises(ScheduleError, match="inside a vectorized loop"):
        parallel(vectorize(c.bias, "i"), "j")
    with pytest.raises(ScheduleError, match="'j' inside it is vectorized"):
        vectorize(vectorize(c.bias, "j"), "i")
    assert loop(unroll(unroll(c.bias, "j"), "j"), "j").kind == "unrolled"


def test_navigation_names_the_nearest() -> None:
    with pytest.raises(ScheduleError, match="no loop or block 'C_3'") as e:
        loops_of(c.matmul, "C_3")
    assert "'C_1'" in e.value.hint and e.value.where == "loops_of('C_3')"
    with pytest.raises(ScheduleError, match="'i' is a loop, expected a block") as e:
        block(c.matmul, "i")
    assert e.value.hint == "blocks: C, C_1"


TRACES = [
    ('f = splt(f, "i", 2)', "no primitive 'splt'", "'split'"),
    ('g = split(f, "i", 2)', "not a step", "as f = split"),
    ('f = split(f, "i", 1 + n)', "not a literal: 1 + n", ""),
    ("import os", "not a step", ""),
    ('f = split(f, "i", 2', "not Python", ""),
    ('f = split(f, "i", 2)\nf = split(f, "i", 2)', "no loop or block 'i'", "'i_0'"),
    ('f = split(f, "i", 2, tial="peel")', "split has no argument 'tial'", "'tail'"),
    ('i0, i1 = split(f, "i", 2)', "not a step", 'as f = split(f, "i", 64)'),
    ("f = split(f)", "missing a required argument: 'loop'", "split(f, loop, factor"),
]


@pytest.mark.parametrize(("text", "message", "hint"), TRACES)
def test_traces_are_parsed_with_care(text: str, message: str, hint: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)) as e:
        replay(text, c.matmul)
    assert hint in e.value.hint


def test_only_literals_stand_in_traces() -> None:
    s = Schedule(c.matmul)
    with pytest.raises(ScheduleError, match="PrimFunc cannot stand in a trace"):
        s.split("i", c.matmul)
    with pytest.raises(AttributeError, match="no primitive 'splt'; did you mean 'split'"):
        s.splt  # noqa: B018
    assert len(s.trace) == 0
