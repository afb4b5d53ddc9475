"""TopK and cumulative sums along long dimensions, which are not to take quadratic time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.frontend import from_onnx
from tensorkiln.ir.relax import TensorType
from tests.frontend.onnx_models import agree, main, node_model, ours, theirs

R = np.random.default_rng(29)
KINDS = ["float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"]


def rows(dtype: str, count: int, length: int) -> np.ndarray:
    """Numbers with many equal ones, the extremes of the type, and of floats what is no number."""
    if not dtype.startswith("float"):
        info = np.iinfo(dtype)
        x = R.integers(0 if info.min == 0 else -5, 20, (count, length)).astype(dtype)
        x[0, ::7], x[0, 3::11] = info.min, info.max
        return x
    x = np.round(R.standard_normal((count, length)) * 4).astype(dtype)
    x[0, :6] = [np.inf, -np.inf, 0.0, -0.0, np.inf, -np.inf]
    return x


def first(x: np.ndarray, count: int, largest: int) -> np.ndarray:
    """The places of the first elements of each row, as NumPy sorts: stable, NaN the greatest."""
    order = [
        sorted(range(len(row)), key=lambda k: (rank(row[k]) * (-1 if largest else 1), k))
        for row in x
    ]
    return np.array([places[:count] for places in order])


def rank(value: Any) -> float:
    return math.inf if math.isnan(value) else min(float(value), 1e300)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 16, 17])
@pytest.mark.parametrize("dtype", KINDS)
def test_the_first_of_many(dtype: str, count: int, largest: int) -> None:
    """By selection and, beyond 16 or where there is no key, by ranks."""
    x = rows(dtype, 3, 70)
    model_proto, feeds = node_model(
        "TopK", [x, np.array([count])], opset=11, fixed=(1,), outputs=2, largest=largest
    )
    values, index = ours(from_onnx(model_proto), feeds)
    want = first(x, count, largest)
    np.testing.assert_array_equal(index, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, 1))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_may_be_equal_or_no_numbers(dtype: str, largest: int) -> None:
    x = np.stack(
        [
            np.full(40, np.nan),
            np.full(40, -np.inf),
            np.full(40, np.inf),
            np.where(np.arange(40) % 3 == 0, np.nan, -np.inf),
        ]
    ).astype(dtype)
    model_proto, feeds = node_model(
        "TopK", [x, np.array([9])], opset=11, fixed=(1,), outputs=2, largest=largest
    )
    index = ours(from_onnx(model_proto), feeds)[1]
    key = np.where(np.isnan(x), np.inf, np.clip(x, -1e300, 1e300))
    want = np.argsort(-key if largest else key, axis=1, kind="stable")[:, :9]
    np.testing.assert_array_equal(index, want)


def test_of_any_length() -> None:
    model_proto, _ = node_model(
        "TopK", [rows("float32", 2, 50), np.array([4])], opset=11, fixed=(1,), outputs=2
    )
    model_proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    exe = tk.compile(from_onnx(model_proto))
    for length in (4, 9, 200):
        x = rows("float32", 2, max(length, 6))[:, :length]
        for mine, expected in zip(exe(x), theirs(model_proto, {"x0": x}), strict=True):
            np.testing.assert_array_equal(np.asarray(mine), expected)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 1000, 64 * 64 + 3])
def test_long_sums(length: int, reverse: int, exclusive: int) -> None:
    for x, axis in ((R.integers(-9, 9, (2, length)), 1), (R.standard_normal((length, 2)), 0)):
        model_proto, feeds = node_model(
            "CumSum",
            [x, np.array(axis)],
            opset=14,
            fixed=(1,),
            reverse=reverse,
            exclusive=exclusive,
        )
        agree(model_proto, feeds, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("exclusive", [0, 1])
def test_long_products(exclusive: int) -> None:
    x = 1 + 0.01 * R.standard_normal((2, 150))
    model_proto, feeds = node_model(
        "CumProd", [x, np.array(1)], opset=26, fixed=(1,), exclusive=exclusive
    )
    want = np.cumprod(x, axis=1)
    if exclusive:
        want = np.concatenate([np.ones((2, 1)), want[:, :-1]], axis=1)
    np.testing.assert_allclose(ours(from_onnx(model_proto), feeds)[0], want, rtol=1e-9)


@pytest.mark.parametrize("op", ["TopK", "CumSum"])
def test_no_pair_of_all_elements_is_looked_at(op: str) -> None:
    """The largest tensor of the import has some elements for each of the operand's."""
    length = 5000
    x = R.standard_normal((1, length)).astype(np.float32)
    second = np.array([8]) if op == "TopK" else np.array(1)
    model_proto, _ = node_model(op, [x, second], opset=14, fixed=(1,), outputs=1 + (op == "TopK"))
    types = [b.var.type for b in main(from_onnx(model_proto)).bindings]
    sizes = [math.prod(t.static_shape() or ()) for t in types if isinstance(t, TensorType)]
    assert max(sizes) <= 66 * length
