"""Primitives on blocks and buffers: what they make, and that it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import numpy as np
import pytest

from tensorkiln.arith.regions import regions_of
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, Block, PrimFunc
from tensorkiln.ir.verify import verify
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.primitives import (
    Schedule,
    cache_read,
    compose_reduction,
    compute_at,
    compute_inline,
    decompose_reduction,
    pad,
    pad_loop,
    reorder,
    replay,
    rfactor,
    set_scope,
    split,
    storage_align,
    tensorize,
    transform_layout,
)
from tensorkiln.script import T
from tensorkiln.script.parser import from_source
from tensorkiln.transform.tir.lower_blocks import lower_function
from tests.ir.evaluate import run
from tests.schedule import corpus as c


def same(f: PrimFunc, g: PrimFunc, seed: int = 0, **sizes: int) -> None:
    """Both compute the same from whole numbers, which sum exactly in any order."""
    case = c.Case(f, sizes)
    a, b = case.arrays(seed), case.arrays(seed)
    run(f, a, seed)
    run(g, b, seed)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=g.script())


def becomes(f: PrimFunc, text: str) -> None:
    """The body without blocks."""
    body = "\n".join(lower_function(f).script().splitlines()[2:])
    assert dedent(body) == dedent(text).strip(), body


@T.prim_func
def twice(A: T.Buffer((64,)), B: T.Buffer((64,))) -> None:
    t = T.alloc_buffer((64,), "float32")
    for i in range(64):
        t[i] = A[i] * T.float32(2)
    for i in range(64):
        B[i] = t[i] + T.float32(1)


@T.prim_func
def sums(A: T.Buffer((4, 16)), C: T.Buffer((4,))) -> None:
    for i in range(4):
        C[i] = T.float32(0)
        for k in range(16):
            C[i] = C[i] + A[i, k]


def test_compute_at() -> None:
    f = split(twice, "i_1", 16)
    g = compute_at(f, "t", "i_1_0")
    becomes(
        g,
        """
        for i_1_0 in T.serial(4):
            t = T.alloc_buffer((16,), "float32")
            for i_1 in T.serial(16):
                t[i_1] = A[i_1_0 * 16 + i_1] * T.float32(2.0)
            for i_1_1 in T.serial(16):
                B[i_1_0 * 16 + i_1_1] = t[i_1_1] + T.float32(1.0)
    """,
    )
    same(twice, g)


def test_compute_at_recomputes_what_neighbours_share() -> None:
    f = split(c.stencil_chain, "i_2", 4, tail="guard")
    f = compute_at(f, "t", "i_2_0")
    assert "(6,)" in f.script()  # four elements, and two of the next
    same(c.stencil_chain, f)
    inner = next(n for n in Schedule(f).loops_of("t") if n != "i_2_0")
    f = compute_at(f, "s", inner)
    assert "(3,)" in f.script()
    same(c.stencil_chain, f)


def test_compute_at_of_a_sum() -> None:
    f = compose_reduction(c.matmul_relu, "s", "s_1")
    f = compute_inline(f, "t")
    f = split(f, "j_2", 4)
    f = compute_at(f, "s_1", "j_2_0")
    assert "s = T.alloc_buffer((1, 4)" in f.script()
    same(c.matmul_relu, f)


def test_inlining() -> None:
    text = """
        for {} in T.serial(64):
            B[{}] = A[{}] * T.float32(2.0) + T.float32(1.0)
    """
    f = compute_inline(twice, "t")
    becomes(f, text.format(*["i_1"] * 3))
    same(twice, f)
    same(c.three_stages, compute_inline(compute_inline(c.three_stages, "t"), "s"))
    same(c.blur_twice, compute_inline(c.blur_twice, "t"))


def test_cache_read() -> None:
    f = cache_read(c.matmul, "C_1", "A", "local", at="i")
    assert 'A_local = T.alloc_buffer((1, 5), "float32", scope="local")' in f.script()
    same(c.matmul, f)
    whole = cache_read(c.matmul, "C_1", "B")
    assert "B_local = T.alloc_buffer((5, 8)" in whole.script()
    same(c.matmul, whole)
    same(c.matmul_symbolic, cache_read(c.matmul_symbolic, "C_1", "B"), m=5, q=3)


def test_layouts() -> None:
    f = cache_read(c.matmul, "C_1", "B")
    g = transform_layout(f, "B_local", "k, j -> j // 4, k, j % 4")
    assert "B_local = T.alloc_buffer((2, 5, 4)" in g.script()
    same(c.matmul, g)
    h = transform_layout(f, "B_local", lambda k, j: (j // 3, k, j % 3), pad=0)
    assert "B_local = T.alloc_buffer((3, 5, 3)" in h.script() and "B_local_pad" in h.script()
    same(c.matmul, h)
    p = transform_layout(c.transpose, "A", "i, j -> j, i", params=True)
    assert 'A: T.Buffer((8, 6), "float32")' in p.script()
    same(c.matmul, set_scope(storage_align(f, "B_local", 0, 8, 1), "B_local", "global"))
    inside = c.as_block(cache_read(c.matmul, "C_1", "A", at="k"), "i")
    moved = transform_layout(inside, "A_local", "i, j -> j, i")
    (outer,) = [b for b in walk_stmt(moved.body) if isinstance(b, Block) and b.name == "C_o"]
    assert [r.buffer.name for r in outer.reads] == ["A", "C", "B"]
    assert [r.buffer.name for r in outer.writes] == ["C"]
    verify(IRModule((moved,)))


def test_padding() -> None:
    f = cache_read(c.matvec, "y_1", "x")
    f = pad(f, "x_local", (4,), value=7)
    assert "x_local = T.alloc_buffer((8,)" in f.script()
    same(c.matvec, f)
    g = split(pad_loop(c.matvec, "i", 4), "i", 4)
    assert "if i_0 * 4 + i_1 < 7" in g.script()
    same(c.matvec, g)


@T.prim_func
def smooth_apart(A: T.Buffer((14,)), C: T.Buffer((12,))) -> None:
    a = T.alloc_buffer((14,), "float32", scope="local")
    t = T.alloc_buffer((12,), "float32", scope="local")
    for i in range(14):
        a[i] = A[i]
    for i in range(12):
        t[i] = a[i] + a[i + 1] + a[i + 2]
    for i in range(12):
        C[i] = t[i]


def test_padded_loops_need_no_condition_where_memory_is_there() -> None:
    f = pad(pad(smooth_apart, "a", (18,)), "t", (16,))
    f = pad_loop(f, "i_1", 16)
    assert "if" not in f.script()
    same(smooth_apart, f)


def test_a_padded_loop_may_read_on_where_elements_exist() -> None:
    @T.prim_func
    def fives(A: T.Buffer((4, 10)), C: T.Buffer((4, 5))) -> None:
        for i in range(4):
            for j in range(5):
                C[i, j] = A[i, j]

    f = cache_read(fives, "C", "A", at="i")
    for size, guarded in ((8, False), (16, True)):  # a row has 10
        g = pad(f, "A_local", (1, size), None)
        assert f"T.alloc_buffer((1, {size})" in g.script() and "A_local_pad" not in g.script()
        g = pad_loop(g, "ax1", size)
        assert ("if" in g.script()) == guarded
        same(fives, g)


def test_decompose_and_compose() -> None:
    f = compose_reduction(sums, "C", "C_1")
    g = decompose_reduction(f, "C_1", "k")
    becomes(
        g,
        """
        for i in T.serial(4):
            C[i] = T.float32(0.0)
            for k in T.serial(16):
                C[i] = C[i] + A[i, k]
    """,
    )
    becomes(
        decompose_reduction(f, "C_1", "i"),
        """
        for i_1 in T.serial(4):
            C[i_1] = T.float32(0.0)
        for i in T.serial(4):
            for k in T.serial(16):
                C[i] = C[i] + A[i, k]
    """,
    )
    for h in (f, g):
        same(sums, h)


@T.prim_func
def some_sums(A: T.Buffer((6, 16)), B: T.Buffer((16,)), C: T.Buffer((6,))) -> None:
    for i in range(6):
        C[i] = T.float32(0)
        for k in range(16):
            C[i] = T.select(i + k >= 5, C[i] + A[i, k] * B[k], C[i])


def test_a_sum_may_choose_its_terms() -> None:
    f = compose_reduction(some_sums, "C", "C_1")
    same(some_sums, f)
    parts = rfactor(split(f, "k", 4), "C_1", "k_0")
    assert "C_rf" in parts.script()
    same(some_sums, parts)
    s = Schedule(some_sums)
    s.fission("i")
    s.reorder("k", "i_1")  # its terms may come in any order
    same(some_sums, s.func)


def test_rfactor_keeps_a_loop_that_only_a_condition_names() -> None:
    """One of its iterations runs; the block has no variable for it."""
    (f,) = from_source(
        """
