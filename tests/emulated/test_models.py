# ruff: noqa: E402  what is not installed must be named before it is imported
"""Networks of the zoo, compiled for another machine and run there: close to ONNX Runtime here."""

from __future__ import annotations

import pytest

for package in ("torch", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: no model can be checked")

import tensorkiln as tk
from tests.codegen.kernels import TARGETS
from tests.emulated.machine import AARCH64, load
from tests.models.check import Reference, compare
from tests.models.test_models import fetch, random_inputs

# What they use: products, convolutions of all kinds, pools; attention, softmax, layer norm, GELU.
FAST = ("mlp", "light_squeezenet")
SLOW = ("resnet18", "mobilenetv2", "convnext_small", "vit_2", "bert_2", "gpt2_2")
SYMBOLIC = {"mlp-batch": ("batch", 1, 5), "bert_2-dynamic": ("sequence", 1, 37)}


def _library(name: str, level: str):  # noqa: ANN202
    AARCH64.require()
    run = load(tk.compile(tk.frontend.from_onnx(str(fetch(name))), TARGETS[level]))
    run.set_num_threads(2)

    def outputs(*arrays):  # noqa: ANN002, ANN202
        found = run["main"](*arrays)
        return found if isinstance(found, tuple) else (found,)

    return outputs


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize("level", ["neon", pytest.param("dotprod", marks=pytest.mark.aarch64)])
@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.aarch64) for name in SLOW)]
)
def test_model(name: str, level: str) -> None:
    feeds = [random_inputs(name, 0, {})]
    for figures in compare(_library(name, level), Reference(fetch(name)), feeds, float64=False):
        print(figures.text())


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.aarch64
@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name: str) -> None:
    symbol, *sizes = SYMBOLIC[name]
    feeds = [random_inputs(name, n, {symbol: n}) for n in sizes]
    for figures in compare(_library(name, "neon"), Reference(fetch(name)), feeds, float64=False):
        print(figures.text())
