"""Element types that are only stored, against ml_dtypes: every code, and what lies between."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_models import model, ours, value

# ONNX's name -> the type in ml_dtypes
TYPES = {
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT6E2M3": "float6_e2m3fn",
    "FLOAT6E3M2": "float6_e3m2fn",
    "FLOAT4E2M1": "float4_e2m1fn",
    "INT4": "int4",
    "UINT4": "uint4",
    "INT2": "int2",
    "UINT2": "uint2",
}
FLOATS = [n for n in TYPES if n.startswith("FLOAT") and n != "FLOAT8E8M0"]
WHOLE = [n for n in TYPES if "INT" in n]
BITS = {n: int(n.lstrip("UINTFLOA")[0]) for n in TYPES}
OPSET = 28


def other(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, TYPES[name]))


def stored(array: np.ndarray) -> np.ndarray:
    """What our tensors hold for an array of ml_dtypes."""
    name = array.dtype.name
    if name.startswith("int"):
        return array.astype(np.int8)
    return array.astype(np.uint8) if name.startswith("uint") else array.view(np.uint8)


def codes(name: str) -> np.ndarray:
    """Every element of a type."""
    if name in WHOLE:
        info = ml_dtypes.iinfo(other(name))
        return np.arange(int(info.min), int(info.max) + 1).astype(other(name))
    return np.arange(1 << BITS[name], dtype=np.uint8).view(other(name))


def run(nodes: list[Any], x: np.ndarray, code: int, consts: Any = ()) -> np.ndarray:
    model_proto = model(nodes, [value("x", code, x.shape)], ["y"], opset=OPSET)
    model_proto.ir_version = 12
    model_proto.graph.initializer.extend(consts)
    (output,) = ours(from_onnx(model_proto), {"x": x})
    return output


def cast(x: np.ndarray, source: int, to: str, **attrs: Any) -> np.ndarray:
    node = helper.make_node("Cast", ["x"], ["y"], to=getattr(TensorProto, to), **attrs)
    return run([node], x, source)


@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16"])
@pytest.mark.parametrize("name", list(TYPES))
def test_every_element_is_read(name: str, to: str) -> None:
    x = codes(name)
    output = cast(stored(x), getattr(TensorProto, name), to)
    with np.errstate(all="ignore"):
        want = x.astype(np.float32)
        if to != "BFLOAT16":
            want = want.astype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, to)))
    np.testing.assert_array_equal(output.astype(want.dtype), want)
    if name != "FLOAT8E8M0":
        some = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(output)[some], np.signbit(want)[some])


@pytest.mark.parametrize("name", ["FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"])
def test_bits_beyond_the_type_say_nothing(name: str) -> None:
    x = codes(name)
    wide = stored(x) | np.uint8(255 << BITS[name] & 255)
    output = cast(wide, getattr(TensorProto, name), "FLOAT")
    np.testing.assert_array_equal(output, x.astype(np.float32))


def between(name: str, dtype: Any) -> np.ndarray:
    """All numbers of a type, halfway between two of them, and beside that; and what is far out."""
    # That of half of the bits is enough where it is the same in all binades.
    numbers = np.unique(codes(name).astype(np.float64))
    numbers = numbers[np.isfinite(numbers)]
    middle = (numbers[1:] + numbers[:-1]) / 2
    over = numbers[-1] + (numbers[-1] - numbers[-2]) * np.array([0.25, 0.5, 0.75, 1.0])
    out = np.concatenate([numbers, middle, over, -over, [1e30, -1e30, 1e-30, np.inf, -np.inf, 0.0]])
    with np.errstate(all="ignore"):
        out = out.astype(dtype)
    near = [np.nextafter(out, dtype(s) * dtype(np.inf)) for s in (-1, 1)]
    return np.concatenate([out, *near, np.array([np.nan, -0.0], dtype)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", FLOATS)
def test_numbers_are_rounded_once(name: str, saturate: int, dtype: Any) -> None:
    x = between(name, dtype)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    output = cast(x, code, name, saturate=saturate)
    info = ml_dtypes.finfo(other(name))
    # ml_dtypes rounds float64 twice, by way of float32: here what lies beside a tie moves off it.
    once = off_ties(name, x) if dtype == np.float64 else x
    with np.errstate(all="ignore"):
        clipped = np.clip(once, dtype(info.min), dtype(info.max)) if saturate else once
        want = clipped.astype(other(name))
    np.testing.assert_array_equal(stored(want), output)


def off_ties(name: str, x: np.ndarray) -> np.ndarray:
    """`x`, but further from the middle of two numbers where it is close to one and not it."""
    numbers = np.unique(codes(name).astype(np.float64))
    numbers = numbers[np.isfinite(numbers)]
    step = numbers[-1] - numbers[-2]
    beyond = numbers[-1] + step * np.array([0.25, 0.5, 0.75, 1.0])
    middle = np.concatenate([(numbers[1:] + numbers[:-1]) / 2, beyond, -beyond])
    near = middle[np.abs(x[:, None] - middle).argmin(1)]
    with np.errstate(invalid="ignore"):
        close = (np.abs(x - near) < 1e-9 * np.abs(near)) & (x != near)
    return np.where(close, near * (1 + np.sign(x - near) * np.sign(near) * 1e-4), x)


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_powers_of_two(mode: str, saturate: int) -> None:
    x = np.concatenate([between("FLOAT8E5M2", np.float32), between("FLOAT8E8M0", np.float32)])
    output = cast(x, TensorProto.FLOAT, "FLOAT8E8M0", saturate=saturate, round_mode=mode)
    want = numpy_helper.to_float8e8m0(x, bool(saturate), mode)
    np.testing.assert_array_equal(output, want.view(np.uint8))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.uint8])
def test_integers_keep_their_lowest_bits(name: str, dtype: Any) -> None:
    x = np.arange(0 if dtype == np.uint8 else -40, 40).astype(dtype)
    output = cast(x, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), name)
    whole = x.astype(np.int64) & ((1 << BITS[name]) - 1)
    signed = name.startswith("INT")
    want = whole - ((whole >> BITS[name] - 1) << BITS[name]) if signed else whole
    np.testing.assert_array_equal(output, want)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("name", list(TYPES))
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16])
def test_weights_are_unpacked(name: str, raw: bool, count: int) -> None:
    """Elements are packed in a file where they have fewer than 8 bits."""
    x = np.resize(codes(name)[::-1], count)
    proto = numpy_helper.from_array(x, "w")
    if not raw:
        data = np.frombuffer(proto.raw_data, np.uint8)
        # Elements of 6 bits are packed in raw data only.
        fields = x.view(np.uint8) if BITS[name] == 6 else data
        proto = TensorProto(name="w", data_type=proto.data_type, dims=proto.dims)
        proto.int32_data.extend(fields.tolist())
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["f", "x"], ["y"]),
    ]
    output = run(nodes, np.zeros(count, np.float32), TensorProto.FLOAT, [proto])
    np.testing.assert_array_equal(output, x.astype(np.float32))


def test_a_constant_node_holds_one() -> None:
    proto = numpy_helper.from_array(codes("INT4"), "w")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=proto),
        helper.make_node("CastLike", ["w", "x"], ["y"]),
    ]
    output = run(nodes, np.zeros(1, np.float32), TensorProto.FLOAT)
    np.testing.assert_array_equal(output, np.arange(-8.0, 8.0))


MOVES = [
    ("Reshape", [np.array([2, -1])], {}),
    ("Transpose", [], {"perm": [1, 0]}),
    ("Slice", [np.array([1]), np.array([3])], {}),
    ("Gather", [np.array([[2, 0], [1, 1]])], {"axis": 1}),
    ("Flatten", [], {"axis": 2}),
    ("Expand", [np.array([2, 1, 1])], {}),
    ("Tile", [np.array([2, 1])], {}),
    ("Unsqueeze", [np.array([0])], {}),
    ("Identity", [], {}),
]


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "INT4"])
@pytest.mark.parametrize(("op", "operands", "attrs"), MOVES)
def test_moving_needs_no_numbers(name: str, op: str, operands: list[Any], attrs: Any) -> None:
    x = codes(name)[:16].reshape(4, 4)
    names = [f"c{k}" for k in range(len(operands))]
    consts = [numpy_helper.from_array(v, n) for n, v in zip(names, operands, strict=True)]
    as_float = helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT)
    nodes = [helper.make_node(op, ["x", *names], ["m"], **attrs), as_float]
    output = run(nodes, stored(x), getattr(TensorProto, name), consts)
    nodes = [helper.make_node(op, ["x", *names], ["y"], **attrs)]
    np.testing.assert_array_equal(output, run(nodes, x.astype(np.float32), 1, consts))


def test_two_kinds_are_not_joined() -> None:
    model_proto = model(
        [helper.make_node("Concat", ["a", "b"], ["y"], axis=0)],
        [value("a", TensorProto.INT4, [2]), value("b", TensorProto.INT8, [2])],
        ["y"],
        opset=OPSET,
    )
    with pytest.raises(UnsupportedError, match="different element types: int4, int8"):
        from_onnx(model_proto)


@pytest.mark.parametrize(
    ("op", "says"),
    [("Relu", "element type float8e5m2, which is only stored"), ("Sigmoid", "DequantizeLinear")],
)
def test_other_operators_refuse(op: str, says: str) -> None:
    model_proto = model(
        [helper.make_node(op, ["x"], ["y"])],
        [value("x", TensorProto.FLOAT8E5M2, [2])],
        ["y"],
        opset=OPSET,
    )
    with pytest.raises(UnsupportedError, match=says):
        from_onnx(model_proto)


def test_a_packed_tensor_of_the_wrong_size() -> None:
    proto = TensorProto(name="w", data_type=TensorProto.INT4, dims=[5], raw_data=b"ab")
    model_proto = model([helper.make_node("Cast", ["w"], ["y"], to=1)], [], ["y"], opset=OPSET)
    model_proto.graph.initializer.append(proto)
    with pytest.raises(UnsupportedError, match="needs 3 bytes, got 2"):
        from_onnx(model_proto)


def quantised(name: str, zero: bool, axis: int, block: int) -> tuple[onnx.ModelProto, Any, Any]:
    """A model that quantises to a type and back, and the reference's."""
    rng = np.random.default_rng(5)
    x = (3 * rng.standard_normal((6, 7))).astype(np.float32)
    shape = [6, 7] if block else [[6], [7]][axis]
    if block:
        shape[axis] = -(-shape[axis] // block)
    scale = (0.3 + rng.random(shape)).astype(np.float32)
    points = (
        rng.integers(-2 if name[0] == "I" else 0, 2, shape) if name in WHOLE else np.zeros(shape)
    )
    consts = [numpy_helper.from_array(scale, "s")]
    names = ["s"]
    if zero:
        consts.append(numpy_helper.from_array(points.astype(other(name)), "z"))
        names.append("z")
    attrs = {"axis": axis, "block_size": block}
    kind = {} if zero else {"output_dtype": getattr(TensorProto, name)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *names], ["q"], **attrs, **kind),
        helper.make_node("DequantizeLinear", ["q", *names], ["y"], **attrs),
    ]
    model_proto = model(nodes, [value("x", np.float32, x.shape)], ["q", "y"], opset=25)
    model_proto.ir_version = 11
    model_proto.graph.initializer.extend(consts)
    from onnx.reference import ReferenceEvaluator

    return model_proto, x, ReferenceEvaluator(model_proto).run(None, {"x": x})


