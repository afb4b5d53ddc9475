"""Remainders of floats are exact for any quotient, in tensor programs, ONNX and torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx.reference
import pytest
from onnx import helper

import tensorkiln as tk
from tensorkiln.script import from_source
from tests.frontend.onnx_models import model, value

TYPES = ("float16", "float32", "float64")


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of all exponents, whose quotients reach from 2**-2000 to 2**2000."""
    bits = np.dtype(dtype).itemsize * 8
    pairs = np.random.default_rng(bits).integers(0, 1 << bits, (2, 600), f"uint{bits}").view(dtype)
    x, y = pairs[:, np.isfinite(pairs).all(0) & (pairs[1] != 0)]
    large = 1e30 if bits > 16 else 6e4
    x[:6], y[:6] = [large, -large, large, -large, 7, -7], [3, 7, -0.1, -3, np.inf, np.inf]
    return x, y


PROGRAM = """
@tk.script.ir_module
class Remainders:
    @T.prim_func
    def main(
        x: T.Buffer(("n",), "float32"),
        y: T.Buffer(("n",), "float32"),
        signed: T.Buffer(("n",), "float32"),
        floored: T.Buffer(("n",), "float32"),
    ):
        for i in range(n):
            signed[i] = T.fmod(x[i], y[i])
            floored[i] = x[i] % y[i]
"""


def test_tensor_programs() -> None:
    x, y = operands("float32")
    results = np.empty_like(x), np.empty_like(x)
    tk.compile(from_source(PROGRAM)).jit()["main"](x, y, *results)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(results[0], np.fmod(x, y))
        np.testing.assert_array_equal(results[1], np.mod(x, y))


@pytest.mark.parametrize("dtype", TYPES)
def test_onnx(dtype: str) -> None:
    x, y = operands(dtype)
    model_proto = model(
        [helper.make_node("Mod", ["x", "y"], ["z"], fmod=1)],
        [value("x", dtype, x.shape), value("y", dtype, y.shape)],
        ["z"],
    )
    with np.errstate(all="ignore"):
        (want,) = onnx.reference.ReferenceEvaluator(model_proto).run(None, {"x": x, "y": y})
    np.testing.assert_array_equal(tk.compile(model_proto)(x, y), want)


@pytest.mark.parametrize("dtype", TYPES)
def test_torch(dtype: str) -> None:
    """Beside NumPy: torch itself gives NaN for large quotients of float32."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return torch.fmod(x, y), torch.remainder(x, y), torch.fmod(x, 3.0)

    x, y = operands(dtype)
    example_inputs = (torch.from_numpy(x), torch.from_numpy(y))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = tk.compile(Net(), example_inputs=example_inputs)(x, y)
        expected_outputs = np.fmod(x, y), np.mod(x, y), np.fmod(x, np.asarray(3, dtype))
    for output, want in zip(results, expected_outputs, strict=True):
        np.testing.assert_array_equal(output, want)
