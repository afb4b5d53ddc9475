"""What primitives make: names, kinds, normal form, copies, traces."""

from __future__ import annotations

import cProfile
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import buffer
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.expr import Expr, Var, const, int_value
from tensorkiln.ir.stmt import Alloc, Block, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.visit import substitute, substmts, walk_stmt
from tensorkiln.schedule.primitives import (
    PRIMITIVES,
    Cooperative,
    Fission,
    Nest,
    Partition,
    Rfactor,
    Schedule,
    ScheduleError,
    Split,
    SplitEven,
    Tile,
    annotate,
    bind,
    block,
    blocks,
    children,
    fuse,
    loop,
    loops,
    loops_of,
    normal,
    parallel,
    parent,
    partition,
    prefetch,
    reorder,
    replay,
    split,
    tile,
    unroll,
    vectorize,
)
from tensorkiln.schedule.primitives.results import Primitive
from tensorkiln.schedule.tree.program import dims_of
from tensorkiln.script import T
from tests.ir.evaluate import run
from tests.schedule import corpus as c


def kinds(f: PrimFunc, name: str) -> list[str]:
    return [i.kind for i in block(f, name).iters]


# ---- normal form -------------------------------------------------------------------------------


def test_effects_become_blocks() -> None:
    f = normal(c.matmul_apart)
    assert normal(f) is f
    assert loops(f) == ("i", "j", "i_1", "j_1", "k") and blocks(f) == ("C", "C_1")
    assert kinds(f, "C_1") == ["spatial", "spatial", "reduce"]
    step = block(f, "C_1")
    assert [r.buffer.name for r in step.reads] == ["C", "A", "B"]
    assert [r.buffer.name for r in step.writes] == ["C"]
    assert [i.var.name for i in step.iters] == ["vi_1", "vj_1", "vk"]


def test_kinds_of_iterations() -> None:
    assert kinds(normal(c.last_row_wins), "C") == ["opaque", "spatial"]
    assert kinds(normal(c.prefix_sum), "C_1") == ["spatial"]
    assert kinds(normal(c.running_total), "s") == ["spatial"]  # each i has its own s
    assert kinds(normal(c.running_total), "s_1") == ["spatial", "reduce"]
    assert kinds(normal(c.least), "C_1") == ["reduce", "reduce"]


def test_straight_line_code_is_one_block() -> None:
    f = normal(c.reverse_pairs)
    assert blocks(f) == ("C", "C_1")
    assert isinstance(block(f, "C_1").body, Let)


def test_control_flow_on_memory_is_a_block_of_blocks() -> None:
    f = normal(c.where)
    assert blocks(f) == ("if", "C", "C_1") and children(f, "if") == ("j", "j_1")
    assert isinstance(block(f, "if").body, If)
    assert parent(f, "j") == "if" and parent(f, "i") is None
    # a guard of loop variables stays outside
    assert blocks(normal(c.padded)) == ("C", "C_1")
    assert parent(normal(c.padded), "C") == "j"


def test_numbers_known_from_loops_are_put_in_place() -> None:
    i, j, first = Var("i"), Var("j"), Var("first")
    out = buffer("C", (16,))
    inner = For(j, const(0), const(4), "serial", Store(out, (first + j,), const(1, out.dtype)))
    f = normal(
        PrimFunc("f", (out,), For(i, const(0), const(4), "serial", Let(first, i * 4, inner)))
    )
    assert not any(isinstance(s, Let) for s in walk_stmt(f.body))
    parallel(f, "i")


def test_loops_that_begin_below_zero() -> None:
    i = Var("i")
    out = buffer("C", (8,))
    f = normal(
        PrimFunc(
            "f",
            (out,),
            For(i, const(-2), const(8), "serial", Store(out, (i + 2,), const(1, out.dtype))),
        )
    )
    got = np.zeros(8, np.float32)
    run(split(f, "i", 3, tail="guard"), {"C": got})
    assert (got == 1).all()


