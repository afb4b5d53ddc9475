"""Operators whose result's size the data decides: type rules, and meaning against the ONNX one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.dtype import BOOL, FLOAT32, INT64
from tensorkiln.ir.relax import DYNAMIC_OPS, AnyTensorType, PrimType, RVar, TupleType, Type, tensor
from tensorkiln.ops import DYNAMIC

RANDOM = np.random.default_rng(7)


def onnx_result(op: str, arrays: list[Any], outputs: int = 1, **attrs: Any) -> list[np.ndarray]:
    """What ONNX's reference evaluator computes."""
    names = [f"i{k}" for k in range(len(arrays))]
    results = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for k, a in zip(names, arrays, strict=True)
    ]
    outs = [helper.make_tensor_value_info(r, onnx.TensorProto.UNDEFINED, None) for r in results]
    graph = helper.make_graph([node], "g", inputs, outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))


def ours(op: str, arrays: list[Any], **attrs: Any) -> Any:
    return DYNAMIC[op].numpy(arrays, DYNAMIC[op].complete(attrs))


def test_the_ir_knows_them() -> None:
    assert set(DYNAMIC) == set(DYNAMIC_OPS)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 0), (2, 3, 2)])
def test_nonzero(shape: tuple[int, ...]) -> None:
    x = RANDOM.integers(0, 2, shape)
    np.testing.assert_array_equal(ours("nonzero", [x]), onnx_result("NonZero", [x])[0])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    x, keep = RANDOM.normal(size=(3, 4)).astype("float32"), np.array([True, False, True])
    attrs = {} if axis is None else {"axis": axis}
    want = onnx_result("Compress", [x, keep], **attrs)[0]
    np.testing.assert_array_equal(ours("compress", [x, keep], axis=axis), want)


