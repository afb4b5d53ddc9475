"""The memory report: its figures against plans that can be counted by hand, its forms, budgets."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.codegen.memory import MemoryReport
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.script import T, from_source
from tests.transform.graphs import graph

TARGET = {"kind": "llvm", "mcpu": "haswell"}


def chain(g: Graph, x: RVar) -> Value:
    """Intermediate results of 32, 48 and 40 columns."""
    for k, columns in enumerate((32, 48, 40, 8)):
        x = g.linear(x, rand(int(x.tensor.shape[-1].value), columns, seed=k))
    return x


def report(mod: IRModule, **sizes: int) -> MemoryReport:
    return tk.compile(mod, TARGET).memory(sizes)


def test_a_chain() -> None:
    """The second and the third result are in memory when the third layer runs."""
    memory_report = report(graph(chain, x=(3, 16)))
    f = memory_report.functions["main"]
    (name, pool), *other_pools = f.pools.items()
    assert not other_pools and name == "memory" and pool.kind == "ram" and pool.capacity is None
    peak = 3 * (48 + 40) * 4
    assert pool.workspace == pool.most and pool.reserved % 64 == 0
    assert peak <= pool.workspace <= pool.reserved < pool.workspace + 64
    assert f.io.inputs == 3 * 16 * 4 and f.io.outputs == 3 * 8 * 4
    assert f.peak is not None and (f.peak.call, f.peak.bytes, f.peak.at) == (3, peak, {})
    assert [(t.bytes, t.shape, t.dtype) for t in f.largest] == [
        (3 * 48 * 4, (3, 48), "float32"),
        (3 * 40 * 4, (3, 40), "float32"),
    ]
    assert {t.node for t in f.largest} == {"node linear"} == {t.name for t in f.largest}
    assert f.peak.node == "node linear" and f.peak.kernel in {t.kernel for t in f.largest}


def test_constants_are_those_of_the_library() -> None:
    exe = tk.compile(graph(chain, x=(3, 16)), TARGET)
    weights = next(a.size for a in exe.artifacts if a.file_name == "weights.bin")
    memory_report = exe.memory()
    assert memory_report.pools["memory"].constants == weights
    assert memory_report.functions["main"].pools["memory"].constants == weights


def test_symbolic_sizes_are_formulas_and_numbers() -> None:
    mod = graph(chain, x=(Var("n"), 16))
    f = report(mod).functions["main"]
    assert isinstance(f.pools["memory"].workspace, str) and "n" in f.pools["memory"].workspace
    assert f.pools["memory"].most is None and f.peak is not None and f.peak.at == {"n": 1}
    assert f.io.inputs == "n * 64"
    for n in (1, 3, 50):
        function_memory = report(mod, n=n).functions["main"]
        pool = function_memory.pools["memory"]
        assert isinstance(pool.workspace, int) and isinstance(pool.reserved, int)
        assert 0 <= pool.reserved - pool.workspace < 64
        assert function_memory.peak is not None and function_memory.peak.at == {"n": n}
        assert function_memory.peak.bytes == n * (48 + 40) * 4


BOUNDED = """
@R.function(attrs={"assumes": (n <= 24,)})
def main(x: R.Tensor(("n", 16), "float32")) -> R.Tensor(("n", 16), "float32"):
    a: R.Tensor(("n", 16), "float32") = R.softmax(x, axis=-1)
    y: R.Tensor(("n", 16), "float32") = R.softmax(a, axis=-1)
    return y
"""


def test_an_upper_bound_is_stated() -> None:
    exe = tk.compile(from_source(BOUNDED), TARGET)
    f = exe.memory().functions["main"]
    assert f.pools["memory"].workspace == "n * 64" and f.pools["memory"].most == 24 * 64
    assert f.peak is not None and f.peak.at == {"n": 24} and f.peak.bytes == 24 * 64
    with pytest.raises(UserError, match="needs 1,536 bytes, has 1,535, 1 too many") as caught:
        tk.compile(from_source(BOUNDED), TARGET, max_workspace=1535)
    assert caught.value.code == "workspace"
    tk.compile(from_source(BOUNDED), TARGET, max_workspace=1536)


@tk.script.ir_module
class Programs:
    @T.prim_func
    def staged(A: T.Buffer((8, 8)), C: T.Buffer((8, 8))) -> None:
        t = T.alloc_buffer((8, 8), "float32", scope="local")
        for i, j in T.grid(8, 8):
            t[i, j] = A[i, j]
        for i, j in T.grid(8, 8):
            C[i, j] = t[7 - i, 7 - j]

    @T.prim_func
    def calls(A: T.Buffer((8, 8)), C: T.Buffer((8, 8))) -> None:
        t = T.alloc_buffer((4,), "float64", scope="local")
        t[0] = T.float64(0)
        T.call(Programs.staged, A, C)


def test_stack_and_tensor_programs() -> None:
    memory_report = tk.compile(Programs, TARGET).memory()
    assert {n: f.stack for n, f in memory_report.functions.items()} == {"staged": 256, "calls": 288}
    assert memory_report.stack == 288
    f = memory_report.functions["staged"]
    assert (f.io.inputs, f.io.outputs, f.peak, f.largest) == (256, 256, None, ())
    assert f.pools["memory"].workspace == 0


def test_the_stack_of_a_known_kernel_is_that_of_its_program(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second compile has its kernels from the cache, without their bodies."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    mod = graph(lambda g, x: g.conv2d(x, rand(16, 16, 3, 3), padding=(1,) * 4), x=(1, 16, 28, 28))
    first, second = (tk.compile(mod, TARGET) for _ in range(2))
    assert first.module.prim_funcs and not second.module.prim_funcs
    known_memory, programs = second.memory(), tk.compile(first.module, TARGET, relax_pipeline=None)
    assert first.memory() == known_memory
    assert programs.memory().stack == known_memory.stack and known_memory.stack


def test_outer_functions_are_named() -> None:
    text = """