def test_variables_bound_twice_get_names_of_their_own() -> None:
    i = Var("i")
    out = buffer("C", (8,))
    part = For(i, const(0), const(8), "serial", Store(out, (i,), const(1, out.dtype)))
    f = normal(PrimFunc("f", (out,), Seq((part, part))))
    assert loops(f) == ("i", "i_1") and blocks(f) == ("C", "C_1")
    assert loop(f, "i").var is not loop(f, "i_1").var


def test_loops_do_not_take_names_of_sizes() -> None:
    n, i = Var("n"), Var("n")
    out = buffer("C", (n,))
    f = PrimFunc("f", (out,), For(i, const(0), n, "serial", Store(out, (i,), const(0, out.dtype))))
    assert loops(f) == ("n_1",)


# ---- loops -------------------------------------------------------------------------------------


def test_even_pieces() -> None:
    @T.prim_func
    def rows(A: T.Buffer((27,)), C: T.Buffer((27,))) -> None:
        for i in range(27):
            C[i] = A[i]

    s = Schedule(rows)
    made = s.split_even("i", 14)
    assert made == SplitEven((Split(("i_0", "i_1")), Split(("i_tail_0", "i_tail_1"))))
    names = [n for part in made.parts for n in part.loops]
    sizes = [loop(s.func, n).extent.value for n in names]  # type: ignore[attr-defined]
    assert sizes == [1, 14, 1, 13]
    assert block(s.func, "C_1").attrs["origin"] == "C"
    again = Schedule(rows)
    assert again.split_even("i", 9) == SplitEven((Split(("i_0", "i_1")),))


def test_symbolic_extents() -> None:
    f = split(c.row_sum, "i", 4, tail="peel")
    assert {"i_0", "i_1", "i_tail"} <= set(loops(f))
    for n in (0, 3, 4, 9):
        a = np.arange(n * 8, dtype=np.float32).reshape(n, 8)
        got = np.full(n, -1, np.float32)
        run(split(f, "j", 2), {"A": a, "C": got})
        np.testing.assert_array_equal(got, a.sum(1))


def test_pieces_that_overlap() -> None:
    @T.prim_func
    def turned(A: T.Buffer((13, 10)), C: T.Buffer((10, 13))) -> None:
        for i in range(10):
            for j in range(13):
                C[i, j] = A[j, i]

    f = split(split(turned, "i", 4, tail="overlap"), "j", (None, 2, 4), tail="overlap")
    assert "T.min(i_0 * 4, 6)" in f.script() and "T.min(j_0 * 8, 5)" in f.script()
    a, got = np.arange(130, dtype=np.float32).reshape(13, 10), np.zeros((10, 13), np.float32)
    run(vectorize(f, "j_2"), {"A": a, "C": got})
    np.testing.assert_array_equal(got, a.T)
    with pytest.raises(ScheduleError, match="both may run at once"):
        parallel(f, "i_0")


def test_triangles_are_cut_without_going_below_zero() -> None:
    """An extent that may be negative runs no iteration, before and after."""

    @T.prim_func
    def beyond(A: T.Buffer(("n",)), C: T.Buffer(("n",))) -> None:
        for i in range(n):
            C[i] = T.float32(0)
        for i in range(n - 5):
            C[i] = A[i]

    for f in (
        split(beyond, "i_1", 4, tail="peel"),
        split(beyond, "i_1", 4, tail="guard"),
    ):
        for n in (0, 2, 5, 6, 13):
            a, got = np.ones(n, np.float32), np.ones(n, np.float32)
            run(f, {"A": a, "C": got})
            assert got.sum() == max(n - 5, 0)


