"""One ResNet-18 library per session, and the inputs and outputs that every host must reproduce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed: there is no model to audit")


@dataclass(frozen=True, slots=True)
class Exported:
    """A model, its library, and one input with its output as .npy files in the same folder."""

    model: Path
    library: Path
    x: Path
    y: Path


@pytest.fixture(scope="session")
def resnet18(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """ResNet-18, 224x224; `y` is what ONNX Runtime says, or onnx.reference where it is missing."""
    from tensorkiln.cli.demo_model import resnet18 as demo_model

    return exported(tmp_path_factory.mktemp("resnet18"), demo_model(), (1, 3, 224, 224))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Another library with another `main`: one small dense layer with ReLU."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(3).standard_normal((5, 7), dtype=np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], "dense", transB=1),
        helper.make_node("Relu", ["h"], ["y"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return exported(tmp_path_factory.mktemp("small"), model, (2, 7))


def exported(folder: Path, model: object, shape: tuple[int, ...]) -> Exported:
    """Writes model.onnx, model.so, x.npy and y.npy."""
    import onnx

    from tests.models.library import export_library

    files = Exported(folder / "model.onnx", folder / "model.so", folder / "x.npy", folder / "y.npy")
    onnx.save(model, files.model)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    np.save(files.x, x)
    np.save(files.y, expected_output(files.model, x))
    export_library(files.model, files.library)
    return files


def expected_output(model: Path, x: np.ndarray) -> np.ndarray:
    """The model's only output by an engine that is not ours."""
    import onnx

    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        proto = onnx.load(model)
        return ReferenceEvaluator(proto).run(None, {proto.graph.input[0].name: x})[0]
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]