@T.prim_func
def total(A: T.Buffer((4,), "float32"), C: T.Buffer((1,), "float32")):
    for i in T.serial(2):
        for k in T.serial(4):
            if i < 1:
                with T.block("C"):
                    vk = T.axis.reduce(4, k)
                    with T.init():
                        C[0] = T.float32(0)
                    C[0] = C[0] + A[vk]
"""
    ).prim_funcs
    changed = rfactor(f, "C", "k")
    verify(IRModule((changed,)))
    same(f, changed)


def test_rfactor() -> None:
    f = rfactor(split(sums, "k", 4), "C_1", "k_0")
    same(sums, f)
    text = lower_function(f).script()
    assert 'C_rf = T.alloc_buffer((4, 4), "float32", scope="local")' in text
    f = compute_at(f, "C_1_rf", Schedule(f).loops_of("C_1")[-1])
    assert "C_rf = T.alloc_buffer((1, 1)" in f.script()
    same(sums, f)
    for axis in (0, 1):
        same(c.least, rfactor(c.least, "C_1", "j", axis))


@pytest.mark.parametrize("size", [3, 4, 11])
def test_partial_sums_of_what_may_not_run(size: int) -> None:
    """A row shorter than a vector has no terms in lanes: these begin all the same."""

    @T.prim_func
    def total(A: T.Buffer(("n",)), C: T.Buffer((1,))) -> None:
        C[0] = T.float32(0)
        for k in range(n):  # noqa: F821
            C[0] = C[0] + A[k]

    s = Schedule(total)
    s.split("k", 4, tail="peel")
    s.rfactor("C_1", "k_1", scope="register")
    assert 'T.alloc_buffer((4, 1), "float32", scope="register") as C_rf' in s.func.script()
    s.tensorize(s.loops_of("C_1")[-1], "sum_4")
    assert 'T.vector_reduce("sum", C_rf[' in s.func.script()
    for f in (lower_function(s.func), s.func):
        data = {"A": np.arange(size, dtype="f4") + 1, "C": np.full(1, np.nan, "f4")}
        run(f, data)
        assert data["C"][0] == size * (size + 1) / 2


@pytest.mark.parametrize("by", [1, 3, 6])
def test_a_vector_between_two(by: int) -> None:
    @T.prim_func
    def shifted(A: T.Buffer((3, 4)), C: T.Buffer((4,))) -> None:
        for l in range(4):  # noqa: E741
            C[l] = A[(l + by) // 4, (l + by) % 4]

    f = tensorize(shifted, "l", f"shift_{by % 4}_4")
    assert "T.shuffle(A[" in f.script()
    same(shifted, f)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (2, 8), (8, 2), (16, 4)])
def test_a_matrix_is_turned_over(rows: int, columns: int) -> None:
    @T.prim_func
    def turned(A: T.Buffer((rows, columns)), C: T.Buffer((columns, rows))) -> None:
        for j in range(columns):
            for i in range(rows):
                C[j, i] = A[i, j]

    f = tensorize(turned, "j", f"transpose_{rows}x{columns}")
    assert "T.shuffle(" in f.script()
    same(turned, f)


def test_a_long_sum_in_pieces() -> None:
    s = Schedule(sums)
    s.compose_reduction("C", "C_1")
    piece = s.split("k", 4).outer
    s.rfactor("C_1", piece)
    _, pieces = s.loops_of("C_1")
    s.compute_at("C_1_rf", pieces)
    s.set_scope("C_rf", "register")
    made = dict(_buffers(s.func))
    assert made == {"C_rf": ("register", (1, 1))}
    same(sums, s.func)
    assert replay(str(s.trace), sums).script() == s.func.script()


def _buffers(f: PrimFunc) -> list[tuple[str, tuple[str, tuple[int, ...]]]]:
    found = [t.buffer for t in walk_stmt(f.body) if isinstance(t, Alloc)]
    return [(b.name, (b.scope, tuple(int_value(d) or 0 for d in b.shape))) for b in found]


def test_tensorize() -> None:
    f = reorder(c.rows_times, "k", "i_1")
    h = tensorize(f, "j_1", "fma_8")
    assert "T.fma(T.Broadcast(A[" in h.script()
    same(c.rows_times, h)
    same(c.bytes_dot, tensorize(c.bytes_dot, "q", "dot4_i8"))


def test_maps_of_indices_are_text_in_traces() -> None:
    s = Schedule(c.matmul)
    s.cache_read("C_1", "B")
    s.transform_layout("B_local", lambda k, j: (j // 4, k, j % 4))
    assert 'transform_layout(f, "B_local", "k, j -> j // 4, k, j % 4")' in str(s.trace)
    assert replay(str(s.trace), c.matmul).script() == s.func.script()


STEPS: list[Callable[[PrimFunc], PrimFunc]] = [
    lambda f: cache_read(f, "C_1", "A", at="i"),
    lambda f: cache_read(f, "C_1", "B", at="j"),
    lambda f: rfactor(split(f, "k", (None, 5)), "C_1", "k_1"),
    lambda f: decompose_reduction(compose_reduction(f, "C", "C_1"), "C_1", "j"),
]


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_inputs_stay_as_they_were(step: int) -> None:
    text = c.matmul.script()
    g = STEPS[step](c.matmul)
    assert c.matmul.script() == text
    same(c.matmul, g)
    verify(IRModule((g,)))


def test_regions_end_where_their_buffers_do() -> None:
    @T.prim_func
    def part(A: T.Buffer((5,)), B: T.Buffer((5,))) -> None:
        for k in range(6):
            if k < 5:
                B[k] = A[k]

    (reads,), (writes,) = regions_of(part.body)
    for region in (reads, writes):
        assert [tuple(map(int_value, r)) for r in region.ranges] == [(0, 5)]


@pytest.mark.parametrize(
    ("index", "region"),
    [
        ("k", "0:4"),
        ("vi", "vi"),
        ("vi + k", "vi:vi + 4"),
        ("2 * k + 1", "1:8"),
        ("7 - k", "4:8"),
        ("vi // 2 + 2 * k", "vi // 2:vi // 2 + 7"),
        ("k * k", "0:16"),
    ],
)
def test_regions_cover_the_axes_of_a_reduction(index: str, region: str) -> None:
    """An axis is not known outside of its reduction: a text that named it did not parse."""
    mod = from_source(f"""
@ir_module
class Module:
    @T.prim_func
    def f(v: T.Buffer((16,), "float32"), B: T.Buffer((8,), "float32")):
        for n in range(8):
            with T.block("C"):
                vi = T.axis.spatial(8, n)
                B[vi] = T.reduce("sum", [(k, 4)], v[{index}])
""")
    assert f"T.reads(v[{region}])" in mod.script()
    assert structural_equal(from_source(mod.script()), mod)