def test_kinds_of_the_parts() -> None:
    f = split(vectorize(c.bias, "j"), "j", 4)
    assert [loop(f, n).kind for n in ("j_0", "j_1")] == ["serial", "vectorized"]
    f = split(parallel(c.flat, "i"), "i", 2)
    assert [loop(f, n).kind for n in ("i_0", "i_1")] == ["parallel", "serial"]
    f = split(unroll(c.flat, "j"), "j", 2)
    assert [loop(f, n).kind for n in ("j_0", "j_1")] == ["unrolled", "unrolled"]
    assert loop(fuse(unroll(unroll(c.flat, "i"), "j"), "i", "j"), "i_j").kind == "unrolled"


def test_conditions_move_in_when_loops_change_places() -> None:
    @T.prim_func
    def cut(A: T.Buffer((4, 6)), C: T.Buffer((4, 6))) -> None:
        for i in range(8):
            if i < 4:
                for j in range(6):
                    C[i, j] = A[i, j]

    f = reorder(cut, "j", "i")
    assert children(f, "j") == ("i",)
    assert isinstance(loop(f, "i").body, If)


def test_loops_not_listed_keep_their_place() -> None:
    f = reorder(c.conv2d, "s", "c")
    assert loops_of(f, "C_1") == ("o_1", "y_1", "x_1", "s", "r", "c")


def test_tile_is_splits_and_a_reorder() -> None:
    f = tile(c.matmul_apart, "i_1", "j_1", 3, 2)
    assert loops_of(f, "C_1") == ("i_1_0", "j_1_0", "i_1_1", "j_1_1", "k")


def test_names_are_as_asked() -> None:
    f = split(c.matmul, "i", (None, 3), names=("outer", "inner"))
    assert loops(f)[:2] == ("outer", "inner")
    assert "both" in loops(fuse(f, "outer", "inner", name="both"))
    f = partition(c.matmul, "i", 2, names=("head", "rest"))
    assert {"head", "rest"} <= set(loops(f))


def test_each_copy_has_its_own_scratch() -> None:
    f = partition(c.rows_of_scratch, "i", 2)
    made = [s.buffer for s in walk_stmt(f.body) if isinstance(s, Alloc)]
    assert len(made) == 2 and made[0] is not made[1]
    bound = [s.var for s in walk_stmt(f.body) if isinstance(s, For)]
    bound += [i.var for s in walk_stmt(f.body) if isinstance(s, Block) for i in s.iters]
    assert len(set(bound)) == len(bound)


def test_hints_and_threads_are_attributes() -> None:
    f = annotate(annotate(c.matmul, "i", "my.depth", 2), "C_1", "my.tag", "inner")
    assert loop(f, "i").attrs["my.depth"] == 2 and block(f, "C_1").attrs["my.tag"] == "inner"
    assert not loop(annotate(f, "i", "my.depth"), "i").attrs
    assert loop(bind(f, "i", "threadIdx.y"), "i").attrs["thread"] == "threadIdx.y"


def test_each_line_of_what_is_read_later_is_fetched_once() -> None:
    @T.prim_func
    def rows(A: T.Buffer((7, 40)), C: T.Buffer((7,))) -> None:
        for i in range(7):
            for j in range(40):
                C[i] = C[i] + A[i, j]

    s = Schedule(rows)
    s.prefetch("i", "A", 2)
    found = [t for t in walk_stmt(s.func.body) if isinstance(t, Prefetch)]
    places = [tuple(map(TirPrinter().expr, t.indices)) for t in found]
    assert places == [("i + 2", "0"), ("i + 2", "16"), ("i + 2", "32")]
    assert {(t.buffer.name, t.locality, t.write) for t in found} == {("A", 2, False)}
    inner = prefetch(split(rows, "j", 4), "j_0", "A", 3, 3)
    (one,) = [t for t in walk_stmt(inner.body) if isinstance(t, Prefetch)]
    assert TirPrinter().expr(one.indices[1]) == "j_0 * 4 + 12" and one.locality == 3


