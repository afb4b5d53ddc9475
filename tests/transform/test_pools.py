"""Plans over pools of memory: any graph in any pools is sound, or refused with what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorkiln as tk
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.codegen.memory.budget import Budget, require_memory
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import IntImm, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.script import constant_table, from_source
from tensorkiln.target import Target
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tensorkiln.transform.relax.pools import divide
from tensorkiln.transform.relax.storages import StoragePart, StorageParts
from tests.transform.graphs import arguments, graph
from tests.transform.test_plan_memory import check_plan, planned
from tests.transform.test_random_graphs import modules

BOARD = {"kind": "llvm", "mcpu": "haswell"}


def board(*pools: dict[str, object]) -> Target:
    return Target({**BOARD, "memory": list(pools)})


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, object]]:
    """One to three pools of RAM, which may be too small; the last may be of any size."""
    count = draw(st.integers(1, 3))
    out: list[dict[str, object]] = []
    for i in range(count):
        pool: dict[str, object] = {"name": f"p{i}", "align": draw(st.sampled_from((8, 16, 32, 64)))}
        if i < count - 1 or draw(st.booleans()):
            pool["size"] = draw(st.integers(1, 1200))
        out.append(pool)
    return out


def sound(mod: IRModule, target: Target) -> bool:
    """Assert that a plan for the pools is sound; False if it was refused for lack of memory."""
    plan = planned(mod, target)
    check_plan(plan)
    (f,) = plan.graphs
    sizes = {name: (size, align) for name, size, align in f.attrs.pools}
    pools = {p.name: p for p in target.memory}
    for name, (_, align) in sizes.items():
        assert align == pools[name].align
    over = [n for n, (size, _) in sizes.items() if (pools[n].size or size) < size]
    split = partial_graph_aot(plan)
    try:
        require_memory(split, target.memory, Budget())
    except UserError as error:
        (name,) = over  # the last one: others never overflow
        assert name == [p.name for p in target.memory if p.kind == "ram"][-1]
        need, have = sizes[name][0], pools[name].size
        assert error.code == "workspace" and error.where == "main" and have is not None
        assert f"pool {name!r}: needs {need:,} bytes, has {have:,}, {need - have:,}" in str(error)
        assert "largest at the peak" in str(error)
        return False
    assert not over
    return True


@settings(max_examples=60)
@given(modules(), tables())
def test_any_plan_is_sound_or_refused(mod: IRModule, table: list[dict[str, object]]) -> None:
    sound(mod, board(*table))


@settings(max_examples=6)
@given(modules(), tables())
def test_results_do_not_depend_on_pools(mod: IRModule, table: list[dict[str, object]]) -> None:
    table = [*table, {"name": "rest"}] if "size" in table[-1] else table
    inputs = list(arguments(mod).values())
    first, second = (tk.compile(mod, t)(*inputs) for t in (BOARD, board(*table)))
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()


# -- which pool ----------------------------------------------------------------------------------


def storage(size: int, start: int, end: int, times: int) -> StorageParts:
    return StorageParts([StoragePart(0, IntImm(size), start, end)], traffic=size * times)


def placed(
    storages: list[StorageParts], *pools: tuple[str, int | None]
) -> list[tuple[str, int | None]]:
    target = board(*({"name": n, **({"size": s} if s else {}), "align": 8} for n, s in pools))
    divide(storages, target.memory)
    return [(s.pool, int_value(s.offset)) for s in storages if s.offset is not None]


def test_what_is_used_most_is_in_the_fast_pool() -> None:
    """By the bytes moved for each byte and call, not by the order of the model."""
    rare, often, long = storage(64, 0, 1, 2), storage(64, 0, 1, 6), storage(64, 0, 9, 7)
    assert placed([rare, often, long], ("a", 64), ("b", 128)) == [("b", 0), ("a", 0), ("b", 64)]


def test_what_does_not_live_at_once_shares_the_fast_pool() -> None:
    first, two, three = storage(60, 0, 1, 2), storage(60, 2, 3, 2), storage(8, 0, 3, 1)
    placements = placed([first, two, three], ("a", 64), ("b", None))
    assert placements == [("a", 0), ("a", 0), ("b", 0)]


def test_a_pool_is_packed_anew_before_a_value_leaves_it() -> None:
    """Placed in the order of gain there is no gap; largest first there is one."""
    small, wide, large = storage(8, 0, 3, 9), storage(16, 2, 5, 7), storage(24, 4, 7, 5)
    placements = placed([small, wide, large], ("a", 40), ("b", None))
    assert {pool for pool, _ in placements} == {"a"}


def test_overflow_is_in_the_last_pool_and_is_as_small_as_can_be() -> None:
    storages = [storage(40, 0, 1, 9), storage(48, 0, 1, 1), storage(32, 0, 1, 5)]
    target = board({"name": "a", "size": 48, "align": 8}, {"name": "b", "size": 64, "align": 8})
    first, last = divide(storages, target.memory)
    # The value of 48 bytes fits into one of the pools only if the others share the second.
    assert (int_value(first.size), int_value(last.size)) == (48, 72)


# -- the whole way -------------------------------------------------------------------------------


def shortcut(g: Graph, x: RVar) -> Value:
    x = g.softmax(x, axis=-1)
    wide = g.relu(g.linear(x, rand(64, 256)))
    narrow = g.relu(g.linear(wide, rand(256, 16)))
    return g.softmax(g.add(x, g.linear(narrow, rand(16, 64))), axis=-1)


POOLS = (
    {"name": "dtcm", "size": "4K", "align": 8},
    {"name": "sram", "size": "64K", "align": 32},
    {"name": "rom", "size": "1M", "kind": "flash"},
)


def test_a_module_with_pools_is_its_text() -> None:
    exe = tk.compile(graph(shortcut, x=(8, 64)), board(*POOLS))
    text = exe.module.script()
    assert 'R.alloc_storage(align=8, pool="dtcm", size=' in text
    assert 'R.alloc_storage(align=32, pool="sram", size=' in text
    again = from_source(text, constant_table(exe.module))  # type: ignore[arg-type]
    assert first_difference(exe.module, again) is None
    second = tk.compile(again, board(*POOLS), relax_pipeline=None, tir_pipeline=None)
    assert second.artifacts == exe.artifacts
    assert second.memory() == exe.memory()


def test_what_says_so() -> None:
    """The report, the library's metadata and the plan for people agree."""
    exe = tk.compile(graph(shortcut, x=(8, 64)), board(*POOLS))
    pools = exe.memory().functions["main"].pools
    assert [(n, p.capacity, p.kind) for n, p in pools.items()] == [
        ("dtcm", 4096, "ram"),
        ("sram", 65536, "ram"),
        ("rom", 1 << 20, "flash"),
    ]
    (f,) = exe.functions
    assert [(p.name, p.bytes, p.align) for p in f.info.pools] == [
        ("dtcm", pools["dtcm"].workspace, 8),
        ("sram", pools["sram"].workspace, 32),
    ]
    plan = exe.artifacts["plan.txt"].text()
    assert f"storage 1 is at +{f.storages[1].start}, pool sram, {f.storages[1].size} bytes" in plan
    assert int(str(f.storages[1].start)) % 32 == 0


