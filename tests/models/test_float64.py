# ruff: noqa: E402  what is not installed must be named before it is imported
"""The oracle and the comparison themselves: the float64 reference is right, `compare` can fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

for package in ("torch", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: no oracle to check")

import onnx
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.models.check import FLOAT32_ULP, FLOOR_ULP, Reference, compare
from tests.models.float64 import run_float64
from tests.zoo.export import build, model_path
from tests.zoo.registry import EXPORTS, NETWORKS, inputs

Array = np.ndarray
# onnx.reference takes the batch for the channels in LRN: only as many as images come out right.
SQUARE = np.random.default_rng(2).standard_normal((5, 5, 3, 4))
X = np.random.default_rng(0).standard_normal((2, 6, 9, 8))


def one_node(op: str, tensors: list[Array], **attributes: object) -> tuple[onnx.ModelProto, dict]:
    """A double model of one node and its feeds."""
    names = [f"i{index}" for index in range(len(tensors))]
    opset = int(attributes.pop("opset", 20))  # type: ignore[call-overload]
    node = helper.make_node(op, names, ["y"], **attributes)
    values = [
        helper.make_tensor_value_info(n, TensorProto.DOUBLE, t.shape)
        for n, t in zip(names, tensors, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    graph = helper.make_graph([node], "one", values, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return model, dict(zip(names, tensors, strict=True))


def weight(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape)


@pytest.mark.parametrize(
    ("op", "tensors", "attributes"),
    [
        ("Conv", [X, weight(4, 6, 3, 3)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ("Conv", [X, weight(6, 1, 3, 2), weight(6)], {"group": 6, "dilations": [2, 1]}),
        ("Conv", [X, weight(4, 3, 1, 1), weight(4)], {"group": 2}),
        ("MaxPool", [X], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
        ("AveragePool", [X], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        (
            "AveragePool",
            [X],
            {"kernel_shape": [3, 2], "pads": [1, 1, 0, 0], "count_include_pad": 1},
        ),
        ("LRN", [SQUARE], {"size": 5, "alpha": 0.3, "beta": 0.75, "bias": 1.5}),
        ("LRN", [SQUARE], {"size": 4, "alpha": 0.3}),
        ("Erf", [X], {}),
        ("Gelu", [X], {}),
        ("Gelu", [X], {"approximate": "tanh"}),
        ("LayerNormalization", [X, weight(9, 8), weight(9, 8)], {"axis": 2, "epsilon": 1e-3}),
        ("BatchNormalization", [X, weight(6), weight(6), weight(6), weight(6) ** 2], {}),
    ],
)
def test_own_operators_agree_with_onnx(op: str, tensors: list[Array], attributes: dict) -> None:
    """What we give the evaluator computes what its own implementation does."""
    model, feeds = one_node(op, tensors, **attributes)
    [theirs] = ReferenceEvaluator(model).run(None, feeds)
    [ours] = run_float64(model, feeds)
    # Its layer norm and its constants pass through float32.
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_softmax_before_opset_13_flattens() -> None:
    model, feeds = one_node("Softmax", [X], opset=9)
    [values] = run_float64(model, feeds)
    np.testing.assert_allclose(values.reshape(2, -1).sum(axis=1), 1.0)


@pytest.mark.parametrize("name", ["mlp", "mobilenetv2", "bert_2-legacy11", "gpt2_2"])
def test_float64_agrees_with_torch(name: str) -> None:
    """The rewritten ONNX graph and the torch network in double precision are the same function."""
    network = NETWORKS[EXPORTS[name].network]
    feeds = inputs(network, seed=5)
    found = run_float64(onnx.load(model_path(name)), feeds)
    tensors = [torch.from_numpy(v) for v in feeds.values()]
    tensors = [t.double() if t.is_floating_point() else t for t in tensors]
    with torch.no_grad():
        result = build(network.name).double()(*tensors)
    expected = result if isinstance(result, tuple) else (result,)
    for have, want in zip(found, expected, strict=True):
        # Exporters fold batch norms in float32, so weights differ by an ulp or so.
        scale = float(want.abs().max())
        np.testing.assert_allclose(have, want.numpy(), rtol=0, atol=1e-6 * scale)


@pytest.fixture(scope="module")
def mlp() -> tuple[Reference, dict[str, Array], list[Array]]:
    path: Path = model_path("mlp")
    reference = Reference(path)
    feeds = inputs(NETWORKS["mlp"], seed=0)
    return reference, feeds, reference.float32(feeds)


def test_compare_accepts_onnxruntime_itself(mlp: tuple) -> None:
    reference, feeds, right = mlp
    [figures] = compare(lambda x: right, reference, [feeds])
    assert figures.against_onnxruntime == 0.0 and figures.ours_float64 > 0.0


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda y: y + 0.01, "not close to ONNX Runtime"),
        (lambda y: np.where(np.arange(10) == 3, np.nan, y), "not close to ONNX Runtime"),
        (lambda y: y.astype(np.float64), "dtype float64, expected float32"),
        (lambda y: y[0], r"shape \(10,\), expected \(1, 10\)"),
        (lambda y: y + 3 * FLOOR_ULP * FLOAT32_ULP * np.abs(y).max(), "less precise than allowed"),
    ],
)
def test_compare_refuses(mlp: tuple, spoil: object, sentence: str) -> None:
    reference, feeds, right = mlp
    wrong = [np.asarray(spoil(right[0]))]  # type: ignore[operator]
    with np.errstate(invalid="ignore"), pytest.raises(AssertionError, match=sentence):
        wrong = [
            w if w.dtype == np.float64 and "dtype" in sentence else w.astype(np.float32)
            for w in wrong
        ]
        compare(lambda x: wrong, reference, [feeds])


def test_compare_refuses_a_missing_output(mlp: tuple) -> None:
    reference, feeds, _ = mlp
    with pytest.raises(AssertionError, match="0 outputs, expected 1"):
        compare(lambda x: [], reference, [feeds])
