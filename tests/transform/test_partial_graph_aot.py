"""partial_graph_aot: the text of the form, what it refuses, and that text is all there is to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import tensorkiln as tk
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import IntImm, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.plan_form import read_plan
from tensorkiln.ir.relax import Function, RVar, Value
from tensorkiln.ir.verify import verify
from tensorkiln.ir.visit import substitute
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.pipeline import relax_passes
from tensorkiln.script import constant_table, from_source, print_function, print_module
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tests.transform.graphs import check_text, graph
from tests.transform.test_plan_memory import HOMES, NEXT, TARGET, planned
from tests.transform.test_random_graphs import modules

GOLDEN = Path(__file__).parent / "golden"


def lowered(mod: IRModule) -> IRModule:
    mod = partial_graph_aot(planned(mod))
    verify(mod)
    return mod


def _mlp(g: Graph, x: RVar) -> Value:
    for k in range(2):
        x = g.relu(g.add(g.linear(x, rand(16, 16, seed=k)), rand(16, seed=k)))
    return g.linear(x, rand(16, 4))


def form(mod: IRModule) -> str:
    """The functions of the form, without the kernels."""
    named = {f.name: f for f in mod.functions}
    functions_of_form = [named[n] for n in ("main_init", "main", "main_run") if n in named]
    return "\n".join(print_function(f) for f in functions_of_form)


@pytest.mark.parametrize(("name", "rows"), [("planned", 8), ("planned_symbolic", Var("n"))])
def test_the_form(name: str, rows: object, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.txt", form(lowered(graph(_mlp, x=(rows, 16)))))


def test_sizes_follow_the_shapes() -> None:
    mod = lowered(graph(_mlp, x=(Var("n"), 16)))
    (f,) = mod.graphs
    plan = mod.plan(f.name)
    n = f.params[0].tensor.shape[0]
    assert isinstance(n, Var)
    (size,) = (s.size for s in plan.storages)
    by_rows = [int_value(substitute(size, {n: IntImm(rows)})) for rows in (1, 7)]
    assert by_rows == [2 * 64, 2 * 7 * 64]


@pytest.mark.parametrize("rows", [3, Var("n")])
def test_the_text_is_all_there_is(rows: object) -> None:
    """module.py among the artifacts compiles, without any pass, to the same bytes."""
    exe = tk.compile(graph(_mlp, x=(rows, 16)), TARGET)
    text = next(a.text() for a in exe.artifacts if a.file_name == "module.py")
    again = from_source(text, constant_table(exe.module))  # type: ignore[arg-type]
    assert first_difference(exe.module, again) is None
    second = tk.compile(again, TARGET, relax_pipeline=None, tir_pipeline=None)
    assert second.artifacts == exe.artifacts
    third = tk.compile(again, TARGET)  # the passes leave alone what is planned
    assert third.artifacts == exe.artifacts


@settings(max_examples=25)
@given(modules())
def test_any_graph_comes_back_from_its_text(mod: IRModule) -> None:
    planned = lowered(mod)
    again = from_source(print_module(planned), constant_table(planned))  # type: ignore[arg-type]
    verify(again)
    assert first_difference(planned, again) is None
    (f,), (g,) = planned.graphs, again.graphs
    first, two = planned.plan(f.name), again.plan(g.name)
    assert [c.name for c in first.calls] == [c.name for c in two.calls]
    assert [c.span for c in first.calls] == [c.span for c in two.calls]
    assert read_plan(f, planned) == first  # what the pass made is what its text says


def test_what_is_planned_stays() -> None:
    mod = lowered(graph(_mlp, x=(8, 16)))
    assert partial_graph_aot(mod) is mod
    for p in relax_passes(TARGET):
        assert p(mod) is mod or p(mod) == mod


def test_without_memory_of_its_own_there_is_no_set() -> None:
    mod = lowered(graph(lambda g, x: g.relu(x), x=(8,)))
    assert list(mod) == ["main", "main_run", "relu"]
    assert "T.call(Module.relu, x, relu" in form(mod)


def test_constants_are_listed_once_in_order_of_use() -> None:
    w, v = rand(16, 16, seed=1), rand(16, 16, seed=2)

    def build(g: Graph, x: RVar) -> Value:
        return g.linear(g.linear(g.linear(x, v), w), v)

    mod = lowered(graph(build, x=(8, 16)))
    plan = mod.plan("main")
    assert len(plan.constants) == 2
    text = form(mod).splitlines()
    calls = [line.split(", ")[2] for line in text if "T.call" in line]
    assert calls == ["constants[0]", "constants[1]", "constants[0]"]


def test_names_that_are_taken() -> None:
    def build(g: Graph, x: RVar) -> Value:
        return g.relu(x)

    (f,) = graph(build, x=(8,)).graphs
    taken_name = Function("main_run", f.params, f.bindings, f.result, f.attrs)
    mod = lowered(IRModule((f, taken_name)))
    assert list(mod)[:4] == ["main", "main_run_2", "main_run", "main_run_run"]
    x = np.arange(-4, 4, dtype="float32")
    vm = tk.runtime.Executor(tk.compile(IRModule((f, taken_name)), TARGET), tk.cpu())
    assert vm["main"](x).numpy().tolist() == vm["main_run"](x).numpy().tolist()


# ---- programs that are not of the form -----------------------------------------------------------

PROGRAM = """
@tk.script.ir_module
class Module:
    @R.function(attrs={"storages": True})
    def init(sizes: R.Shape(("n",))) -> R.Tuple(R.Object, R.Object):
        s0: R.Object = R.alloc_storage(size=64)
        s1: R.Object = R.alloc_storage(size=n * 32)
        return (s0, s1)

    @R.function(attrs={"planned": True})
    def main(x: R.Tensor((8,), "float32"), z: R.Tensor(("n", 8), "float32")) -> R.Tensor((8,), "float32"):
        storages: R.Tuple(R.Object, R.Object) = R.call_packed("alloc_cached_storage_set", Module.init, R.shape(n), key="main")
        w: R.Tensor((8,), "float32") = R.const([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "float32", (8,))
        y: R.Tensor((8,), "float32") = Module.run(x, z, storages, (w,), R.shape(n))
        return y

    @T.prim_func(outputs=1, private=True)
    def run(x: T.Buffer((8,), "float32"), z: T.Buffer(("n", 8), "float32"), storages: T.Buffer((2,), "handle"), constants: T.Buffer((1,), "handle"), y: T.Buffer((8,), "float32"), n: T.int64):
        T.func_attr({"host": True})
        T.call(Module.add, x, constants[0], storages[0] + 32)
        T.call(Module.add, storages[0] + 32, x, y)

    @T.prim_func(private=True)
    def add(a: T.Buffer((8,), "float32", align=4), b: T.Buffer((8,), "float32", align=4), c: T.Buffer((8,), "float32", align=4)):
        for i in T.vectorized(8):
            c[i] = a[i] + b[i]
"""  # noqa: E501


def _run(source: str) -> np.ndarray:
    mod = from_source(source)
    verify(mod)
    assert first_difference(mod, from_source(print_module(mod))) is None
    vm = tk.runtime.Executor(tk.compile(mod, TARGET, relax_pipeline=None), tk.cpu())
    result = vm["main"](np.ones(8, "float32"), np.zeros((3, 8), "float32"))
    assert isinstance(result.numpy(), np.ndarray)
    return result.numpy()


def test_a_written_one_runs() -> None:
    assert _run(PROGRAM).tolist() == [3, 4, 5, 6, 7, 8, 9, 10]


def test_several_storages() -> None:
    """The second one has a symbolic size, and starts where the first ends."""
    second = PROGRAM.replace("storages[0] + 32", "storages[1]")
    assert _run(second).tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
    entry = next(
        a.text()
        for a in tk.compile(from_source(second), TARGET).artifacts
        if a.file_name == "entry.c"
    )
    assert "char *const workspace_1 = frame->workspace + 64;" in entry
    assert "*bytes = kiln_named(kiln_add(64, kiln_mul(s_n, 32, &large), &large)," in entry


def test_offsets_may_be_symbolic() -> None:
    moved = PROGRAM.replace("storages[0] + 32", "storages[1] + (n - 1) * 32")
    assert _run(moved).tolist() == [3, 4, 5, 6, 7, 8, 9, 10]


MALFORMED = [
    (
        "storages[0] + 32, x",
        "storages[2], x",
        "run.body[1].call(add).args[0]",
        "item 2 of storages, which has 2",
        "items are 0 to 1",
    ),
    (
        "storages[0] + 32, x",
        "storages[0] + 33, x",
        "main.calls[1](add).args[0]",
        "bytes 33..64 of storages[0]",
        "start at 0 to 32",
    ),
    (
        "storages[0] + 32, x",
        "storages[0] + -8, x",
        "main.calls[1](add).args[0]",
        "byte -8 of storages[0]",
        "offsets count from 0",
    ),
    (
        "add, x, constants[0]",
        "add, x, constants[0] + 4",
        "main.calls[0](add).args[1]",
        "constants[0], which has 32",
        "start at 0 to 0",
    ),
    (
        "x, constants[0], ",
        "x, storages[0] + 32, constants[0] + 0, ",
        "run.body.call(add)",
        "takes 3 arguments",
        "address, address, address",
    ),
    (
        "x, constants[0], storages[0] + 32",
        "x, x, constants[0]",
        "main.calls[0](add).args[2]",
        "writes constants",
        "results and storages",
    ),
    (
        "x, constants[0], storages[0] + 32",
        "x, x, z",
        "main.calls[0](add).args[2]",
        "writes z, which is only read",
        "results and storages",
    ),
    (
        "x, constants[0], ",
        "x, n, ",
        "run.body.call(add)",
        "argument 1 of add is address, the call gives int64",
        "AddressOf of a buffer",
    ),
    (
        "Module.init, R.shape(n)",
        "Module.init",
        "main.bindings[0](storages)",
        "init takes 1 dimensions, 0 are given",
        "a shape of: n",
    ),
    (
        "Module.init, R.shape(n)",
        "Module.add, R.shape(n)",
        "main.bindings[0](storages)",
        "with the attribute `storages`",
        "the first operand is init",
    ),
    (
        "alloc_cached_storage_set",
        "alloc_storage_set",
        "main.bindings[0](storages)",
        "call_packed of 'alloc_cached_stora",
        "init and its dimensions",
    ),
    (
        "storages, (w,)",
        "storages, (w, w)",
        "main.bindings[2](y)",
        "but there are 2 items in the set",
        "the shape (2,)",
    ),
    (
        "return (s0, s1)",
        "return (s1, s0)",
        "init",
        "does not return exactly its storages",
        "return the tuple of s0, s1",
    ),
    (
        "(w,), R.shape(n))",
        "(w,))",
        "main.bindings[2](y)",
        "run takes 1 number, the call gives 0",
        "passes: n",
    ),
    (
        "storages[0] + 32, x, y)",
        "storages[0] + 32, x, y)\n        y[0] = x[0]",
        "main.bindings[2](y)",
        "Store in a function that only calls",
        "CallKernel of a program",
    ),
]


@pytest.mark.parametrize(("old", "new", "place", "says", "hint"), MALFORMED)
def test_must_fail(old: str, new: str, place: str, says: str, hint: str) -> None:
    assert old in PROGRAM
    text = PROGRAM.replace(old, new)
    if "alloc_storage_set" in new or new.startswith("return"):
        text = text.replace("-> R.Tuple(R.Object, R.Object)", "")
    with pytest.raises(InternalError) as caught:
        verify(from_source(text))
    assert caught.value.code == "malformed-ir"
    assert caught.value.where == place
    assert says in caught.value.message and hint in caught.value.hint


def test_the_form_needs_its_mark() -> None:
    """Without `planned` the graph runs as host steps, which need code for the run function."""
    text = PROGRAM.replace('(attrs={"planned": True})', "")
    with pytest.raises(UserError, match="main calls run, which has the attribute `host`") as caught:
        tk.compile(from_source(text), TARGET)
    assert "mark main `planned`" in caught.value.hint


def test_an_unknown_kernel_is_underlined() -> None:
    with pytest.raises(UserError, match="no function 'ad' in this module") as caught:
        from_source(PROGRAM.replace("T.call(Module.add, x", "T.call(Module.ad, x"))
    assert "did you mean 'add'" in caught.value.hint


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("T.call()", "expected a function of this module"),
        ("T.call(add, x)", "expected a function of this module"),
        ("T.call(Module.add, x, nothing=1)", "unknown option 'nothing' of T.call"),
        ("T.call(Module.add, q)", "unknown name 'q'"),
    ],
)
def test_calls_that_do_not_parse(call: str, says: str) -> None:
    text = PROGRAM.replace("T.call(Module.add, storages[0] + 32, x, y)", call)
    with pytest.raises(UserError, match=says):
        from_source(text)


def test_a_plan_without_its_last_pass_is_not_lowered() -> None:
    passes = relax_passes(TARGET)[:-1]
    with pytest.raises(UserError, match="run partial_graph_aot") as caught:
        tk.compile(graph(_mlp, x=(8, 16)), TARGET, relax_pipeline=passes)
    assert caught.value.code == "not-lowered"


def test_a_plan_as_text() -> None:
    check_text(
        partial_graph_aot,
        HOMES,
        f"""
@ir_module
class Module:
    @R.function(attrs={{"storages": True}})
    def main_init() -> R.Tuple(R.Object):
        storage0: R.Object = R.alloc_storage(size=128)
        return (storage0,)

    @R.function(attrs={{"planned": True}})
    def main(x: R.Tensor((4, 8), "float32")):
        storages: R.Tuple(R.Object) = R.call_packed(
            "alloc_cached_storage_set", Module.main_init, key="main"
        )
        z: R.Tensor((4, 8), "float32") = Module.main_run(x, storages)
        return z

    @T.prim_func(outputs=1, op_class="graph", private=True)
    def main_run(
        x: T.Buffer((4, 8), "float32", align=4),
        storages: T.Buffer((1,), "handle", align=8),
        z: T.Buffer((4, 8), "float32", align=4),
    ):
        T.func_attr({{"host": True}})
        T.call(Module.next, x, storages[0])
        T.call(Module.next, storages[0], z)
{NEXT}""",
    )
