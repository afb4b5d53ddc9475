# ruff: noqa: E402  what is not installed must be named before it is imported
"""Every network of the zoo in 16 bits: errors against float64 of the size of torch's.

Both for this processor, which may multiply 16 bits, and for one that only stores them.
"""

from __future__ import annotations

from itertools import product
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

for package in ("torch", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: no model can be checked")

import onnx
import torch

import tensorkiln as tk
from tests.models.float64 import run_float64
from tests.models.library import compiled
from tests.rotation import rows_in_turn
from tests.zoo.export import build, model_path
from tests.zoo.registry import NETWORKS, inputs

FAST = ("mlp", "resnet18", "mobilenetv2", "convnext_small", "vit_2", "bert_2", "gpt2_2", "llama_2")
BIG = (
    *("resnet50", "convnext_t", "vit_b16", "bert", "gpt2", "squeezenet", "densenet121"),
    *("efficientnet_b0", "llama_1", "llama_128"),
)
# Of torch's, which keeps fewer results in float32; and a floor, in units of the type's rounding.
TIMES_TORCH, FLOOR = 2.0, 0.5
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# A library that forgot what was asked for is as precise as float32.
LEAST = 0.02
CPUS = ("native", "x86-64-v3")


def _error(found: list[np.ndarray], exact: list[np.ndarray]) -> float:
    """The largest difference of an output, as a part of its largest number."""
    return max(
        float(np.abs(a.astype(np.float64) - b).max() / (np.abs(b).max() or 1.0))
        for a, b in zip(found, exact, strict=True)
    )


def _by_torch(name: str, arrays: list[np.ndarray], precision: str) -> list[np.ndarray]:
    with torch.no_grad(), torch.autocast("cpu", getattr(torch, precision)):
        result = build(name)(*map(torch.from_numpy, arrays))
    outputs = result if isinstance(result, tuple) else (result,)
    return [y.float().numpy() for y in outputs]


def networks() -> list[object]:
    """Each network in one precision for one processor in turn; large ones wait for conformance."""
    rows = rows_in_turn(product((*FAST, *BIG), ROUNDING, CPUS), family=itemgetter(0))
    return [pytest.param(*r, marks=[pytest.mark.conformance] * (r[0] in BIG)) for r in rows]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision", "cpu"), networks())
def test_errors_are_those_of_the_precision(
    name: str, precision: str, cpu: str, tmp_path: Path
) -> None:
    target = tk.Target("native" if cpu == "native" else {"kind": "llvm", "mcpu": cpu})
    if not set(target.required_features) <= set(tk.Target("native").features):
        return  # of an older processor than this: `native` is what it has
    path = model_path(name)
    arrays = list(inputs(NETWORKS[name], seed=0).values())
    exact = run_float64(onnx.load(path), inputs(NETWORKS[name], seed=0))
    theirs = _error(_by_torch(name, arrays, precision), exact)
    outputs = compiled(path, tmp_path, target=target, precision=precision)(*arrays)
    assert all(np.isfinite(y).all() and y.dtype == np.float32 for y in outputs)
    ours = _error(outputs, exact)
    print(f"{name} {precision} {cpu}: ours {ours:.2e}, torch {theirs:.2e}")
    assert ours <= max(TIMES_TORCH * theirs, FLOOR * ROUNDING[precision])
    assert ours >= LEAST * ROUNDING[precision], "as precise as float32"


def test_the_zoo_is_covered() -> None:
    assert {*FAST, *BIG} <= set(NETWORKS)
    assert set(NETWORKS) - {*FAST, *BIG} == {"bert_2_sdpa"}
