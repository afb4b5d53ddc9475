"""Products in parts of their terms, where a GPU has more multiprocessors than they have tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.families.contraction.costs import parts_of
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar, tensor
from tensorkiln.kernels.case import Case, halves, rand
from tensorkiln.ops import call, infer
from tensorkiln.target import Target
from tests.cuda.networks import let_run

H100 = {"kind": "cuda", "arch": "sm_90"}
PARTS: dict[str, Case] = {
    "linear": Case("", lambda g, x: g.relu(g.linear(x, rand(512, 72), rand(72))), (65, 512)),
    "batches of rows": Case("", lambda g, x: g.linear(x, rand(512, 64)), (2, 20, 512)),
    "conv2d": Case(
        "",
        lambda g, x: g.relu(g.conv2d(x, rand(40, 32, 3, 3), rand(40), padding=(1, 1, 1, 1))),
        (2, 32, 7, 7),
    ),
    "points": Case(
        "",
        lambda g, x: g.add(g.conv2d(x, rand(40, 256, 1, 1), rand(40), strides=(2, 2)), 1.0),
        (1, 256, 7, 7),
    ),
    "halves": Case(
        "",
        lambda g, x: g.linear(x, halves(1024, 72), halves(72)),
        (65, 1024),
        dtype="float16",
    ),
    "computed bias": Case(
        "",
        lambda g, x: g.conv2d(x, rand(16, 64, 3, 3), g.sum(x, axes=(0, 1, 2))),
        (1, 64, 5, 16),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_values_are_those_of_one_part(name: str) -> None:
    """The sums of the parts are those of a processor, and the same in every run."""
    case = PARTS[name]
    exe = tk.compile(case.module(), H100)
    let_run(exe)
    assert len(exe.placement()) > 1 and {p.device for p in exe.placement()} == {"cuda"}
    x = case.operand()
    have, again, want = (np.asarray(e(x)) for e in (exe, exe, tk.compile(case.module())))
    np.testing.assert_array_equal(have, again)
    close = 1e-5 if case.dtype == "float32" else 2e-3
    np.testing.assert_allclose(have, want, rtol=close, atol=close * np.abs(want).max())


def _parts(
    op: str, *shapes: tuple[int | Var, ...], target: dict[str, Any] = H100, **attrs: Any
) -> int | None:
    x, w = shapes
    weights = rand(*w)  # type: ignore[arg-type]
    product = call(op, RVar("x", tensor(x, "float32")), weights, **attrs)
    out = infer(product)
    return parts_of(product, out, Target(target))  # type: ignore[arg-type]


def test_small_products_have_as_many_parts_as_fill_the_device() -> None:
    filters = 256, 256, 3, 3
    attrs = {"padding": (1, 1, 1, 1)}
    assert _parts("conv2d", (1, 256, 14, 14), filters, **attrs) == 16
    assert _parts("linear", (128, 768), (768, 768)) == 8
    small = {**H100, "multiprocessors": 20}
    assert _parts("linear", (128, 768), (768, 768), target=small) in (3, 4)


@pytest.mark.parametrize(
    "parts",
    [
        lambda: _parts("linear", (8192, 768), (768, 768)),  # fills the device
        lambda: _parts("linear", (1, 768), (768, 768)),  # one row: no tiles
        lambda: _parts("linear", (128, 64), (64, 64)),  # few terms
        lambda: _parts("linear", (128, 769), (769, 768)),  # a prime number of them
        lambda: _parts("linear", (Var("n"), 768), (768, 768)),  # rows that only a run knows
        lambda: _parts("linear", (128, 768), (768, 768), target={"kind": "opencl"}),
        lambda: _parts("linear", (128, 768), (768, 768), target={**H100, "multiprocessors": 1}),
        lambda: _parts("conv2d", (1, 256, 14, 14), (256, 128, 3, 3), groups=2),
        lambda: _parts("conv2d", (1, 256, 14, 14), (8, 256, 3, 3)),  # few channels
    ],
)
def test_all_others_are_computed_whole(parts: Callable[[], int | None]) -> None:
    assert parts() is None
