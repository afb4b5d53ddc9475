"""Floating point operations and bytes of fused groups, against the formulas by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorkiln as tk
from bench.limits import Limits
from bench.work import Groups, Work, work_of
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import rand
from tests.transform.graphs import graph, main


def works(build: Callable[..., Any], **shapes: Any) -> dict[str, Work]:
    """The work of each kernel."""
    groups = Groups()
    exe = tk.compile(graph(build, **shapes), instruments=[groups])
    return {k.symbol: work_of(groups.functions[k.symbol]) for k in exe.kernels}


def test_linear() -> None:
    works_by_name = works(lambda g, x: g.relu(g.linear(x, rand(32, 48), rand(48))), x=(10, 32))
    (work,) = works_by_name.values()
    assert work.flops == 10 * 48 * (2 * 32 + 1)
    assert sorted(work.reads) == [4 * 48, 4 * 10 * 32, 4 * 32 * 48] and work.writes == 4 * 10 * 48


@pytest.mark.parametrize(("groups", "inputs"), [(1, 32), (32, 1)])
def test_convolution(groups: int, inputs: int) -> None:
    weight = rand(32, inputs, 3, 3)
    works_by_name = works(
        lambda g, x: g.conv2d(x, weight, padding=(1, 1, 1, 1), groups=groups), x=(1, 32, 9, 7)
    )
    (flops,) = [w.flops for w in works_by_name.values() if w.flops]
    assert flops == 32 * 9 * 7 * 2 * inputs * 9


def test_a_transposed_convolution_multiplies_each_element_by_every_weight() -> None:
    weight = rand(16, 32, 3, 3)
    works_by_name = works(
        lambda g, x: g.conv2d_transpose(x, weight, strides=(2, 2)), x=(1, 16, 5, 7)
    )
    (flops,) = [w.flops for w in works_by_name.values() if w.flops]
    assert flops == 16 * 5 * 7 * 2 * 32 * 9


def test_a_causal_attention_does_half_the_work() -> None:
    def flops(causal: bool) -> float:
        shapes = dict.fromkeys("qkv", (1, 4, 16, 8))
        mod = graph(lambda g, q, k, v: g.attention(q, k, v, scale=0.1, causal=causal), **shapes)
        return work_of(main(mod)).flops

    assert flops(False) == 4 * 16 * 16 * (2 * 8 + 2 * 8 + 4)
    assert flops(True) == flops(False) * (16 - 7.5) / 16


def test_a_gather_reads_what_it_takes() -> None:
    table = rand(1000, 16)
    works_by_name = works(
        lambda g, i: g.take(table, i, axis=0, outside="clamp"), i=tensor((1, 5), "int64")
    )
    (work,) = works_by_name.values()
    assert work.flops == 0 and sorted(work.reads) == [5 * 8, 5 * 16 * 4] and work.writes == 5 * 64


def test_symbolic_sizes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="symbolic"):
        works(lambda g, x: g.relu(x), x=tensor((Var("n"), 8), "float32"))


def test_bandwidth_is_that_of_the_largest_footprint_that_it_holds() -> None:
    limits = Limits({"float32": 100.0}, ((1 << 10, 90.0), (1 << 20, 30.0)))
    sizes = (1, 1024, (1 << 20) - 1, 1 << 20, 1 << 30)
    assert [limits.bandwidth(n) for n in sizes] == [90, 90, 90, 30, 30]
