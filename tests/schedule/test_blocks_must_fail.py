"""Primitives on blocks and buffers that are refused: class, place and hint of each error."""

from __future__ import annotations

from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import Var, const
from tensorkiln.ir.stmt import For, PrimFunc, Store
from tensorkiln.schedule.primitives import (
    PRIMITIVES,
    Instruction,
    ScheduleError,
    compose_reduction,
    decompose_reduction,
    fuse,
    partition,
    reorder,
    split,
    tensorize,
    vectorize,
)
from tensorkiln.script import T
from tests.schedule import corpus as c


@T.prim_func
def overwritten(A: T.Buffer((8,)), C: T.Buffer((8,))) -> None:
    s = T.alloc_buffer((8,), "float32")
    t = T.alloc_buffer((8,), "float32")
    for i in range(8):
        s[i] = A[i]
    for i in range(8):
        t[i] = s[i] * T.float32(2)
    for i in range(8):
        s[i] = T.float32(0)
    for i in range(8):
        C[i] = t[i] + s[i]


@T.prim_func
def from_two_sides(A: T.Buffer((8,)), C: T.Buffer((8,))) -> None:
    t = T.alloc_buffer((8,), "float32")
    for i in range(8):
        t[i] = A[i]
    for i in range(4):
        C[i] = t[i]
    for i in range(4):
        C[i + 4] = t[i + 4]


@T.prim_func
def carried(A: T.Buffer((8,)), C: T.Buffer((8,))) -> None:
    t = T.alloc_buffer((8,), "float32", scope="local")
    t[0] = T.float32(0)
    for i in range(7):
        t[i + 1] = t[i] + A[i]
        C[i] = t[i + 1]


SUM = compose_reduction(c.matmul, "C", "C_1")
RELU = compose_reduction(c.matmul_relu, "s", "s_1")
BLOCKED = c.as_block(c.blur_twice, "i")
ROWS_K = reorder(c.rows_times, "k", "i_1")

LATER = partition(SUM, "k", 2)

