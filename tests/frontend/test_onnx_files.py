"""The file reader against protobuf, and the memory of an import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tensorkiln.frontend.onnx.proto import MODEL, OnnxModel
from tensorkiln.frontend.onnx.tensors import DTYPES, ExternalFiles, numpy_dtype, to_array
from tensorkiln.frontend.onnx.wire import WireError, decode, packed_varints
from tests.frontend.onnx_models import agree, main, model, value

NO_FILES = ExternalFiles(None, ())


def read(model_proto: onnx.ModelProto) -> OnnxModel:
    decoded = decode(MODEL, memoryview(model_proto.SerializeToString()))
    assert isinstance(decoded, OnnxModel)
    return decoded


def tensor(proto: TensorProto) -> np.ndarray:
    """The tensor as our reader sees it inside a model."""
    model_proto = onnx.ModelProto()
    model_proto.graph.initializer.append(proto)
    graph = read(model_proto).graph
    assert graph is not None
    return to_array(graph.initializer[0], NO_FILES)


@pytest.mark.parametrize("code", sorted(DTYPES))
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_of_every_dtype(code: int, raw: bool) -> None:
    dtype = numpy_dtype(DTYPES[code])
    array = np.array([[0, 1, 100], [3, 5, 127]]).astype(dtype)
    if raw:
        proto = TensorProto(data_type=code, dims=[2, 3], raw_data=array.tobytes())
    else:
        proto = TensorProto(data_type=code, dims=[2, 3])
        if code in (10, 16):  # 16-bit floats are kept by their bits
            proto.int32_data.extend(array.view(np.uint16).ravel().tolist())
        else:
            proto = helper.make_tensor("t", code, [2, 3], array.ravel())
    array_read = tensor(proto)
    assert array_read.dtype == dtype and array_read.shape == (2, 3)
    assert array_read.tobytes() == array.tobytes()


def test_empty_and_scalar_tensors() -> None:
    for array in (np.zeros((0, 3), np.float32), np.array(2.5), np.array(-7, np.int64)):
        array_read = tensor(numpy_helper.from_array(array))
        np.testing.assert_array_equal(array_read, array)
        assert array_read.shape == array.shape


@settings(max_examples=100)
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_packed_integers(values: list[int]) -> None:
    proto = TensorProto(data_type=7, dims=[len(values)], int64_data=values)
    assert tensor(proto).tolist() == values


def test_packed_integers_that_end_too_early() -> None:
    with pytest.raises(WireError):
        packed_varints(memoryview(b"\x01\x80"))
    with pytest.raises(WireError):
        packed_varints(memoryview(b"\xff" * 11 + b"\x01"))


def test_every_field_that_an_import_needs() -> None:
    """Names, operands, attributes of every kind and types, as protobuf reads them."""
    attrs = {
        "f": 0.5,
        "i": -3,
        "s": "text",
        "t": numpy_helper.from_array(np.arange(3)),
        "fs": [1.0, 2.0],
        "is": [-1, 2**40],
        "ss": ["a", "b"],
    }
    model_proto = model(
        [helper.make_node("Op", ["x", "", "w"], ["y"], name="n", domain="d", **attrs)],
        [value("x", np.float32, ["batch", 3, None])],
        ["y"],
        consts={"w": np.ones(2)},
        domains={"d": 4},
    )
    decoded = read(model_proto)
    assert decoded.graph is not None
    assert [(o.domain, o.version) for o in decoded.opset_import] == [("", 17), ("d", 4)]
    (node,) = decoded.graph.node
    assert (node.name, node.op_type, node.domain) == ("n", "Op", "d")
    assert (node.input, node.output) == (("x", "", "w"), ("y",))
    by_name = {a.name: a for a in node.attribute}
    assert (by_name["f"].f, by_name["i"].i, bytes(by_name["s"].s or b"")) == (0.5, -3, b"text")
    assert by_name["fs"].floats.tolist() == [1, 2]
    assert by_name["is"].ints.tolist() == [-1, 2**40]
    assert [bytes(s) for s in by_name["ss"].strings] == [b"a", b"b"]
    shape = decoded.graph.input[0].type.tensor.shape  # type: ignore[union-attr]
    assert [(d.value, d.param) for d in shape.dim] == [(None, "batch"), (3, ""), (None, "")]


def test_nesting_is_bounded() -> None:
    data = b""
    for _ in range(200):  # a graph in an attribute in a node in a graph ...
        attr = b"\x32" + _size(data) + data
        node = b"\x2a" + _size(attr) + attr
        data = b"\x0a" + _size(node) + node
    with pytest.raises(WireError, match="nested deeper"):
        decode(MODEL, memoryview(b"\x3a" + _size(data) + data))


def _size(data: bytes) -> bytes:
    n, out = len(data), bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    """Importing a 64 MB model takes a few MB of memory, transposed weights included."""
    w = np.ones((4096, 4096), np.float32)
    model_proto = model(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        [value("x", np.float32, [1, 4096])],
        ["y"],
        consts={"w": w},
    )
    path = tmp_path / "big.onnx"
    onnx.save(model_proto, path)
    code = (
        "import tracemalloc, sys\n"
        "from tensorkiln.frontend import from_onnx\n"
        "import tensorkiln.frontend.onnx\n"
        "tracemalloc.start()\n"
        f"m = from_onnx({str(path)!r})\n"
        "assert tracemalloc.get_traced_memory()[1] < 4e6, tracemalloc.get_traced_memory()\n"
        "w = m['main'].bindings[0].value.args[1]\n"
        "assert not w.array.flags.owndata and w.name == 'w.transpose'\n"
        "assert 'onnx' not in sys.modules and 'google.protobuf' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_importing_the_room_loads_nothing() -> None:
    code = (
        "import sys, tensorkiln.frontend\n"
        "bad = [m for m in ('onnx', 'torch', 'tensorkiln.frontend.onnx') if m in sys.modules]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_bytes_path_and_object_give_the_same(tmp_path: Path) -> None:
    from tensorkiln.frontend import from_onnx

    model_proto = model(
        [helper.make_node("Relu", ["x"], ["y"], name="r")], [value("x", np.float32, [2])], ["y"]
    )
    path = tmp_path / "m.onnx"
    onnx.save(model_proto, path)
    spans = [
        [(b.value.op, b.value.span) for b in main(from_onnx(m)).bindings]
        for m in (model_proto, model_proto.SerializeToString(), path, str(path))
    ]
    assert spans == [[("relu", "r")]] * 4
    agree(model_proto, {"x": np.array([-1, 1], np.float32)})
