"""Real networks import without issues and mean what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tensorkiln.frontend import check_onnx, from_onnx
from tests.frontend.onnx_models import main, ours
from tests.rotation import rows_in_turn
from tests.zoo import light
from tests.zoo.registry import EXPORTS, NETWORKS, inputs

# The same networks as other exporters and opsets write them belong to `make conformance`: each
# version of an operator has a test of its own, and all of these exports are imported here.
SMALL = [
    pytest.param(n, marks=[pytest.mark.conformance] if "legacy" in n else [])
    for n in rows_in_turn(EXPORTS, family=lambda n: (EXPORTS[n].network, "legacy" in n))
    if n.startswith(("mlp", "bert_2", "gpt2_2", "vit_2", "mobilenet"))
]


def same_as_ort(path: str, feeds: dict[str, np.ndarray]) -> None:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    want = session.run(None, feeds)
    outputs = ours(from_onnx(path), feeds)
    for a, b in zip(outputs, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * max(1.0, float(abs(b).max())))


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_light_networks_evaluate(name: str) -> None:
    path = light.light_path(name)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in session.get_inputs()}
    same_as_ort(str(path), feeds)


@pytest.mark.parametrize("name", light.NAMES)
def test_light_networks_import(name: str) -> None:
    """As they ship: opset 9, weights made by ConstantOfShape become constants of layers."""
    folder = onnx.__path__[0] + "/backend/test/data/light"
    module = from_onnx(f"{folder}/light_{name}.onnx")
    operator_names = {b.value.op for b in main(module).bindings}
    assert "conv2d" in operator_names and not operator_names & {"full", "matmul"}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTS)
def test_exports_import(name: str) -> None:
    pytest.importorskip("onnxscript")
    from tests.zoo.export import model_path

    assert check_onnx(model_path(name)) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_exports_evaluate(name: str) -> None:
    """Also at sizes that the export did not see."""
    pytest.importorskip("onnxscript")
    from tests.zoo.export import model_path

    entry = EXPORTS[name]
    sizes = {} if entry.dynamic is None else {"batch": 2, "sequence": 7}
    network = NETWORKS[entry.network]
    same_as_ort(str(model_path(name)), inputs(network, 1, **sizes))
