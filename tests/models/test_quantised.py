# ruff: noqa: E402  what is not installed must be named before it is imported
"""Networks that ONNX Runtime's tool has quantised (static, per channel, QDQ), against ONNX Runtime.

Two implementations of one QDQ file agree until a sum lies next to a tie: then a value differs by
one step, and by what later layers make of that. How far such steps go is measured, not guessed:
ONNX Runtime differs from itself as much when its optimisations are off.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

for package in ("torch", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: no model can be checked")

import onnxruntime as ort

import tensorkiln as tk
from tests.models.library import Run, compiled
from tests.rotation import rows_in_turn
from tests.schedule.groups import groups_of
from tests.zoo.quantise import PRODUCTS, quantise
from tests.zoo.registry import NETWORKS, inputs

Array = np.ndarray
# Where ONNX Runtime happens to agree with itself, a step may still go another way.
LEAST_OF_SCALE = 0.02
TIMES_ONNX_RUNTIME = 2.0


@dataclass(frozen=True)
class Quantised:
    """How one network is quantised; None for all operators the tool knows."""

    network: str
    activations: str = "QUInt8"
    operators: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return "-".join([self.network, self.activations, *(self.operators or ())])


FAST = (
    Quantised("resnet18"),
    Quantised("resnet18", "QInt8"),
    Quantised("bert_2", operators=PRODUCTS),
)
BIG = (
    Quantised("resnet50"),
    Quantised("mobilenetv2"),
    Quantised("mobilenetv2", "QInt8"),
    Quantised("bert", operators=PRODUCTS),
    Quantised("bert"),
    Quantised("bert_2", "QInt8"),
)
ROWS = [
    *rows_in_turn(FAST, family=attrgetter("network")),
    *(pytest.param(row, marks=pytest.mark.conformance) for row in BIG),
]


def quantised(row: Quantised, folder: Path) -> Path:
    """The QDQ file."""
    return quantise(row.network, folder / f"{row}.onnx", row.activations, row.operators)


def _session(path: Path, level: ort.GraphOptimizationLevel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 3
    options.intra_op_num_threads = 2
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare(row: Quantised, path: Path, run: Run, seeds: tuple[int, ...] = (1, 2)) -> None:
    """Asserts that a library differs from ONNX Runtime no more than that from itself."""
    levels = ort.GraphOptimizationLevel
    fast, plain = (_session(path, x) for x in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL))
    for seed in seeds:
        feeds = inputs(NETWORKS[row.network], seed)
        have = run(*feeds.values())
        for mine, a, b in zip(have, fast.run(None, feeds), plain.run(None, feeds), strict=True):
            assert mine.dtype == a.dtype and mine.shape == a.shape
            scale = float(np.abs(a).max())
            allowed = max(LEAST_OF_SCALE * scale, TIMES_ONNX_RUNTIME * float(np.abs(a - b).max()))
            off = min(float(np.abs(mine - other).max()) for other in (a, b))
            print(f"{row}: off {off:.3g}, ONNX Runtime {np.abs(a - b).max():.3g}, of {scale:.3g}")
            assert off <= allowed


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_it_differs_from_onnx_runtime_no_more_than_that_from_itself(
    row: Quantised, tmp_path: Path
) -> None:
    path = quantised(row, tmp_path)
    compare(row, path, compiled(path, tmp_path))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_layer_sums_integers(row: Quantised, tmp_path: Path) -> None:
    module = tk.frontend.from_onnx(str(quantised(row, tmp_path)))
    for group in groups_of(module, tk.Target("native")):
        if group.anchor is not None and group.anchor.op in ("conv2d", "linear", "matmul"):
            assert group.anchor_var is not None
            assert group.anchor_var.tensor.dtype.name == "int32", group.name
            assert group.anchor.args[1].type.layout is not None, group.name
