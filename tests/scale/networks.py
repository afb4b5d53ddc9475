"""Six small networks, and a manifest of them for four targets: what farms of tests make."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tensorkiln.base.folders import file_hash
from tensorkiln.scale.report import REPORT, FarmReport

RNG = np.random.default_rng(5)


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


def _model(
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    inputs: tuple[int | str, ...],
    outputs: tuple[int | str, ...],
) -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
        for name, shape in (("x", inputs), ("y", outputs))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mlp() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first", transB=1),
        helper.make_node("Relu", ["h"], ["y"], "relu"),
    ]
    return _model(nodes, [_weight("w", 16, 8), _weight("b", 16)], ("batch", 8), ("batch", 16))


def conv() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["h"], ["y"], "pool"),
    ]
    return _model(nodes, [_weight("w", 4, 3, 3, 3)], (1, 3, 8, 8), (1, 4, 1, 1))


def elementwise() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["h"], "sigmoid"),
        helper.make_node("Mul", ["x", "h"], ["y"], "mul"),
    ]
    return _model(nodes, [], (3, 5), (3, 5))


def softmax() -> onnx.ModelProto:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], "softmax", axis=-1)]
    return _model(nodes, [], (4, 10), (4, 10))


def matmul() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "big"], ["y"], "product")]
    return _model(nodes, [_weight("big", 64, 32)], (2, 64), (2, 32))


SCRIPT = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    return R.add(x, x)
"""
ONNX: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": mlp,
    "conv": conv,
    "elementwise": elementwise,
    "softmax": softmax,
}
TARGETS = """
[targets]
old = "llvm"
v3 = { target = { kind = "llvm", mcpu = "x86-64-v3" }, precision = ["float32", "bfloat16"] }
plain = { target = "c", optimize = "size" }
arm = { target = { kind = "llvm", mtriple = "aarch64-linux-gnu" } }
"""
MANIFEST = f"""
[models]
nets = "nets/*.onnx"
outside = {{ path = "outside.onnx", name = "beside_it" }}
script = "twice.py"
{TARGETS}
[[override]]
model = "mlp"
freeze = {{ batch = 2 }}

[[override]]
model = ["outside", "script"]
target = "v3"
precision = "float32"

[[override]]
model = "outside"
target = "old"
weights = "beside"

[[exclude]]
model = "softmax"
precision = "bfloat16"
"""


def write_networks(folder: Path, manifest: str = MANIFEST) -> Path:
    """Write the models and the manifest, whose path is returned."""
    (folder / "nets").mkdir(parents=True)
    for name, make in ONNX.items():
        (folder / "nets" / f"{name}.onnx").write_bytes(make().SerializeToString())
    onnx.save_model(
        matmul(),
        folder / "outside.onnx",
        save_as_external_data=True,
        location="outside.bin",
        size_threshold=0,
    )
    (folder / "twice.py").write_text(SCRIPT)
    (folder / "farm.toml").write_text(manifest)
    return folder / "farm.toml"


SMALL = f"""
[models]
mlp = {{ path = "nets/mlp.onnx", freeze = {{ batch = 1 }} }}
conv = "nets/conv.onnx"
{TARGETS}
[[exclude]]
target = ["plain", "arm"]
"""  # six rows for this machine


def states(report: FarmReport) -> dict[str, str]:
    return {row.name: row.state.value for row in report.rows}


def hashes(folder: Path) -> dict[str, str]:
    """By name the hash of each file below a folder but the report."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != REPORT]
    return {p.relative_to(folder).as_posix(): file_hash(p) for p in files}


class Never(ThreadPoolExecutor):
    def submit(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a job was begun")