@pytest.mark.parametrize("shape", [(3,), (0, 4), (2, 0), (2, 3, 2)])
def test_append(shape: tuple[int, ...]) -> None:
    x = RANDOM.normal(size=shape)
    for count in (0, 1, 3):
        rows = RANDOM.normal(size=(count, *shape[1:]))
        np.testing.assert_array_equal(
            ours("append", [x, rows]), np.vstack([x, rows]) if x.ndim > 1 else np.append(x, rows)
        )


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("in_order", [True, False])
def test_unique(axis: int | None, in_order: bool) -> None:
    x = RANDOM.integers(0, 3, (6, 2)).astype("float32")
    attrs: dict[str, Any] = {"sorted": int(in_order)} | ({} if axis is None else {"axis": axis})
    values, first, inverse, counts = ours("unique", [x], axis=axis, sorted=in_order)
    along = 0 if axis is None else axis
    flat = x.reshape(-1) if axis is None else x
    np.testing.assert_array_equal(np.take(values, inverse, along), flat)
    np.testing.assert_array_equal(np.take(flat, first, along), values)
    assert counts.sum() == len(inverse)
    assert list(first) == sorted(first) or in_order
    if in_order:
        want = onnx_result("Unique", [x], 4, **attrs)
        for have, w in zip((values, first, inverse, counts), want, strict=True):
            np.testing.assert_array_equal(have, w.reshape(have.shape))


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1], [3], [0], [1]),
        ([-3, 0], [1000, -1], [1, 0], [1, 2]),
        ([-1], [-1000], [1], [-1]),
        ([5], [0], [1], [-2]),
        ([2], [2], [0], [1]),
        ([-1000], [2], [0], [1]),
    ],
)
def test_slice(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
    x = np.arange(24.0).reshape(4, 6).astype("float32")
    bounds = [np.array(v, "int64") for v in (starts, ends, axes, steps)]
    want = onnx_result("Slice", [x, *bounds])[0]
    np.testing.assert_array_equal(ours("slice_dynamic", [x, *bounds]), want)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(("limit", "overlap", "score"), [(3, 0.5, 0.2), (10, 0.0, 0.0), (0, 1, 0)])
def test_non_max_suppression(center: bool, limit: int, overlap: float, score: float) -> None:
    boxes = RANDOM.uniform(0, 1, (2, 9, 4)).astype("float32")
    scores = RANDOM.uniform(0, 1, (2, 3, 9)).astype("float32")
    options = [np.array([limit]), np.array([overlap], "float32"), np.array([score], "float32")]
    want = onnx_result(
        "NonMaxSuppression", [boxes, scores, *options], center_point_box=int(center)
    )[0]
    have = ours("non_max_suppression", [boxes, scores, *options], center_point_box=center)
    np.testing.assert_array_equal(have, want.reshape(-1, 3))


@pytest.mark.parametrize("sizes", [[], [3], [0, 2], [1 << 40, 7]])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sized(sizes: list[int], dtype: str) -> None:
    if dtype == "int32" and max(sizes, default=0) > 1 << 31:
        return
    assert ours("sized", [np.array(sizes, dtype)]).shape == (*sizes, 0)


def test_sized_by_a_negative_number() -> None:
    with pytest.raises(ValueError, match="a size is -1"):
        ours("sized", [np.array([2, -1])])


def given(*types: Type) -> list[RVar]:
    return [RVar(f"v{i}", t) for i, t in enumerate(types)]


def test_types() -> None:
    x, flags = tensor((3, 4), "float32"), tensor((3,), "bool")
    unknown = AnyTensorType()
    assert ops.infer(ops.call("nonzero", *given(x))) == AnyTensorType(2, INT64)
    assert ops.infer(ops.call("compress", *given(x, flags))) == AnyTensorType(1, FLOAT32)
    assert ops.infer(ops.call("compress", *given(x, flags), axis=0)) == AnyTensorType(2, FLOAT32)
    assert ops.infer(ops.call("compress", *given(unknown, AnyTensorType(1, BOOL)), axis=0)) == (
        AnyTensorType()
    )
    index = AnyTensorType(1, INT64)
    assert ops.infer(ops.call("unique", *given(x))) == TupleType(
        (AnyTensorType(1, FLOAT32), index, index, index)
    )
    assert ops.infer(ops.call("sized", *given(tensor((2,), "int64")))) == AnyTensorType(3, BOOL)
    assert ops.infer(ops.call("sized", *given(unknown))) == AnyTensorType(None, BOOL)
    rows = tensor((3, 4), "float32")
    assert ops.infer(ops.call("append", *given(x, rows))) == AnyTensorType(2, FLOAT32)
    assert ops.infer(ops.call("append", *given(unknown, rows))) == AnyTensorType(2, FLOAT32)
    assert ops.infer(ops.call("append", *given(unknown, unknown))) == unknown
    bounds = tensor((1,), "int64")
    cut = ops.call("slice_dynamic", *given(x, bounds, bounds))
    assert ops.infer(cut) == AnyTensorType(2, FLOAT32)


@pytest.mark.parametrize(
    ("op", "types", "code", "operand"),
    [
        ("nonzero", [PrimType(INT64)], "operand-kind", "'x'"),
        (
            "compress",
            [tensor((3,), "float32"), tensor((3,), "int64")],
            "dtype-mismatch",
            "'condition'",
        ),
        (
            "compress",
            [tensor((3,), "float32"), tensor((3, 1), "bool")],
            "rank-mismatch",
            "'condition'",
        ),
        ("slice_dynamic", [tensor((3,), "float32")] * 3, "dtype-mismatch", "'starts'"),
        ("non_max_suppression", [tensor((3, 4), "float32")] * 2, "rank-mismatch", "'boxes'"),
        ("unique", [], "operand-count", "unique"),
        ("sized", [tensor((2,), "float32")], "dtype-mismatch", "'x'"),
        ("sized", [tensor((2,), "uint64")], "dtype-mismatch", "'x'"),
        ("sized", [tensor((2, 1), "int64")], "rank-mismatch", "'x'"),
        ("append", [tensor((), "int64")] * 2, "rank-mismatch", "'stack'"),
        ("append", [tensor((2, 3), "int64"), tensor((3,), "int64")], "rank-mismatch", "'rows'"),
        ("append", [tensor((2,), "int64"), tensor((1,), "int32")], "dtype-mismatch", "'rows'"),
        ("append", [PrimType(INT64), tensor((), "int64")], "operand-kind", "'stack'"),
    ],
)
def test_operands_that_do_not_fit(op: str, types: list[Type], code: str, operand: str) -> None:
    with pytest.raises(UserError) as caught:
        ops.infer(ops.call(op, *given(*types), span="node/7"))
    assert caught.value.code == code
    assert operand in caught.value.message


def test_an_axis_outside_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        ops.infer(ops.call("unique", *given(tensor((3,), "float32")), axis=1))
    assert caught.value.code == "bad-attribute"