QUANTISED = [n for n in TYPES if n[:6] != "FLOAT6" and n != "FLOAT8E8M0"]


@pytest.mark.parametrize(("axis", "block"), [(0, 0), (1, 0), (0, 2), (1, 3)])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("name", QUANTISED)
def test_quantisation(name: str, zero: bool, axis: int, block: int) -> None:
    model_proto, x, want = quantised(name, zero, axis, block)
    outputs = ours(from_onnx(model_proto), {"x": x})
    np.testing.assert_array_equal(outputs[0], stored(want[0]))
    np.testing.assert_allclose(outputs[1], want[1], rtol=1e-6)


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E5M2FNUZ", "FLOAT4E2M1", "INT4", "UINT2"])
def test_kernels_convert_alike(name: str) -> None:
    """Compiled, in both directions, every code and what lies between."""
    x = between(name, np.float32) if name in FLOATS else np.arange(-40, 40).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=getattr(TensorProto, name)),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    model_proto = model(nodes, [value("x", np.float32, x.shape)], ["q", "y"], opset=OPSET)
    module = from_onnx(model_proto)
    stored_q, y = ours(module, {"x": x})
    mine = tk.compile(module)(x)
    assert mine[0].dtype == other(name)
    np.testing.assert_array_equal(stored(mine[0]), stored_q)
    np.testing.assert_array_equal(mine[1], y)


def test_types_of_the_standard_are_all_named() -> None:
    from tensorkiln.frontend.onnx.narrow import FORMATS
    from tensorkiln.frontend.onnx.tensors import DTYPES, OTHER_DTYPES

    names_of_types = {n.lower() for n in TYPES}
    assert names_of_types == set(FORMATS)
    codes_known = {*DTYPES, *OTHER_DTYPES}
    assert codes_known == set(TensorProto.DataType.values()) - {0}
    names = dict(product(("",), ("",)))
    names |= {n.lower(): c for n, c in TensorProto.DataType.items()}
    assert all(OTHER_DTYPES[names[n]] == n for n in names_of_types)