def fetched(s: Stmt, values: dict[Var, Expr]) -> Iterator[tuple[int | None, ...]]:
    """The places that a statement prefetches, in order."""
    if isinstance(s, Prefetch):
        yield tuple(int_value(simplify(substitute(i, values))) for i in s.indices)
    elif isinstance(s, For):
        count = int_value(simplify(substitute(s.extent, values)))
        assert count is not None
        for k in range(count if any(isinstance(t, Prefetch) for t in walk_stmt(s)) else 0):
            yield from fetched(s.body, {**values, s.var: s.lo + k})
    else:
        for t in substmts(s):
            yield from fetched(t, values)


@pytest.mark.parametrize(("rows", "terms"), [(3, 32), (40, 32), (7, 41), (900, 32)])
def test_the_next_panel_is_fetched_during_this_one(rows: int, terms: int) -> None:
    """Each of its lines, in order, whatever the loops inside are."""

    @T.prim_func
    def panels(
        A: T.Buffer((rows, terms)), B: T.Buffer((5, terms, 48)), C: T.Buffer((rows, 5, 48))
    ) -> None:
        for p in range(5):
            for i in range(rows):
                for k in range(terms):
                    for j in range(48):
                        C[i, p, j] = C[i, p, j] + A[i, k] * B[p, k, j]

    s = Schedule(panels)
    s.vectorize("j")
    parts = s.split("k", 4, tail="peel")
    s.unroll(parts.inner)
    if parts.tail is not None:
        s.unroll(parts.tail)
    s.prefetch_next("p", "B")
    lines = [(3, 0, 16 * n) for n in range(terms * 3)]
    found = list(fetched(s.loop("p").body, {s.loop("p").var: const(2)}))
    assert list(dict.fromkeys(found)) == lines
    assert len(found) <= max(2 * len(lines), rows)
    assert structural_equal(replay(str(s.trace), panels), s.func)


def test_the_next_panel_is_fetched_where_rows_are_unknown() -> None:
    """In the first rounds, as if there were 64 rows; further ones fetch the last lines again."""

    @T.prim_func
    def panels(A: T.Buffer(("n", 32)), B: T.Buffer((5, 32, 48)), C: T.Buffer(("n", 5, 48))) -> None:
        for p in range(5):
            for i in range(n):
                for k in range(32):
                    for j in range(48):
                        C[i, p, j] = C[i, p, j] + A[i, k] * B[p, k, j]

    s = Schedule(panels)
    s.prefetch_next("p", "B")
    (n,) = dims_of(s.func)
    for rows in (1, 64, 200):
        values = {s.loop("p").var: const(0), n: const(rows)}
        found = list(fetched(s.loop("p").body, values))
        assert found[:96] == [(1, 0, 16 * k) for k in range(len(found[:96]))]
        assert set(found[96:]) <= {(1, 0, 95 * 16), (1, 0, 94 * 16)}


# ---- traces ------------------------------------------------------------------------------------


def scheduled() -> Schedule:
    s = Schedule(c.matmul_apart)
    s.split("i_1", 4, tail="peel", names=["io", "ii"])
    s.reorder("j_1", "ii")
    s.annotate("io", "my.note", 'a "quoted" name, é')
    s.vectorize(s.split("j", (None, 2)).inner)
    s.parallel("i")
    return s


def test_traces_print_and_replay() -> None:
    s = scheduled()
    text = str(s.trace)
    assert text.splitlines()[0] == 'f = split(f, "i_1", 4, tail="peel", names=("io", "ii"))'
    assert text.splitlines()[-1] == 'f = parallel(f, "i")'
    again = replay(text, c.matmul_apart)
    assert structural_equal(again, s.func)
    assert again.script() == s.func.script() == scheduled().func.script()


def test_a_schedule_shows_what_it_takes() -> None:
    s = Schedule(c.matmul)
    assert {"split", "fuse", "loops", "trace"} <= set(dir(s))
    assert str(s.split.__signature__).startswith("(loop: 'str', factor: ")
    assert "Cut a loop" in (s.split.__doc__ or "")
    assert str(s.split.__signature__).endswith("results.Split")
    assert s.split("i", 2) == Split(("i_0", "i_1")) and s.fuse("i_0", "i_1") == "i_0_i_1"
    assert s.parallel("j") is None


