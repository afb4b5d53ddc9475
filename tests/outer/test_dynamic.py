"""Operators whose result's size the data decides, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorkiln.base.errors import TensorkilnError
from tensorkiln.ops.dynamic import DYNAMIC
from tests.outer.build import (
    SCALAR,
    AnyTensorType,
    F,
    GlobalRef,
    MatchCast,
    PrimType,
    ShapeType,
    Tuple,
    TupleType,
    Var,
    executor,
    tensor,
    unary,
)

ANY, I64 = AnyTensorType(), tensor((), "int64").dtype
INDEX = AnyTensorType(1, I64)


def _op(name: str, op: str, params: dict[str, Any], **attrs: Any) -> Any:
    f = F(name, **params)
    operator = DYNAMIC[op]
    full = operator.complete(attrs)
    result = operator.infer([p.type for p in f.params], full)
    return f.outer(f.call("y", result, op, *f.params, **dict(full.items_)))


def _positive_part() -> Any:
    """The elements of a row that are not 0, negated by a compiled kernel at their true number."""
    m = Var("m")
    row = tensor((m,), "float32")
    f = F("negated_nonzero", x=AnyTensorType(1, row.dtype))
    indices = f.call("where", AnyTensorType(2, I64), "nonzero", f["x"])
    mask = f.packed("mask", AnyTensorType(1, tensor((), "bool").dtype), "tests.outer.mask", f["x"])
    nonzero = f.call("kept", AnyTensorType(1, row.dtype), "compress", f["x"], mask, axis=None)
    sized = f.let("sized", row, MatchCast(nonzero, row))
    return f.outer(Tuple((f.call("y", row, GlobalRef("negate"), sized), indices)))


def _sum_of_part() -> list[Any]:
    """A result that is not empty when what is left is."""
    m, n = Var("m"), Var("n")
    row = tensor((m,), "float32")
    f = F("sum_of_nonzero", x=AnyTensorType(1, row.dtype))
    mask = f.packed("mask", AnyTensorType(1, tensor((), "bool").dtype), "tests.outer.mask", f["x"])
    nonzero = f.call("kept", AnyTensorType(1, row.dtype), "compress", f["x"], mask, axis=None)
    sized = f.let("sized", row, MatchCast(nonzero, row))
    total = F("total", x=tensor((n,), "float32"))
    y = total.call("y", SCALAR, "sum", total["x"], axes=(0,), keepdims=False)
    return [f.outer(f.call("y", SCALAR, GlobalRef("total"), sized)), total.done(y)]


def _slice_by_numbers() -> Any:
    f = F("slice_numbers", x=ANY, low=PrimType(I64), high=PrimType(I64))
    bounds = Tuple((f["low"],)), Tuple((f["high"],))
    return f.outer(f.call("y", ANY, "slice_dynamic", f["x"], *bounds))


@pytest.fixture(scope="module")
def run() -> Any:
    n = Var("n")
    boxes = {"boxes": ANY, "scores": ANY}
    limits = {"m": ANY, "iou": ANY}
    return executor(
        unary("negate", "neg", tensor((n,), "float32")),
        _op("nonzero", "nonzero", {"x": ANY}),
        _op("compress_flat", "compress", {"x": ANY, "c": ANY}),
        *(
            _op(f"compress{a}", "compress", {"x": AnyTensorType(3), "c": ANY}, axis=a)
            for a in (0, 1, 2)
        ),
        _op("unique", "unique", {"x": ANY}),
        _op("unique_as_found", "unique", {"x": ANY}, sorted=False),
        _op("unique0", "unique", {"x": AnyTensorType(2)}, axis=0),
        _op("unique1", "unique", {"x": AnyTensorType(2)}, axis=-1, sorted=False),
        _op("slice2", "slice_dynamic", {"x": ANY, "s": INDEX, "e": INDEX}),
        _op("slice4", "slice_dynamic", {k: ANY if k == "x" else INDEX for k in "xseat"}),
        _op("slice_shape", "slice_dynamic", {"x": ANY, "s": ShapeType(1), "e": ShapeType(1)}),
        _slice_by_numbers(),
        _op("sized", "sized", {"x": INDEX}),
        _op("append", "append", {"stack": ANY, "rows": ANY}),
        _op("sized_narrow", "sized", {"x": AnyTensorType(1, tensor((), "int32").dtype)}),
        _op("nms2", "non_max_suppression", boxes),
        _op("nms4", "non_max_suppression", boxes | limits),
        _op("nms5", "non_max_suppression", boxes | limits | {"score": ANY}),
        _op("nms_center", "non_max_suppression", boxes | limits, center_point_box=True),
        _positive_part(),
        *_sum_of_part(),
    )


def check(results: Any, op: str, arrays: tuple[Any, ...], **attrs: Any) -> None:
    operator = DYNAMIC[op]
    want = operator.numpy(arrays, operator.complete(attrs))
    several = isinstance(operator.infer([ANY] * len(arrays), operator.complete(attrs)), TupleType)
    for g, w in zip(results if several else (results,), want if several else (want,), strict=True):
        assert (g.shape, g.numpy().dtype) == (w.shape, w.dtype)
        np.testing.assert_array_equal(g.numpy(), w)


DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def few(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """An array of few different values, 0 among them, negative ones where there are any."""
    rng = np.random.default_rng([seed, *shape])
    values = np.array([0, 1, 2, 3, 0], dtype)
    if np.dtype(dtype).kind in "if":
        values[3] = -1
    return rng.choice(values, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type(run: Any, dtype: str) -> None:
    for shape in ((2, 3, 4), (0, 2, 3), (1, 1, 1)):
        x = few(dtype, *shape)
        check(run["nonzero"](x), "nonzero", (x,))
        mask = few("bool", shape[1])
        check(run["compress1"](x, mask), "compress", (x, mask), axis=1)
        check(run["unique"](x), "unique", (x,))
        check(run["unique_as_found"](x), "unique", (x,), sorted=False)
    for shape in ((2, 3, 4), (0, 2, 3), (2, 0, 3), (5,)):
        x = few(dtype, *shape)
        for count in (1, 3, 0, 2000):
            rows = few(dtype, count, *shape[1:], seed=1)
            check(run["append"](x, rows), "append", (x, rows))
            longer = run["append"](x, rows)
            for _ in range(2):  # twice to the same stack
                check(run["append"](longer, rows), "append", (longer.numpy(), rows))
    x = few(dtype, 7, 3)
    check(run["unique0"](x), "unique", (x,), axis=0)
    check(run["unique1"](x), "unique", (x,), axis=-1, sorted=False)


def test_rows_that_do_not_fit(run: Any) -> None:
    for stack, row in (
        (few("int8", 2, 3), few("int8", 1, 4)),
        (few("int8", 2, 3), few("int16", 1, 3)),
        (few("int8", 2, 3), few("int8", 3)),
        (few("int8"), few("int8")),
    ):
        with pytest.raises(TensorkilnError, match="append: rows of shape"):
            run["append"](stack, row)


def test_scalars_negative_zero_and_nan(run: Any) -> None:
    for x in (np.array(0), np.array(3.5), np.array([-0.0, np.nan, 1]), np.array([[]])):
        check(run["nonzero"](x), "nonzero", (x,))
    x = np.array([2, np.nan, -np.inf, 2, np.nan, np.inf, 0, -0.0], np.float32)
    check(run["unique"](x), "unique", (x,))


def test_bfloat16(run: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([0, 3, -1, 3, 0], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run["nonzero"](x).numpy(), [[1, 2, 3]])
    values, first, inverse, counts = (t.numpy() for t in run["unique"](x))
    assert values.astype(float).tolist() == [-1, 0, 3]
    assert (first.tolist(), inverse.tolist()) == ([2, 0, 1], [1, 2, 0, 2, 1])
    assert counts.tolist() == [1, 2, 2]


@settings(max_examples=60)
@given(data=st.data())
def test_random_compress_and_unique(run: Any, data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=3, max_dims=3, min_side=0, max_side=5))
    x = data.draw(hnp.arrays(np.int32, shape, elements=st.integers(-2, 2)))
    axis = data.draw(st.integers(0, 2))
    mask = data.draw(hnp.arrays(np.bool_, st.integers(0, shape[axis])))
    check(run[f"compress{axis}"](x, mask), "compress", (x, mask), axis=axis)
    flat = data.draw(hnp.arrays(np.bool_, st.integers(0, x.size)))
    check(run["compress_flat"](x, flat), "compress", (x, flat))
    check(run["unique_as_found"](x), "unique", (x,), sorted=False)


@settings(max_examples=100)
@given(data=st.data())
def test_random_slices(run: Any, data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6))
    x = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    bounds = st.integers(-9, 9) | st.sampled_from([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    step = st.integers(-3, 3).filter(bool) | st.just(-(1 << 62))
    draw = lambda s: np.array([data.draw(s) for _ in axes], np.int64)  # noqa: E731
    starts, ends, steps = draw(bounds), draw(bounds), draw(step)
    signed = np.array([a - len(shape) if data.draw(st.booleans()) else a for a in axes], np.int64)
    arrays = (x, starts, ends, signed, steps)
    check(run["slice4"](*arrays), "slice_dynamic", arrays)


def test_slices_by_other_kinds_of_bounds(run: Any) -> None:
    x = np.arange(24).reshape(4, 6)[:, ::2]
    np.testing.assert_array_equal(run["slice_shape"](x, (1,), (-1,)).numpy(), x[1:-1])
    np.testing.assert_array_equal(run["slice_numbers"](x, -3, 4).numpy(), x[-3:4])
    bounds = np.array([1, 0], np.int32), np.array([9, 2], np.int32)
    with pytest.raises(TypeError):  # int64 is what the function asks for
        run["slice2"](x, *bounds)
    wide = tuple(b.astype(np.int64) for b in bounds)
    np.testing.assert_array_equal(run["slice2"](x, *wide).numpy(), x[1:, :2])


@pytest.mark.parametrize("seed", range(6))
def test_non_max_suppression(run: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(0, 1, (2, 12, 4)).astype(np.float32)
    scores = rng.choice(np.linspace(0, 1, 6).astype(np.float32), (2, 3, 12))  # with ties
    limit = np.array([1, 3, 100][seed % 3], np.int64)
    iou, min_score = np.array(0.3, np.float32), np.array([0.4], np.float32)
    check(run["nms2"](boxes, scores), "non_max_suppression", (boxes, scores))
    four = (boxes, scores, limit, iou)
    check(run["nms4"](*four), "non_max_suppression", four)
    check(run["nms_center"](*four), "non_max_suppression", four, center_point_box=True)
    check(run["nms5"](*four, min_score), "non_max_suppression", (*four, min_score))


def test_sizes_go_on_into_kernels(run: Any) -> None:
    import tensorkiln as tk

    tk.runtime.register_function("tests.outer.mask", lambda x: x.numpy() != 0)
    x = np.array([0, 3, 0, 5, 7], np.float32)
    y, indices = run["negated_nonzero"](x)
    assert y.numpy().tolist() == [-3, -5, -7] and indices.numpy().tolist() == [[1, 3, 4]]
    y, indices = run["negated_nonzero"](np.zeros(3, np.float32))
    assert (y.shape, indices.shape) == ((0,), (1, 0))
    assert run["sum_of_nonzero"](np.zeros(3, np.float32)).numpy() == 0
    assert run["sum_of_nonzero"](x).numpy() == 15


@pytest.mark.parametrize("sizes", [[], [3], [0, 5], [2, 1, 4], [1] * 15])
def test_sized(run: Any, sizes: list[int]) -> None:
    for name, dtype in (("sized", np.int64), ("sized_narrow", np.int32)):
        x = np.array(sizes, dtype)
        check(run[name](x), "sized", (x,))
        wide = np.zeros(2 * len(sizes), dtype)
        wide[::2] = sizes
        check(run[name](wide[::2]), "sized", (x,))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([2, -3], "sized: size 1 is -3, expected 0 or more [in sized, at y]"),
        ([1] * 16, "sized: expected at most 15 sizes"),
    ],
)
def test_sizes_that_no_tensor_has(run: Any, sizes: list[int], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        run["sized"](np.array(sizes))
    assert words in str(caught.value)


MUST_FAIL = [
    (
        "slice4",
        ([0], [1], [0], [0]),
        ValueError,
        "slice: the step of axis 0 is 0 [in slice4, at y]",
    ),
    ("slice4", ([0], [1], [2], [1]), ValueError, "slice: axis 2 of a tensor with 2 dimensions"),
    ("slice4", ([0], [1, 2], [0], [1]), TypeError, "slice: 1 starts, 2 ends"),
    ("slice4", ([0], [1], [0], [1, 1]), TypeError, "slice: 1 starts, 2 steps"),
]


@pytest.mark.parametrize(("name", "bounds", "error", "words"), MUST_FAIL)
def test_refused(run: Any, name: str, bounds: Any, error: Any, words: str) -> None:
    with pytest.raises(error) as caught:
        run[name](np.zeros((2, 2)), *(np.array(b, np.int64) for b in bounds))
    assert words in str(caught.value)


def test_more_refused(run: Any) -> None:
    x = np.zeros((2, 2, 2), np.float32)
    with pytest.raises(ValueError, match="a vector of at most 2 bools"):
        run["compress1"](x, np.array([True] * 3))
    with pytest.raises(ValueError, match="a vector of at most 2 bools"):
        run["compress1"](x, np.array([1, 0]))
    with pytest.raises(ValueError, match=r"boxes must be \[batch, n, 4\]"):
        run["nms2"](x, x)
    with pytest.raises(TypeError, match="must be float32"):
        run["nms2"](x.astype(np.float64), x)
