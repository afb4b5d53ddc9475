"""Statistics of weights against NumPy in float64 on what was there before it was packed."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tensorkiln.artifact import Artifact
from tensorkiln.artifact.metadata import ConstantInfo, constants_text
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors import open_subject
from tensorkiln.inspectors import weights as subject
from tensorkiln.inspectors.weights import BINS, Weights, bars, show_histograms, show_weights
from tensorkiln.ir.layout import Layout
from tests.inspectors.conftest import Forms


def packed(array: Any, layout: Layout, shape: tuple[int, ...]) -> subject.PackedTensor:
    """`array`, which lies as `layout` says."""
    data = np.ascontiguousarray(array).tobytes()
    return subject.PackedTensor(data, 0, array.dtype, array.shape, layout, shape)


LAYOUTS = {2: ["", "B/32 A B%32", "A/16 A%16 B", "B A"], 4: ["", "A B/16 C+1 D+1 B%16", "A C D B"]}


def check(s: subject.Statistics, array: Any) -> None:
    wide = np.asarray(array).astype(np.float64).reshape(-1)
    finite = wide[np.isfinite(wide)]
    assert s.count == wide.size
    assert (s.nans, s.infinities) == (np.isnan(wide).sum(), np.isinf(wide).sum())
    assert sum(s.histogram) == finite.size
    if not finite.size:
        assert all(np.isnan([s.low, s.high, s.mean, s.std]))
        return
    assert (s.low, s.high) == (finite.min(), finite.max())
    scale = max(abs(s.low), abs(s.high), 1e-300)
    assert abs(s.mean - finite.mean()) <= 1e-12 * scale
    assert abs(s.std - finite.std()) <= 1e-9 * scale
    if s.low < s.high:
        expected, edges = np.histogram(finite, BINS, (s.low, s.high))
        # Values on an edge may fall to either side.
        near = np.isclose(finite[:, None], edges[None], rtol=0, atol=1e-9 * (s.high - s.low))
        assert np.abs(np.cumsum(s.histogram) - np.cumsum(expected)).max() <= near.sum()


@settings(max_examples=60)
@given(st.data())
def test_against_numpy(data: st.DataObject) -> None:
    ndim = data.draw(st.sampled_from([2, 4]))
    shape = data.draw(
        st.lists(st.integers(1, 40 if ndim == 2 else 18), min_size=ndim, max_size=ndim).map(tuple)
    )
    layout = data.draw(st.sampled_from(LAYOUTS[ndim]))
    dtype = data.draw(
        st.sampled_from(
            ["float32", "float64", "float16", ml_dtypes.bfloat16, "int8", "uint8", "int64", "bool"]
        )
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    array = (rng.standard_normal(shape) * 50 + data.draw(st.floats(-60, 60))).astype(dtype)
    if array.dtype.kind not in "biu":
        for odd in (np.nan, np.inf, -np.inf):
            array[rng.random(shape) < data.draw(st.sampled_from([0, 0.1, 1 / 3]))] = odd
    name = np.dtype(dtype).name
    packed = Layout.parse(layout).pack(array) if layout else array
    rows = [ConstantInfo("a<&>", name, shape, layout, 64)]
    content = bytes(64) + np.ascontiguousarray(packed).tobytes()
    artifacts = [
        Artifact("host", "native", "weights.bin", content),
        Artifact("host", "text", "weights.json", constants_text(rows).encode()),
    ]
    weights = Weights(artifacts)
    check(weights.statistics(weights.rows[0]), array)
    ElementTree.fromstring("".join(show_histograms(artifacts)))


def test_large_constants_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_ELEMENTS", 1000)
    array = np.random.default_rng(5).standard_normal((70, 33, 5, 3)).astype(np.float32) + 3
    for text in LAYOUTS[4]:
        layout = Layout.parse(text) if text else Layout.plain(4)
        check(subject.statistics(packed(layout.pack(array), layout, array.shape)), array)


def test_of_no_elements_and_of_one() -> None:
    for array in (np.zeros((0, 3), np.float32), np.float32(2.5), np.full((4,), np.nan)):
        array = np.asarray(array)
        layout = Layout.plain(array.ndim)
        check(subject.statistics(packed(array, layout, array.shape)), array)


def test_far_ends_do_not_overflow() -> None:
    array = np.array([-1.7e308, 0, 1.7e308])
    s = subject.statistics(packed(array, Layout.plain(1), (3,)))
    assert s.histogram[0] == s.histogram[BINS // 2] == s.histogram[-1] == 1


@pytest.mark.parametrize("form", ["library", "folder", "container"])
def test_the_table_of_a_model(forms: Forms, form: str) -> None:
    """Every initializer of the ONNX file, by name; weights are transposed on the way."""
    model = onnx.load(forms.model)
    expected = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    artifacts = [a for a in open_subject(getattr(forms, form)).artifacts if a.codegen_id == "host"]
    weights = Weights(artifacts)
    rows = {row.name.removesuffix(".transpose"): row for row in weights.rows}
    assert set(rows) == {name for name in expected if expected[name].dtype == np.float32}
    for name, row in rows.items():
        check(weights.statistics(row), expected[name])
        assert sorted(row.shape) == sorted(expected[name].shape)
    lines = "".join(show_weights(artifacts)).splitlines()
    assert len(lines) == 1 + len(rows)
    for row, line in zip(weights.rows, lines[1:], strict=True):
        array = expected[row.name.removesuffix(".transpose")].astype(np.float64)
        name, dtype, *_ = line.split()
        assert (name, dtype) == (row.name, "float32")
        numbers = re.findall(r"-?\d[\d.e+-]*", line.rpartition("|")[2])
        # Four digits are printed.
        statistics = [array.min(), array.max(), array.mean(), array.std(), 0, 0]
        np.testing.assert_allclose([float(n) for n in numbers], statistics, rtol=6e-4, atol=1e-9)
    picture = ElementTree.fromstring("".join(show_histograms(artifacts)))
    titles = [e.text for e in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [row.name for row in weights.rows]


def test_bars_are_as_high_as_their_counts() -> None:
    assert bars([0, 1, 500, 1000]) == " ▁▄█"
    assert bars([0, 0]) == "  "


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (ConstantInfo("c", "float33", (2,), "", 0), "not a type that can be read"),
        (ConstantInfo("c", "__doc__", (2,), "", 0), "not a type that can be read"),
        (ConstantInfo("c", "float32", (2,), "B", 0), "not a type that can be read"),
        (ConstantInfo("c", "float32", (2,), "A/0 A%0", 0), "not a type that can be read"),
        (ConstantInfo("c", "float32", (2,), "A A", 0), "does not hold each element once"),
        (ConstantInfo("c", "float32", (2, 3), "A", 0), "does not hold each element once"),
        (ConstantInfo("c", "float32", (2,), "A/2%9999999", 0), "lie outside"),
        (ConstantInfo("c", "float32", (2,), "?", 0), "not a type that can be read"),
        (ConstantInfo("c", "float32", (2,), "", 60), "8 bytes lie outside"),
        (ConstantInfo("c", "float32", (1 << 40, 1 << 40), "", 0), "lie outside"),
        (ConstantInfo("c", "object", (2,), "", 0), "not a type that can be read"),
    ],
)
def test_rows_that_lie(row: ConstantInfo, says: str) -> None:
    artifacts = [
        Artifact("host", "native", "weights.bin", bytes(64)),
        Artifact("host", "text", "weights.json", constants_text([row]).encode()),
    ]
    with pytest.raises(UserError, match=says) as caught:
        list(show_weights(artifacts))
    assert caught.value.code == "bad-metadata" and "'c'" in caught.value.where


def test_an_offset_that_is_no_size() -> None:
    """The table itself is refused: which row and what of it."""
    row = ConstantInfo("c", "float32", (2,), "", -4)
    artifacts = [
        Artifact("host", "native", "weights.bin", bytes(64)),
        Artifact("host", "text", "weights.json", constants_text([row]).encode()),
    ]
    with pytest.raises(UserError, match="expected a size, got -4") as caught:
        list(show_weights(artifacts))
    assert (caught.value.code, caught.value.where) == (
        "bad-metadata",
        "host/weights.json.constants[0].offset",
    )


@pytest.mark.parametrize("text", ["", "[", "{}", "[3]", '[{"name": 3}]', "\xff", "[" * 100000])
def test_tables_that_are_none(text: str) -> None:
    artifacts = [
        Artifact("host", "native", "weights.bin", bytes(64)),
        Artifact("host", "text", "weights.json", text.encode("latin-1")),
    ]
    with pytest.raises(UserError) as caught:
        list(show_weights(artifacts))
    assert caught.value.code == "bad-metadata"


def test_without_a_table() -> None:
    with pytest.raises(UserError) as caught:
        list(show_weights([Artifact("host", "native", "weights.bin", bytes(64))]))
    assert caught.value.code == "no-weights"
