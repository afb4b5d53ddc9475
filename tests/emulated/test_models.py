# ruff: noqa: E402  what is not installed must be named before it is imported
"""Networks compiled for another machine and run there: those of the zoo close to ONNX Runtime here,
those of RISC-V with results of this machine."""

from __future__ import annotations

import numpy as np
import pytest

for package in ("torch", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: no model can be checked")

import tensorkiln as tk
from tensorkiln.target import riscv
from tests.codegen.kernels import TARGETS
from tests.emulated.machine import AARCH64, RISCV64, load
from tests.firmware import models
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


# -- RISC-V ----------------------------------------------------------------------------------------

# Without vectors, with those of 128 bits, and of 256 bits, as AVX2 has.
RISCV_VECTORS = {0: (), 128: ("+v",), 256: ("+v", "+zvl256b")}
ON_RISCV = pytest.mark.parametrize("vector_bits", RISCV_VECTORS)


def _compare_with_avx2(model: object, vector_bits: int, *inputs: np.ndarray) -> None:
    """Vectors of equal length give equal bits: the schedules are the same, and multiply-adds are
    fused on both. With others some sums have another order."""
    RISCV64.require()
    features = [*riscv.DEFAULT_64, *RISCV_VECTORS[vector_bits]]
    results = []
    for target in (
        {"mtriple": RISCV64.target, "mattr": features},
        {"kind": "llvm", "mcpu": "x86-64-v3"},
    ):
        run = load(tk.compile(model, target))
        run.set_num_threads(2)
        results.append(run["main"](*inputs))
    for received, expected in zip(*map(_several, results), strict=True):
        received_array, expected_array = np.asarray(received), np.asarray(expected)
        assert received_array.dtype == expected_array.dtype and received_array.any()
        tolerance = 0 if vector_bits == 256 else 1e-5 * np.abs(expected_array).max()
        np.testing.assert_allclose(received_array, expected_array, rtol=0, atol=tolerance)


def _several(results: object) -> tuple[object, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


@pytest.mark.emulated
@ON_RISCV
@pytest.mark.parametrize("network", models.NETWORKS)
def test_networks_of_firmware_on_riscv(network: str, vector_bits: int) -> None:
    x = models.inputs(network, "float32", 0)
    _compare_with_avx2(models.model(network, "float32"), vector_bits, x)


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.aarch64
@ON_RISCV
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2", "bert_2"])
def test_model_on_riscv(name: str, vector_bits: int) -> None:
    _compare_with_avx2(str(fetch(name)), vector_bits, *random_inputs(name, 0, {}).values())
