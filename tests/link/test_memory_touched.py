"""What `Executable.memory` says equals what a run touches, to the byte."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import tensorkiln as tk
from tensorkiln.executable import Executable
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import IntImm, Var, binary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, RVar, Value
from tensorkiln.ir.visit import free_vars
from tensorkiln.kernels.case import Graph, rand
from tests.link.touched import FRONT, run, shared_library
from tests.transform.graphs import arguments, graph
from tests.transform.test_pools import tables
from tests.transform.test_random_graphs import modules

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
BOARD = {"kind": "llvm", "mcpu": "haswell"}


def residual(g: Graph, x: RVar) -> Value:
    y = g.conv2d(x, rand(16, 16, 3, 3), padding=(1, 1, 1, 1))
    z = g.relu(g.add(g.conv2d(y, rand(16, 16, 3, 3, seed=1), padding=(1, 1, 1, 1)), y))
    return g.mean(g.conv2d(z, rand(32, 16, 1, 1)), axes=(2, 3))


def odd_rows(g: Graph, x: RVar) -> Value:
    """Rows of 13 floats: no value ends at a cache line."""
    y = g.softmax(g.linear(x, rand(13, 13)), axis=-1)
    return g.linear(g.softmax(g.linear(y, rand(13, 29)), axis=-1), rand(29, 3))


def dense(g: Graph, x: RVar) -> Value:
    """Concatenations whose operands lie side by side."""
    parts = [g.relu(g.conv2d(x, rand(16, 16, 1, 1)))]
    for k in range(2):
        joined = g.concat(*parts, axis=1) if k else parts[0]
        channels = 16 * len(parts)
        parts.append(g.conv2d(g.relu(joined), rand(16, channels, 1, 1, seed=k)))
    return g.mean(g.concat(*parts, axis=1), axes=(2, 3))


def views(g: Graph, x: RVar) -> Value:
    """Reshapes share memory, and two results are made of one value."""
    y = g.relu(g.linear(x, rand(12, 20)))
    z = g.softmax(g.reshape(y, shape=(6, 10)), axis=-1)
    return g.linear(g.reshape(z, shape=(3, 20)), rand(20, 7))


def attention(g: Graph, x: RVar) -> Value:
    q, k, v = (g.linear(x, rand(24, 24, seed=i)) for i in range(3))
    scores = g.softmax(g.matmul(q, g.transpose(k, axes=(1, 0))), axis=-1)
    return g.linear(g.matmul(scores, v), rand(24, 5))


CASES: list[tuple[str, Callable[..., Value], tuple[object, ...], list[dict[str, int]]]] = [
    ("residual", residual, (1, 16, 9, 11), [{}]),
    ("residual", residual, (Var("n"), 16, 9, 11), [{"n": 1}, {"n": 3}]),
    ("odd_rows", odd_rows, (7, 13), [{}]),
    ("odd_rows", odd_rows, (Var("n"), 13), [{"n": k} for k in (1, 2, 7, 16, 17)]),
    ("dense", dense, (1, 16, 10, 10), [{}]),
    ("views", views, (3, 12), [{}]),
    ("attention", attention, (11, 24), [{}]),
    ("attention", attention, (Var("n"), 24), [{"n": k} for k in (1, 5, 33)]),
]


def numbers(exe: Executable, mod: IRModule, sizes: dict[str, int], folder: Path) -> None:
    """Assert that a run touches what the report says, byte by byte up to the last one."""
    (f,) = exe.functions
    report = exe.memory(sizes)
    pools = [p for p in report.functions["main"].pools.values() if p.workspace]
    aligns = [s.align for s in f.storages] if f.info.pools else [64]
    inputs = arguments(mod, **sizes)
    expected = tk.runtime.Executor(exe, tk.cpu())["main"](*inputs.values())
    results = [r.numpy() for r in (expected if isinstance(expected, tuple) else (expected,))]
    case = {
        "function": f"kiln_{exe.name}_run",
        "pools": [(p.workspace, align) for p, align in zip(pools, aligns, strict=True)],
        "sizes": [sizes[name] for name in f.info.symbols],
        "results": [(r.shape, str(r.dtype)) for r in results],
    }
    library = folder / f"{exe.name}.so"
    if not library.exists():
        shared_library(exe, folder)
    touched = run(library, case, inputs)
    for a, b in zip(touched.outputs, results, strict=True):
        assert a.tobytes() == b.tobytes()
    assert len(touched.maps) == len(pools) > 0
    for pool, where in zip(pools, touched.maps, strict=True):
        assert isinstance(pool.workspace, int)
        assert not where[:FRONT].any(), "bytes before the pool were written"
        (last,) = np.flatnonzero(where)[-1:] - FRONT
        assert last + 1 == pool.workspace


@pytest.mark.in_turn("name")
@needs_gcc
@pytest.mark.parametrize(
    ("name", "build", "shape", "runs"), CASES, ids=[f"{c[0]}{'-n' * bool(c[3][0])}" for c in CASES]
)
def test_the_workspace_is_what_is_touched(
    name: str,
    build: Callable[..., Value],
    shape: tuple[object, ...],
    runs: list[dict[str, int]],
    tmp_path: Path,
) -> None:
    mod = graph(build, x=shape)
    mod = IRModule(mod.functions, name)
    exe = tk.compile(mod, BOARD)
    for sizes in runs:
        numbers(exe, mod, sizes, tmp_path)
    executor = tk.runtime.Executor(exe, tk.cpu())
    executor["main"](*arguments(mod, **runs[-1]).values())
    (pool,) = exe.memory(runs[-1]).functions["main"].pools.values()
    assert executor.workspace_bytes == pool.reserved


def bounded(mod: IRModule, **most: int) -> IRModule:
    """The module with upper bounds of its dimensions."""
    (f,) = mod.functions
    assert isinstance(f, Function)
    dims = {v.name: v for p in f.params for d in p.tensor.shape for v in free_vars(d)}
    limits = tuple(binary("le", dims[name], IntImm(n)) for name, n in most.items())
    return IRModule((replace(f, attrs=Attrs.of(**dict(f.attrs), assumes=limits)),), mod.name)


@pytest.mark.in_turn("name")
@needs_gcc
@pytest.mark.parametrize(
    ("name", "build", "shape", "runs"), CASES, ids=[f"{c[0]}{'-n' * bool(c[3][0])}" for c in CASES]
)
def test_pools_are_touched_to_the_byte(
    name: str,
    build: Callable[..., Value],
    shape: tuple[object, ...],
    runs: list[dict[str, int]],
    tmp_path: Path,
) -> None:
    """The first pool is too small for all; what is reserved is needed at the upper bounds."""
    most = runs[-1]
    mod = bounded(IRModule(graph(build, x=shape).functions, name), **most)
    (all_of_it,) = tk.compile(mod, BOARD).memory(most).functions["main"].pools.values()
    assert isinstance(all_of_it.workspace, int)
    fast = {"name": "dtcm", "size": max(8, all_of_it.workspace * 2 // 3), "align": 8}
    memory = [fast, {"name": "sram", "align": 16}, {"name": "rom", "kind": "flash"}]
    exe = tk.compile(mod, {**BOARD, "memory": memory})
    pools = exe.memory().functions["main"].pools
    assert pools["dtcm"].most and pools["dtcm"].most <= fast["size"]
    for p in pools.values():
        assert p.reserved == p.most  # to the byte, at the upper bounds
    assert pools["rom"].constants == all_of_it.constants and pools["rom"].workspace == 0
    for sizes in runs:
        numbers(exe, mod, sizes, tmp_path)


@needs_gcc
@settings(max_examples=5)
@given(modules(), tables())
def test_random_graphs_touch_what_is_said(mod: IRModule, table: list[dict[str, object]]) -> None:
    """Whatever the graph and the pools; the last pool has no size, so that everything fits."""
    last = [{"name": "rest", "align": 8}] if "size" in table[-1] else []
    exe = tk.compile(mod, {**BOARD, "memory": [*table, *last]})
    pools = exe.memory().functions["main"].pools
    for p, asked in zip(pools.values(), [*table, *last], strict=False):
        assert p.workspace == p.reserved and p.reserved <= asked.get("size", p.reserved)  # type: ignore[operator]
    if any(p.workspace for p in pools.values()):
        with tempfile.TemporaryDirectory() as folder:
            numbers(exe, mod, {}, Path(folder))


@needs_gcc
def test_a_byte_less_is_noticed(tmp_path: Path) -> None:
    """The harness: a pool that is too small ends the process, or bytes beside it are written."""
    mod = IRModule(graph(odd_rows, x=(8, 13)).functions, "small")
    exe = tk.compile(mod, BOARD)
    library = shared_library(exe, tmp_path)
    (pool,) = exe.memory().functions["main"].pools.values()
    assert isinstance(pool.workspace, int)
    case = {
        "function": "kiln_small_run",
        "sizes": [],
        "results": [((8, 3), "float32")],
    }
    less = pool.workspace - 4
    touched = run(library, {**case, "pools": [(less, 64)]}, arguments(mod))
    assert touched.maps[0][FRONT + less :].any()
    with pytest.raises(AssertionError, match="exit -11"):
        run(library, {**case, "pools": [(less // 64 * 64, 64)]}, arguments(mod))
