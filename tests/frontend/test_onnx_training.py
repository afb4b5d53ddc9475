"""What models hold that were exported in training: statistics of the batch, dropout, random
numbers with a seed. Against the standard's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_models import model, node_model, ours, value

R = np.random.default_rng(17)


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def pos(*shape: int) -> np.ndarray:
    return (R.random(shape) + 0.5).astype(np.float32)


def as_reference(model_proto: Any, feeds: Any) -> list[np.ndarray]:
    outputs, want = (
        ours(from_onnx(model_proto), feeds),
        ReferenceEvaluator(model_proto).run(None, feeds),
    )
    for a, b in zip(outputs, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return outputs


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 7), (2, 3, 5, 6), (2, 3, 2, 4, 3)])
@pytest.mark.parametrize("attrs", [{}, {"epsilon": 0.01, "momentum": 0.6}])
def test_statistics_of_the_batch(shape: tuple[int, ...], attrs: dict[str, float]) -> None:
    operands = [f(*shape), f(3), f(3), f(3), pos(3)]
    model_proto, feeds = node_model(
        "BatchNormalization", operands, opset=15, outputs=3, training_mode=1, **attrs
    )
    as_reference(model_proto, feeds)


def test_outputs_of_training_before_it_had_a_mode() -> None:
    operands = [f(2, 3, 4), f(3), f(3), f(3), pos(3)]
    model_proto, _ = node_model("BatchNormalization", operands, opset=9, outputs=5)
    with pytest.raises(UnsupportedError, match="outputs of training"):
        from_onnx(model_proto)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("training", [False, True])
def test_dropout(training: bool, ratio: float, outputs: int) -> None:
    operands = [f(20, 30), np.float32(ratio), np.array(training)]
    model_proto, feeds = node_model(
        "Dropout", operands, opset=13, fixed=(1, 2), outputs=outputs, seed=4
    )
    outputs_of_import = as_reference(model_proto, feeds)
    if training and ratio:
        assert abs(float((outputs_of_import[0] == 0).mean()) - ratio) < 0.1


def test_dropout_drops_half_if_nothing_is_said() -> None:
    x, results = f(20, 30), []
    for ratio in (None, np.float32(0.5)):
        operands = [x, ratio, np.array(True)]
        model_proto, feeds = node_model("Dropout", operands, opset=13, fixed=(1, 2), seed=4)
        results.append(ours(from_onnx(model_proto), feeds)[0])
    np.testing.assert_array_equal(*results)


RANDOM: list[tuple[str, bool, dict[str, Any]]] = [
    ("RandomUniform", False, {"shape": [3, 50], "low": -2.0, "high": 3.0}),
    ("RandomUniform", False, {"shape": [7], "dtype": 11}),
    ("RandomUniformLike", True, {"high": 0.5}),
    ("RandomNormal", False, {"shape": [40, 5], "mean": 1.0, "scale": 0.5}),
    ("RandomNormalLike", True, {}),
]


@pytest.mark.parametrize("seed", [0.0, 3.0, 2.0**20])
@pytest.mark.parametrize(("op", "like", "attrs"), RANDOM)
def test_numbers_of_a_seed(op: str, like: bool, attrs: dict[str, Any], seed: float) -> None:
    """The reference's numbers, or where it divides otherwise, RandomState's."""
    names = ["x"] if like else []
    model_proto = model(
        [
            helper.make_node(op, names, ["r"], seed=seed, **attrs),
            helper.make_node("Neg", ["r"], ["y"]),
        ],
        [value("x", np.float32, [4, 6])],
        ["y"],
        opset=17,
    )
    (output,) = ours(from_onnx(model_proto), {"x": f(4, 6)})
    state = np.random.RandomState(int(seed))
    shape = (4, 6) if like else tuple(attrs["shape"])
    if "Uniform" in op:
        low = attrs.get("low", 0.0)
        want = low + (attrs.get("high", 1.0) - low) * state.rand(*shape)
    else:
        want = attrs.get("mean", 0.0) + attrs.get("scale", 1.0) * state.randn(*shape)
    assert output.dtype == (np.float64 if attrs.get("dtype") == 11 else np.float32)
    np.testing.assert_allclose(-output, want, rtol=1e-5, atol=1e-6)


def test_bernoulli_follows_its_operand() -> None:
    x = np.array([[0.0, 1.0] * 50, [0.25, 0.75] * 50], np.float32)
    model_proto, feeds = node_model("Bernoulli", [x], opset=15, seed=3.0, dtype=7)
    (output,) = ours(from_onnx(model_proto), feeds)
    assert output.dtype == np.int64 and set(output.ravel()) == {0, 1}
    np.testing.assert_array_equal(output[0], x[0])
    assert 0.1 < output[1, ::2].mean() < 0.4 and 0.6 < output[1, 1::2].mean() < 0.9


def test_bernoulli_of_1_is_1_in_16_bits() -> None:
    """Where a random number below 1 would be rounded to 1."""
    model_proto, feeds = node_model(
        "Bernoulli", [np.ones((500, 100), np.float16)], opset=15, seed=3.0
    )
    assert np.all(ours(from_onnx(model_proto), feeds)[0] == 1)


def test_multinomial_has_the_shares_of_its_operand() -> None:
    """Counts of 20,000 samples, within four deviations."""
    shares = np.array([[0.125, 0.25, 0, 0.625], [0.7, 0.1, 0.1, 0.1]])
    with np.errstate(divide="ignore"):
        logits = np.log(shares).astype(np.float32) + 3
    model_proto, feeds = node_model("Multinomial", [logits], sample_size=20_000, seed=2.0, dtype=7)
    (samples,) = ours(from_onnx(model_proto), feeds)
    assert samples.shape == (2, 20_000) and samples.dtype == np.int64
    for row, share in zip(samples, shares, strict=True):
        deviations = 4 * np.sqrt(20_000 * share * (1 - share))
        assert np.all(np.abs(np.bincount(row, minlength=4) - 20_000 * share) <= deviations)


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("RandomNormalLike", [f(2)], {}),
        ("RandomUniformLike", [f(2)], {}),
        ("Bernoulli", [pos(2)], {}),
        ("Multinomial", [f(2, 3)], {}),
        ("Dropout", [f(2), np.float32(0.5), np.array(True)], {}),
    ],
)
def test_without_a_seed_there_are_no_numbers(op: str, operands: Any, attrs: Any) -> None:
    model_proto, _ = node_model(op, operands, opset=15, fixed=(1, 2), **attrs)
    with pytest.raises(UnsupportedError, match="attribute seed"):
        from_onnx(model_proto)