def test_proofs_can_be_left_out() -> None:
    s = Schedule(c.prefix_sum, check=False)
    s.parallel("i")
    assert loop(s.func, "i").kind == "parallel"


# ---- the set -----------------------------------------------------------------------------------


HEAD = """# Schedule primitives, one by one

[How to schedule a tensor program](schedules.md) shows them at work. Each is a function of a program
and a method of `Schedule`. Left of an arrow is the program before, right of it after; blocks are
left out where they say nothing. Primitives that change an order take `check=False`, which leaves
out the proof. Methods return the names of the loops and blocks that they make, in
[types](#results) of their own; those for which none is given here return None.

No schedule of Tensorkiln itself calls `annotate`, `cache_read`, `compute_inline` or `tile`: these
are for schedules of your own, and [that page](schedules.md) shows them in some.
"""


def test_every_primitive_is_documented(golden: Callable[[Path, str], None]) -> None:
    """docs/primitives.md is the docstrings."""
    parts = [HEAD]
    for name, function in PRIMITIVES.items():
        text = _with_example(inspect.getdoc(function) or "")
        assert "->" in text, name
        shown = [str(p) for k, p in _parameters(function) if k not in ("f", "check")]
        call = f"`{name}(f, {', '.join(shown)})`"
        if isinstance(function, Primitive):
            call += f", as a method `-> {_made(name)}`"
        parts.append(f"\n## {name}\n\n{call}\n\n{text.strip()}\n")
    parts.append("\n## Results\n")
    results = (Split, SplitEven, Partition, Fission, Tile, Nest, Rfactor, Cooperative)
    for made in results:
        fields = ", ".join(field.name for field in dataclasses.fields(made))
        parts.append(f"\n`{made.__name__}({fields})`:\n{inspect.getdoc(made)}\n")
    golden(Path(__file__).parents[2] / "docs" / "primitives.md", "".join(parts))


def _made(name: str) -> str:
    found = getattr(Schedule(c.matmul), name).__signature__.return_annotation
    text = found.__name__ if isinstance(found, type) else str(found)
    return text.replace("tensorkiln.schedule.primitives.results.", "")


def _with_example(doc: str) -> str:
    """A docstring whose second paragraph, the example, is indented as code."""
    first, example, *rest = doc.split("\n\n")
    if not example.startswith("    "):
        example = indent(example, "    ")
    return "\n\n".join([first, example, *rest])


def _parameters(function: object) -> list[tuple[str, inspect.Parameter]]:
    found = inspect.signature(function).parameters.items()  # type: ignore[arg-type]
    return [(k, p.replace(annotation=inspect.Parameter.empty)) for k, p in found]


@pytest.mark.parametrize("name", ["split", "fuse", "unroll", "reorder"])
def test_a_step_is_less_than_a_millisecond_of_work(name: str) -> None:
    """As calls of Python functions, of which 5,000 take about that long."""
    i = [Var(f"i{k}") for k in range(10)]
    out = buffer("C", (2,) * 10)
    body: Stmt = Store(out, tuple(i), const(0, out.dtype))
    for v in reversed(i):
        body = For(v, const(0), const(2), "serial", body)
    f = normal(PrimFunc("f", (out,), body))
    calls = {
        "split": lambda: split(f, "i4", 2),
        "fuse": lambda: fuse(f, "i4", "i5"),
        "unroll": lambda: unroll(f, "i9"),
        "reorder": lambda: reorder(f, "i9", "i0", check=False),
    }
    calls[name]()  # what is found once is kept
    profile = cProfile.Profile()
    profile.runcall(calls[name])
    made = sum(entry.callcount for entry in profile.getstats())
    assert made < 5_000
