# ruff: noqa: E402  what is not installed must be named before it is imported
"""Every network of the zoo directly from torch: one library for several sizes; torch.compile."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorkiln as tk
from tensorkiln.dynamo import backend, report
from tensorkiln.frontend import from_torch
from tests.zoo.export import build
from tests.zoo.registry import NETWORKS, inputs

FAST = ("mlp",)
COMPILED = ("mlp",)


def params(fast: tuple[str, ...]) -> list[object]:
    big = [n for n in NETWORKS if n not in fast]
    return [*fast, *(pytest.param(n, marks=pytest.mark.conformance) for n in big)]


def sizes_of(name: str) -> Iterator[dict[str, int]]:
    """Three calls: the network's own sizes, and others of all symbols."""
    own = dict(NETWORKS[name].sizes)
    yield own
    yield {symbol: {"batch": 3}.get(symbol, 7) for symbol in own}
    yield {symbol: {"batch": 2}.get(symbol, 16) for symbol in own}


def close(got: Any, want: Any) -> None:
    scale = float(want.abs().max())
    found = np.asarray(got)
    assert found.shape == tuple(want.shape)
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", params(FAST))
def test_direct(name: str) -> None:
    network, module = NETWORKS[name], build(name)
    words = list(inspect.signature(module.forward).parameters)
    # torch refuses an open dimension for which the network works with one size only.
    most = {"batch": 64, "sequence": 512}
    dims = {s: torch.export.Dim(s, min=1, max=most.get(s, 512)) for s in network.sizes}
    shapes = {
        word: {axis: dims[d] for axis, d in enumerate(entry.shape) if isinstance(d, str)}
        for word, entry in zip(words, network.inputs, strict=False)
    }
    example = inputs(network, 0, **{s: max(2, n) for s, n in network.sizes.items()})
    args = tuple(map(torch.from_numpy, example.values()))
    made = from_torch(module, args, dynamic_shapes=shapes, output_names=list(network.outputs))
    run = tk.runtime.Executor(tk.compile(made))["main"]
    for seed, sizes in enumerate(sizes_of(name)):
        feeds = inputs(network, seed, **sizes)
        with torch.no_grad():
            want = torch.utils._pytree.tree_leaves(module(*map(torch.from_numpy, feeds.values())))
        found = run(*feeds.values())
        for got, expected in zip(
            found if isinstance(found, tuple | list) else [found], want, strict=True
        ):
            close(got.numpy(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", params(COMPILED))
def test_compiled(name: str) -> None:
    """Compiled once; the second size is dynamic from then on."""
    network, module = NETWORKS[name], build(name)
    torch._dynamo.reset()
    report(reset=True)
    compiled = torch.compile(module, backend=backend)
    with torch.no_grad():
        for seed, sizes in enumerate(sizes_of(name)):
            args = [*map(torch.from_numpy, inputs(network, seed, **sizes).values())]
            leaves = torch.utils._pytree.tree_leaves
            for got, want in zip(leaves(compiled(*args)), leaves(module(*args)), strict=True):
                close(got.numpy(), want)
    torch._dynamo.reset()
    found = report(reset=True)
    assert found.fallbacks == [] and found.compiled == found.graphs