@R.function
def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    if c:
        y: R.Tensor((4,), "float32") = R.exp(R.softmax(x, axis=-1))
    else:
        y: R.Tensor((4,), "float32") = R.tanh(x)
    return y
"""
    exe = tk.compile(from_source(text), TARGET)
    assert exe.memory().unplanned == ("main",)
    with pytest.raises(UnsupportedError, match="main: host steps .* allocate as they run"):
        tk.compile(from_source(text), TARGET, max_workspace="1G")


def test_forms() -> None:
    mod = IRModule(graph(chain, x=(Var("n"), 16)).functions, "a<b")
    memory_report = report(mod)
    text = str(memory_report)
    for part in ("memory of a<b", "n * 64", "node linear", "stack", "float32 1 x 48"):
        assert part in text
    html = memory_report._repr_html_()
    assert html.count("<table>") == 4 and "a&lt;b" in html and "a<b" not in html
    row = json.loads(json.dumps(memory_report.to_json()))
    assert row["functions"]["main"]["pools"]["memory"]["most"] is None
    assert row["functions"]["main"]["largest"][0]["shape"] == [1, 48]
    assert json.dumps(memory_report.to_json()) == json.dumps(report(mod).to_json())


@pytest.mark.parametrize(
    ("sizes", "match", "code"),
    [
        ({"m": 3}, "no dimension 'm'; there are n", "unknown-dimension"),
        ({"n": -1}, "is -1, expected a whole number from 0", "bad-argument"),
        ({"n": True}, "is True", "bad-argument"),
    ],
)
def test_wrong_sizes(sizes: dict[str, int], match: str, code: str) -> None:
    exe = tk.compile(graph(chain, x=(Var("n"), 16)), TARGET)
    with pytest.raises(UserError, match=match) as caught:
        exe.memory(sizes)
    assert caught.value.code == code


# -- budgets -------------------------------------------------------------------------------------


def test_a_budget_fails_before_code_generation() -> None:
    """Need, have, excess and the largest values; what fits is compiled to the same bytes."""
    mod = graph(chain, x=(3, 16))
    free = tk.compile(mod, TARGET)
    need = free.memory().pools["memory"].reserved
    assert isinstance(need, int)
    steps: list[str] = []

    class Watch:
        def before(self, step: object) -> None:
            pass

        def after(self, step: object) -> None:
            steps.append(step.name)  # type: ignore[attr-defined]

    with pytest.raises(UserError) as caught:
        tk.compile(mod, TARGET, max_workspace=need - 1, instruments=[Watch()])
    error = caught.value
    assert (error.code, error.where) == ("workspace", "main")
    assert f"needs {need:,} bytes, has {need - 1:,}, 1 too many" in error.message
    assert "float32 3 x 48" in error.message and "float32 3 x 40" in error.message
    assert steps[-1] == "partial_graph_aot"
    exact = tk.compile(mod, TARGET, max_workspace=need)
    assert [a.sha256 for a in exact.artifacts] == [a.sha256 for a in free.artifacts]


def test_a_size_without_bound_cannot_be_held_against_a_budget() -> None:
    with pytest.raises(UserError, match="have no upper bound; there are 1,048,576") as caught:
        tk.compile(graph(chain, x=(Var("n"), 16)), TARGET, max_workspace="1M")
    assert caught.value.code == "unbounded-size" and "assumes" in caught.value.hint


@pytest.mark.parametrize("budget", ["", "12Q", "-1", -1, 1.5, True, [], "K", "sram=1K,sram=2K"])
def test_wrong_budgets(budget: object) -> None:
    with pytest.raises(UserError, match="max_workspace") as caught:
        tk.compile(graph(chain, x=(3, 16)), TARGET, max_workspace=budget)  # type: ignore[arg-type]
    assert caught.value.code == "bad-argument"


@pytest.mark.parametrize("budget", ["sram=200K", {"sram": 4096}])
def test_a_budget_for_a_pool_that_is_not_there(budget: object) -> None:
    with pytest.raises(UserError, match="no pool 'sram'") as caught:
        tk.compile(graph(chain, x=(3, 16)), TARGET, max_workspace=budget)  # type: ignore[arg-type]
    assert caught.value.code == "unknown-pool"


def test_results_without_intermediate_values() -> None:
    exe = tk.compile(graph(lambda g, x: g.relu(x), x=(3, 16)), TARGET, max_workspace=0)
    f = exe.memory().functions["main"]
    assert f.pools["memory"].workspace == 0 and f.peak is None
    x = np.ones((3, 16), np.float32)
    assert (exe(x) == 1).all()