def test_pools_of_a_model_in_an_archive(tmp_path: Any) -> None:
    exe = tk.compile(graph(shortcut, x=(8, 64)), board(*POOLS))
    archive = exe.export_model_library_format(tmp_path / "net.tar")
    (function,) = open_model_library(archive).model().functions.values()
    pools = exe.memory().functions["main"].pools
    assert [(p.name, p.size_bytes, p.alignment) for p in function.pools] == [
        ("dtcm", pools["dtcm"].workspace, 8),
        ("sram", pools["sram"].workspace, 32),
    ]
    folder = exe.export_model_library_format(tmp_path / "net")
    header = (folder / "codegen/host/include/kiln_net.h").read_text()
    for name, align in (("dtcm", 8), ("sram", 32)):
        size = pools[name].workspace
        assert f"#define KILN_NET_{name.upper()}_SIZE {size}\n" in header
        assert (
            f"    void *{name}; /* {size} bytes, at an address divisible by {align} */\n" in header
        )


def test_budgets_of_pools() -> None:
    mod, target = graph(shortcut, x=(8, 64)), board(*POOLS)
    reserved = tk.compile(mod, target).memory().functions["main"].pools["sram"].reserved
    assert isinstance(reserved, int)
    tk.compile(mod, target, max_workspace={"sram": reserved})
    with pytest.raises(
        UserError, match=f"pool 'sram': needs {reserved:,} bytes, has {reserved - 1:,}"
    ):
        tk.compile(mod, target, max_workspace=f"sram={reserved - 1},dtcm=4K")
    with pytest.raises(UserError, match="no pool 'sran'") as caught:
        tk.compile(mod, target, max_workspace="sran=1K")
    assert "'sram'" in caught.value.hint
    with pytest.raises(UserError, match="no pool 'rom' for intermediate results"):
        tk.compile(mod, target, max_workspace={"rom": 1})


