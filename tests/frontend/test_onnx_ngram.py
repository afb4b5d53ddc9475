"""TfIdfVectorizer of integers against ONNX Runtime, in all modes, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_models import agree, ours, value

R = np.random.default_rng(5)
# Four 1-grams, three 2-grams and two 3-grams.
POOL = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 1, 1, 1, 3, 4, 5]
COUNTS = [0, 4, 10]
PLACES = [0, 7, 3, 2, 5, 1, 6, 4, 8]


def model(shape: tuple[Any, ...], dtype: str = "int64", **attrs: Any) -> onnx.ModelProto:
    attributes = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 3,
        "max_skip_count": 0,
        "pool_int64s": POOL,
        "ngram_counts": COUNTS,
        "ngram_indexes": PLACES,
    } | attrs
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], name="it", **attributes)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))
    graph = helper.make_graph([node], "g", [value("x", np.dtype(dtype), shape)], [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(
    ("min_length", "max_length", "skips"), [(1, 1, 2), (1, 3, 0), (2, 2, 5), (2, 3, 1)]
)
@pytest.mark.parametrize("weights", [None, [k / 4 + 1 for k in range(9)]])
def test_counts(
    mode: str, min_length: int, max_length: int, skips: int, weights: list[float] | None
) -> None:
    attrs = {"mode": mode, "min_gram_length": min_length, "max_gram_length": max_length}
    attrs |= {"max_skip_count": skips, **({"weights": weights} if weights else {})}
    for shape, dtype in itertools.product([(12,), (4, 9), (3, 1)], ["int64", "int32"]):
        m = model(shape, dtype, **attrs)
        feeds = {"x": R.integers(1, 9, shape).astype(dtype)}
        agree(m, feeds)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("places", [[0, 17, 3, 2, 5, 1, 16, 4, 9], [0, 1, 1, 2, 5, 1, 3, 4, 4]])
def test_places_apart_and_shared(mode: str, places: list[int]) -> None:
    m = model((4, 30), mode=mode, max_skip_count=1, ngram_indexes=places)
    if mode == "IDF" and len(set(places)) < len(places):
        with pytest.raises(UnsupportedError, match="n-grams that share a place"):
            from_onnx(m)
        return
    agree(m, {"x": R.integers(1, 9, (4, 30))})


def test_rows_of_any_number_and_length() -> None:
    m = model(("N", "L"), mode="TFIDF", max_skip_count=2)
    for shape in [(1, 1), (5, 20), (2, 3), (4, 64)]:
        feeds = {"x": R.integers(1, 9, shape)}
        agree(m, feeds)
    imported = from_onnx(m)
    assert ours(imported, {"x": np.zeros((0, 5), np.int64)})[0].shape == (0, 9)
    assert not ours(imported, {"x": np.zeros((2, 0), np.int64)})[0].any()


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"pool_strings": ["a"] * 16}, "pool_strings"),
        ({"mode": "BM25"}, "mode='BM25'"),
        ({"ngram_counts": [0, 4, 9]}, "does not divide the pool"),
        ({"ngram_counts": [0, 4, 20]}, "does not divide the pool"),
        ({"pool_int64s": [2, 3, 2, *POOL[3:]]}, "an n-gram twice"),
        ({"ngram_indexes": [0, 1, 2]}, "3 ngram_indexes for the 9 n-grams"),
        ({"ngram_indexes": [0, 1, -1, 2, 3, 4, 5, 6, 7]}, "places from 0"),
        ({"weights": [1.0, 2.0]}, "2 weights for 9 n-grams"),
    ],
)
def test_refused(attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        from_onnx(model((4, 9), **attrs))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 3, 4), "int64"), ((4,), "float32"), ((), "int64")]
)
def test_operands_that_are_no_rows_of_integers(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(UnsupportedError, match="rows"):
        from_onnx(model(shape, dtype))
