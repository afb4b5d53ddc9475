"""Kernels of an executable, timed by their C symbols: counts, operands, arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import FloatImm, IntImm, Var, binary, minimum
from tensorkiln.ir.relax import tensor
from tensorkiln.ir.stmt import For, Store
from tensorkiln.kernels.case import rand
from tensorkiln.measure.kernels import flops, least_time, operands, size_of, time_kernels
from tests.transform.graphs import graph

N = Var("n")


def network(g: Any, x: Any) -> Any:
    return g.softmax(g.relu(g.linear(x, rand(32, 48), rand(48))), axis=-1)


def test_rows_of_a_model_with_a_symbolic_dimension() -> None:
    exe = tk.compile(graph(network, x=tensor((N, 32), "float32")))
    few, many = ({r.name: r for r in time_kernels(exe, 0.002, 1, {"n": n})} for n in (1, 4096))
    assert set(few) == {k.kernel for k in exe.placement()}
    linear = many["linear_relu"]
    assert linear.calls == 1 and linear.op_class == "linear_packed"
    assert linear.flops >= 2 * 4096 * 32 * 48 > few["linear_relu"].flops
    assert linear.moved == 4 * (4096 * 32 + 4096 * 48 + 32 * 48 + 48)
    for name, row in many.items():
        assert math.isfinite(row.micros) and row.total == row.micros
        assert row.micros > 4 * few[name].micros


def test_a_kernel_that_runs_twice_counts_twice() -> None:
    mod = graph(lambda g, x: g.softmax(g.silu(g.softmax(x, axis=-1)), axis=-1), x=(8, 16))
    rows = {r.name: r for r in time_kernels(tk.compile(mod), 0.001)}
    assert rows["softmax"].calls == 2 and rows["softmax"].total == 2 * rows["softmax"].micros


def test_operands_are_those_of_the_c_function() -> None:
    mod = graph(lambda g, x: g.silu(x), x=tensor((N, 6), "float32"))
    exe = tk.compile(mod)
    (f,) = exe.module.kernels
    given = operands(f, {"n": 5})
    assert given is not None
    arrays, rest = given[:-1], given[-1]
    assert [a.size for a in arrays if isinstance(a, np.ndarray)] == [30, 30] and rest == 5
    external = tk.compile(mod, externals=[C_REFERENCE]).module.externals
    taken = [operands(e, {"n": 5}) for e in external]
    for made in taken:
        assert made is not None and made[-1] == 5


def test_hidden_symbols_of_externals_are_not_timed() -> None:
    mod = graph(lambda g, x: g.tanh(g.add(x, 1.0)), x=(8,))
    rows = time_kernels(tk.compile(mod, externals=[C_REFERENCE]), 0.001)
    hidden = [r for r in rows if r.op_class == "external:c_reference"]
    assert hidden and all(math.isnan(r.micros) for r in hidden)


def test_sizes_and_arithmetic() -> None:
    assert size_of(N * 3 + 1, {"n": 4}) == 13 and size_of(N, {}) == 1
    mod = graph(lambda g, x: g.mul(g.add(x, 1.0), 2.0), x=tensor((N, 8), "float32"))
    (f,) = tk.compile(mod).module.with_programs().prim_funcs
    assert flops(f.body, {"n": 100}) == pytest.approx(2 * 800, rel=0.1)


def test_extents_that_depend_on_outer_loops() -> None:
    """The rounds of each loop, not a product of extents: of triangles, tiles, remainders."""
    x, i, j = Buffer("x", FLOAT32, (N, N)), Var("i"), Var("j")
    step = Store(x, (i, j), binary("add", Load(x, (i, j)), FloatImm(1.0)))
    for extent, count in (
        (i, lambda n: n * (n - 1) // 2),
        (N - i * 16, lambda n: sum(max(0, n - i * 16) for i in range(n))),
        (minimum(8, N - i * 8), lambda n: n),
    ):
        inner = For(j, IntImm(0), extent, "serial", step)
        loop = For(i, IntImm(0), N, "serial", inner)
        for size in (1, 5, 40, 64, 1000):
            got = flops(loop, {"n": size})
            assert got == pytest.approx(count(size), rel=0 if size <= 64 else 0.2)


def test_the_least_of_three_calls_at_least() -> None:
    calls: list[int] = []
    assert math.isfinite(least_time(lambda: calls.append(0), 0.0))
    assert len(calls) == 4