def test_weights_that_do_not_fit() -> None:
    small = {"name": "rom", "size": 4096, "kind": "flash"}
    with pytest.raises(UserError, match="pool 'rom': weights need .* it has 4,096") as caught:
        tk.compile(graph(shortcut, x=(8, 64)), board(*POOLS[:2], small))
    assert caught.value.code == "workspace"


def test_sizes_without_bound() -> None:
    """They need a pool without size, which is the last; there they are formulas."""
    mod = graph(shortcut, x=(Var("n"), 64))
    with pytest.raises(UserError, match="n have no upper bound|no upper bound") as caught:
        tk.compile(mod, board(*POOLS))
    assert caught.value.code == "unbounded-size"
    exe = tk.compile(mod, board(POOLS[0], {"name": "dram"}))
    pool = exe.memory().functions["main"].pools["dram"]
    assert isinstance(pool.workspace, str) and "n" in pool.workspace and pool.most is None
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    assert exe(x).tobytes() == tk.compile(mod, BOARD)(x).tobytes()


def test_control_flow_has_no_pools() -> None:
    text = """
@R.function
def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    if c:
        y: R.Tensor((4,), "float32") = R.exp(x)
    else:
        y: R.Tensor((4,), "float32") = R.tanh(x)
    return y
"""
    with pytest.raises(UnsupportedError, match="main: host steps .* allocate as they run"):
        tk.compile(from_source(text), board(*POOLS))


STORAGES = """
@R.function(attrs={"storages": True})
def init() -> R.Tuple(R.Object):
    s: R.Object = R.alloc_storage(size=64%s)
    return (s,)

@T.prim_func(private=True)
def step(x: T.Buffer((4,), "float32", align=4), y: T.Buffer((4,), "float32", align=4)):
    for i in range(4):
        y[i] = x[i] + T.float32(1)

@T.prim_func(private=True, outputs=1)
def run(x: T.Buffer((4,), "float32", align=4), storages: T.Buffer((1,), "handle", align=8),
        y: T.Buffer((4,), "float32", align=4)):
    T.func_attr({"host": True})
    T.call(Module.step, x, storages[0])
    T.call(Module.step, storages[0], y)

@R.function(attrs={"planned": True})
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    s: R.Tuple(R.Object) = R.call_packed("alloc_cached_storage_set", Module.init, key="k")
    y: R.Tensor((4,), "float32") = Module.run(x, s)
    return y
"""


@pytest.mark.parametrize(
    ("options", "pools", "match"),
    [
        (', pool="sram"', (), "a storage of pool 'sram'; the target's are none"),
        (', pool="sran"', POOLS, "a storage of pool 'sran'"),
        (', pool="rom"', POOLS, "a storage of pool 'rom'"),
        ("", POOLS, "a storage of no pool; the target's are dtcm, sram"),
        (', pool="dtcm"', POOLS, "aligned to 64 bytes in pool 'dtcm', which is aligned to 8"),
        (', pool="dtcm", align=12', POOLS, "align=12"),
        (', pool="dtcm", align=True', POOLS, "align=True"),
        (', pool=""', POOLS, "pool=''"),
        (", pool=3", POOLS, "pool=3"),
        (', pol="dtcm"', POOLS, "unknown option 'pol'"),
    ],
)
def test_storages_of_wrong_pools(options: str, pools: tuple[Any, ...], match: str) -> None:
    with pytest.raises(UserError, match=match):
        tk.compile(
            from_source(STORAGES % options),
            board(*pools) if pools else BOARD,
            relax_pipeline=None,
        )


def test_a_storage_of_a_pool_by_hand() -> None:
    mod = from_source(STORAGES % ', pool="sram", align=16')
    exe = tk.compile(mod, board(*POOLS), relax_pipeline=None)
    assert exe(np.zeros(4, np.float32)).tolist() == [2, 2, 2, 2]
    pool = exe.memory().functions["main"].pools["sram"]
    assert (pool.workspace, pool.reserved) == (16, 64)  # a script may ask for more than it needs


def test_one_pool_takes_no_more_than_a_workspace() -> None:
    mod = graph(shortcut, x=(8, 64))
    first, second = planned(mod), planned(mod, board({"name": "only", "align": 64}))
    assert check_plan(first) >= check_plan(second) > 0