# program, primitive, arguments, options; what the message says; what the hint says
ROWS: list[tuple[PrimFunc, str, tuple[Any, ...], dict[str, Any], str, str]] = [
    (c.blur_twice, "compute_at", ("tt", "i_1"), {}, "no loop or block 'tt'", "mean 't'"),
    (c.blur_twice, "compute_at", ("t", "i_9"), {}, "no loop or block 'i_9'", "mean 'i_1'"),
    (c.blur_twice, "compute_at", ("C", "i"), {}, "'C' is a parameter", "allocates"),
    (c.blur_twice, "compute_at", ("t", "i"), {}, "inside 'i' already", "reader"),
    (from_two_sides, "compute_at", ("t", "i_1"), {}, "block 'C_1' reads 't' outside", "i_2"),
    (c.matmul_bias, "compute_at", ("t_1", "i_1"), {}, "'t' writes 't' too", "compose_reduction"),
    (overwritten, "compute_at", ("t", "i_3"), {}, "'s_1' writes before the place", "before that"),
    (BLOCKED, "compute_at", ("t", "i_1"), {}, "inside block 't_o'", "tensorize comes last"),
    (c.matmul, "compute_inline", ("C",), {}, "'C' is a parameter", "must be stored"),
    (RELU, "compute_inline", ("s_1",), {}, "is not one store", "compute_at"),
    (overwritten, "compute_inline", ("t",), {}, "'s_1' writes", "cache_read"),
    (c.matmul, "cache_read", ("C_1", "X"), {}, "no buffer 'X'", "buffers: A, B, C"),
    (c.matmul, "cache_read", ("C", "A"), {}, "does not read 'A'", "it reads"),
    (c.matmul, "cache_read", ("C_1", "A", "stack"), {}, "scope 'stack'", "one of global, local"),
    (c.matmul, "cache_read", ("C_1", "A"), {"at": "k2"}, "no loop or block 'k2'", "mean 'k'"),
    (c.matmul_apart, "cache_read", ("C_1", "A"), {"at": "i"}, "not around the block", "i_1, j_1"),
    (c.prefix_sum, "cache_read", ("C_1", "C"), {}, "'C_1' writes 'C' after", "further in"),
    (LATER, "decompose_reduction", ("C_1_1", "k_tail"), {}, "does not begin in", "first term"),
    (c.matmul, "set_scope", ("A", "local"), {}, "'A' is a parameter", "cache_read"),
    (c.blur_twice, "set_scope", ("t", "registers"), {}, "scope 'registers'", "mean 'register'"),
    (
        vectorize(c.matmul_apart, "j_1"),
        "cache_read",
        ("C_1", "B"),
        {"at": "j_1"},
        "in loop 'j_1', which is vectorized",
        "vectorize it afterwards",
    ),
    (
        vectorize(c.blur_twice, "i_1"),
        "compute_at",
        ("t", "i_1"),
        {},
        "loop 'i_1' is vectorized",
        "vectorize it afterwards",
    ),
    (c.blur_twice, "storage_align", ("t", 1, 8), {}, "axis=1", "from 0 to 0"),
    (c.blur_twice, "storage_align", ("t", 0, 8, 9), {}, "offset=9", "offset < factor"),
    (c.matmul, "transform_layout", ("A", "i, j -> j, i"), {}, "is a parameter", "params=True"),
    (c.blur_twice, "transform_layout", ("t", "i, j -> i"), {}, "takes 2 indices", "one name per"),
    (c.blur_twice, "transform_layout", ("t", "i -> i // 2"), {}, "in one place", "i % 16"),
    (c.blur_twice, "transform_layout", ("t", "i -> i // 5, i % 5"), {}, "15 elements", "pad=0"),
    (c.blur_twice, "transform_layout", ("t", "i -> f(i)"), {}, "'f(i)' in a map", "numbers"),
    (c.blur_twice, "transform_layout", ("t", "i -> i - 3"), {}, "negative", "offset"),
    (c.blur_twice, "pad", ("t", (4, 4)), {}, "factors=(4, 4)", "per dimension: 1"),
    (c.matmul, "pad", ("A", (4, 4)), {}, "is a parameter", "cache_read"),
    (c.matmul, "pad_loop", ("i", 0), {}, "factor=0", "positive"),
    (SUM, "decompose_reduction", ("C_1", "k_1"), {}, "no loop or block 'k_1'", "mean"),
    (c.matmul, "decompose_reduction", ("C_1", "k"), {}, "has no init", "its own already"),
    (c.matmul_symbolic, "compose_reduction", ("C", "C_1"), {}, "may have no term", "block of its"),
    (c.matmul, "compose_reduction", ("C_1", "C"), {}, "not a sum without a start", "C[vi] ="),
    (c.matmul, "rfactor", ("C_1", "j"), {}, "does not run over terms", "loops that do: k"),
    (c.matmul, "rfactor", ("C", "i"), {}, "is not a sum", "C[vi] = C[vi]"),
    (
        fuse(c.conv2d, "y_1", "x_1", "c"),
        "rfactor",
        ("C_1", "s"),
        {},
        "'y_1_x_1_c' runs over elements and terms at once",
        "fuse only loops of one kind",
    ),
    (c.matmul, "rfactor", ("C_1", "k"), {"axis": 3}, "axis=3", "from 0 to 2"),
    (tensorize(ROWS_K, "j_1", "fma_8"), "rfactor", ("fma_8", "k"), {}, "has lanes", "before"),
    (
        vectorize(c.matmul, "j"),
        "rfactor",
        ("C_1", "k"),
        {},
        "in loop 'j', which is vectorized",
        "vectorize it afterwards",
    ),
    (
        c.as_block(reorder(split(c.matmul_apart, "k", 4), "k_0", "i_1", "j_1", "k_1"), "i_1"),
        "rfactor",
        ("C_1", "k_1"),
        {},
        "also runs over 'vk_0'",
        "rfactor before tensorize",
    ),
    (c.matmul, "rfactor", ("C_1", "k"), {"scope": "regster"}, "scope 'regster'", "mean 'register'"),
    (vectorize(ROWS_K, "i_1"), "tensorize", ("j_1", "fma_8"), {}, "around it", "has lanes"),
    (c.matmul, "tensorize", ("k", "shift_4_4"), {}, "no instruction 'shift_4_4'", "shift_1_16"),
    (c.matmul, "tensorize", ("k", "transpose_3x4"), {}, "no instruction", "transpose_16x16"),
    (c.matmul, "tensorize", ("k", "sum_15"), {}, "no instruction 'sum_15'", "sum_16"),
    (c.matmul, "tensorize", ("k", "fma_15"), {}, "no instruction 'fma_15'", "fma_16"),
    (ROWS_K, "tensorize", ("j_1", "fma_16"), {}, "16 iterations, the program 8", "split and"),
    (c.matmul, "tensorize", ("k", "fma_8"), {}, "8 iterations, the program 5", "split and"),
    (SUM, "tensorize", ("k", "fma_8"), {}, "has an init", "decompose_reduction"),
    (c.bytes_dot, "tensorize", ("q", "fma_4"), {}, "float32, the program", "split and"),
]


@pytest.mark.parametrize("n", range(len(ROWS)))
def test_refused(n: int) -> None:
    f, name, args, options, message, hint = ROWS[n]
    before = f.script()
    with pytest.raises(ScheduleError) as e:
        PRIMITIVES[name](f, *args, **options)
    error = e.value
    assert isinstance(error, UserError) and error.code == "illegal-schedule"
    assert error.where.startswith(f"{name}("), error.where
    assert message in error.message, error.message
    assert hint in error.hint and error.hint, error.hint
    assert f.script() == before


def test_sums_keep_their_start_before_all_terms() -> None:
    f = reorder(SUM, "k", "j")
    with pytest.raises(ScheduleError, match="loop 'k' of the sum is outside 'j'") as e:
        decompose_reduction(f, "C_1", "j")
    assert e.value.hint == "name 'k' or a loop further out"


def test_a_mismatch_says_where() -> None:
    f = split(c.flat, "j", 4)
    with pytest.raises(ScheduleError) as e:
        tensorize(f, "j_1", "fma_4")
    assert "at fma_4.for(j_1).store(C)" in e.value.message


def test_an_instruction_needs_one_signature() -> None:
    a, b = buffer("a", (4,)), buffer("a", (8,))
    i = Var("i")
    body = For(i, const(0), const(4), "serial", Store(a, (i,), Load(a, (i,))))
    with pytest.raises(ScheduleError, match="other parameters") as e:
        Instruction("odd", PrimFunc("t", (a,), body), PrimFunc("t", (b,), body))
    assert e.value.where == "Instruction('odd')" and "same shapes" in e.value.hint
