"""Arrays of element types that are only stored, as inputs and outputs of what is compiled: one
model takes and gives all of them, in Python, in files and of torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import tensorkiln as tk
from tensorkiln import cli
from tensorkiln.artifact.metadata import Metadata
from tensorkiln.base.element_types import NARROW_TYPES
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.frontend import from_onnx
from tensorkiln.ir.array_types import ARRAY_TYPES
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.verify import verify
from tensorkiln.runtime import Executor, read_metadata
from tensorkiln.script import from_source
from tests.frontend.onnx_models import main, model, value
from tests.frontend.test_onnx_narrow import OPSET, TYPES, codes

# By type in ml_dtypes: every element, and again in another order.
ARRAYS = {TYPES[n]: np.concatenate([codes(n), codes(n)[::-1]]) for n in TYPES}
BYTES = [name for name, t in NARROW_TYPES.items() if t.bits < 8]


@pytest.fixture(scope="module")
def module() -> IRModule:
    """Of each type an input x, which is given as it is, as float32, and as half of the elements."""
    nodes: list[Any] = []
    inputs, outputs = [], []
    for name, dtype in TYPES.items():
        x, number, part, moved = (f"{kind}_{dtype}" for kind in ("x", "number", "part", "moved"))
        nodes.append(helper.make_node("Cast", [x], [number], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Split", [x], [part, f"rest_{dtype}"], num_outputs=2))
        nodes.append(helper.make_node("Identity", [x], [moved]))
        inputs.append(value(x, getattr(TensorProto, name), [len(ARRAYS[dtype])]))
        outputs += [number, part, moved]
    model_proto = model(nodes, inputs, outputs, opset=OPSET)
    model_proto.ir_version = 12
    return from_onnx(model_proto)


@pytest.fixture(scope="module")
def library(module: IRModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("narrow") / "narrow.so"
    tk.compile(module).export_library(path)
    return path


@pytest.fixture(scope="module")
def net(library: Path) -> Any:
    return tk.load(library)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name in NARROW_TYPES else name)


def numbers(dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return ARRAYS[dtype].astype(np.float32)


def same(a: np.ndarray, dtype: str, want: np.ndarray) -> None:
    """Elements of a type are those that ml_dtypes says."""
    assert a.dtype == dtype_of(dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(a.astype(np.float32), want)


def checked(results: Any) -> None:
    for dtype, x in ARRAYS.items():
        np.testing.assert_array_equal(results[f"number_{dtype}"], numbers(dtype))
        same(results[f"part_{dtype}"], dtype, numbers(dtype)[: len(x) // 2])
        same(results[f"moved_{dtype}"], dtype, numbers(dtype))


def test_the_tables_have_the_same_types() -> None:
    assert set(NARROW_TYPES) == set(TYPES.values())
    for name, t in NARROW_TYPES.items():
        kind = ml_dtypes.iinfo if t.is_integer else ml_dtypes.finfo
        assert kind(getattr(ml_dtypes, name)).bits == t.bits
        if t.is_integer:
            info = ml_dtypes.iinfo(getattr(ml_dtypes, name))
            assert t.limits == (int(info.min), int(info.max))
        elif t.bits == 8:  # DLPack's codes are torch's
            tensor_of_type = torch.zeros(1, dtype=torch.uint8).view(getattr(torch, name))
            assert dlpack_type(tensor_of_type) == (t.code, 8)


def dlpack_type(tensor: Any) -> tuple[int, int]:
    from tensorkiln.runtime.tensor import DLTensor, capsule_pointer

    capsule = tensor.__dlpack__()
    view = DLTensor.from_address(capsule_pointer(capsule, b"dltensor"))
    return view.code, view.bits


def test_arrays_in_and_out(net: Any) -> None:
    checked(net(*ARRAYS.values()))


def test_metadata_says_the_types(library: Path, net: Any) -> None:
    metadata = read_metadata(library)
    assert metadata["format"] == 5
    (f,) = Metadata.from_json(metadata).functions
    assert [p.dtype for p in f.inputs] == list(ARRAYS)
    assert {p.name: p.dtype for p in f.outputs}["part_int4"] == "int4"
    assert "x_int4: int4 [32]" in str(net["main"].__doc__)


def test_lists_and_strides_and_places(net: Any) -> None:
    """Python's numbers, arrays with gaps, memory of the caller's, inputs that were set before."""
    gaps = [np.repeat(x, 2)[::2] for x in ARRAYS.values()]
    checked(net(*gaps))
    lists = [x.tolist() if NARROW_TYPES[n].is_integer else x for n, x in ARRAYS.items()]
    checked(net(*lists))
    names = [p.name for p in net.outputs]
    places = [np.empty(p.shape, dtype_of(p.dtype)) for p in net.outputs]
    assert net(*ARRAYS.values(), out=places) is places
    checked(dict(zip(names, places, strict=True)))
    executor = Executor(net.module)
    executor.set_input("main", *ARRAYS.values())
    executor.set_output("main", 1, places[1])
    executor.invoke("main")
    out = executor.get_outputs("main")
    assert out[1] is places[1]
    checked({n: np.asarray(a) for n, a in zip(names, out, strict=True)})


def test_bits_above_are_not_read(net: Any) -> None:
    arrays = dict(ARRAYS)
    for name in BYTES:
        bits = NARROW_TYPES[name].bits
        raw = ARRAYS[name].view(np.uint8) | np.uint8(0xA5 << bits & 0xFF)
        arrays[name] = raw.view(dtype_of(name))
    checked(net(*arrays.values()))


def test_tensors_of_torch(net: Any) -> None:
    """Its own types where it has them, else bytes."""
    tensors = []
    for name, x in ARRAYS.items():
        raw = torch.from_numpy(x.view(NARROW_TYPES[name].storage).copy())
        tensors.append(raw.view(getattr(torch, name)) if NARROW_TYPES[name].bits == 8 else raw)
    results = net(*tensors).asdict()
    for name in ARRAYS:
        moved = results[f"moved_{name}"]
        is_byte = name in BYTES
        assert moved.dtype == getattr(torch, NARROW_TYPES[name].storage if is_byte else name)
        raw = moved if is_byte else moved.view(torch.uint8)
        results[f"moved_{name}"] = raw.numpy().view(dtype_of(name))
        part = results[f"part_{name}"]
        results[f"part_{name}"] = (
            (part if is_byte else part.view(torch.uint8)).numpy().view(dtype_of(name))
        )
        results[f"number_{name}"] = results[f"number_{name}"].numpy()
    checked(results)


REFUSED = [
    ("float8_e4m3fn", ARRAYS["float8_e5m2"], "must be float8_e4m3fn, received float8_e5m2"),
    ("float8_e4m3fn", np.zeros(512, np.uint8), "must be float8_e4m3fn, received uint8"),
    ("float8_e8m0fnu", np.zeros(512, np.float32), "must be float8_e8m0fnu, received float32"),
    ("float8_e5m2", ARRAYS["int4"], "must be float8_e5m2, received int4"),
    ("int4", ARRAYS["uint4"], "must be int4 or bytes of int8, received uint4"),
    ("int4", np.zeros(32, np.float32), "must be int4 or bytes of int8, received float32"),
    ("uint2", ARRAYS["float8_e5m2"], "must be uint2 or bytes of uint8, received float8_e5m2"),
    ("float4_e2m1fn", ARRAYS["uint4"], "float4_e2m1fn or bytes of uint8, received uint4"),
    ("int4", [8] * 32, "a list, holds numbers beyond int4, -8 to 7"),
    ("uint2", [-1] * 8, "a list, holds numbers beyond uint2, 0 to 3"),
    ("int2", [0.5] * 8, "a list, holds float64 and must hold int2"),
]


@pytest.mark.parametrize(("name", "wrong", "says"), REFUSED)
def test_other_arrays_are_refused(net: Any, name: str, wrong: Any, says: str) -> None:
    with pytest.raises(UserError, match=f"x_{name}'.* {says}" if isinstance(wrong, list) else says):
        net(*{**ARRAYS, name: wrong}.values())


def test_other_functions_refuse_them() -> None:
    net = tk.compile(
        from_source(
            """
@R.function
def main(a: R.Tensor((2,), "int8"), b: R.Tensor((2,), "uint8")):
    return R.identity(a), R.identity(b)
"""
        )
    )
    a, b = np.zeros(2, np.int8), np.zeros(2, np.uint8)
    for name, (x, y), says in (
        ("int4", (a.view(ml_dtypes.int4), b), "'a' must be int8, received int4"),
        ("float4", (a, b.view(ml_dtypes.float4_e2m1fn)), "must be uint8, received float4_e2m1fn"),
        ("float8", (a, b.view(ml_dtypes.float8_e5m2)), "must be uint8, received float8_e5m2"),
    ):
        with pytest.raises(UserError, match=says):
            net(x, y)
        assert name


def test_control_flow_takes_bytes() -> None:
    """Its results are values of any kind, so nothing says the types of their elements."""
    graphs = {
        name: helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=name)])
        for name, nodes in {
            "yes": [helper.make_node("Cast", ["x"], ["yes"], to=TensorProto.FLOAT)],
            "no": [
                helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
                helper.make_node("Neg", ["f"], ["no"]),
            ],
        }.items()
    }
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=graphs["yes"], else_branch=graphs["no"]),
        helper.make_node("Identity", ["x"], ["z"]),
    ]
    inputs = [value("x", TensorProto.FLOAT8E5M2, [3]), value("c", TensorProto.BOOL, [])]
    model_proto = model(nodes, inputs, ["y", "z"], opset=OPSET)
    model_proto.ir_version = 12
    f = tk.compile(from_onnx(model_proto))
    x = np.array([1, -2, 0.5], ml_dtypes.float8_e5m2)
    y, z = f(x.view(np.uint8), np.array(False))
    np.testing.assert_array_equal(y, -x.astype(np.float32))
    np.testing.assert_array_equal(z, x.view(np.uint8))
    with pytest.raises(UserError, match="must be uint8 .*, received float8_e5m2"):
        f(x, np.array(False))


def _body(name: str, nodes: list[Any], results: list[str], inputs: Any = ()) -> Any:
    return helper.make_graph(nodes, name, inputs, [onnx.ValueInfoProto(name=n) for n in results])


@pytest.mark.parametrize("dtype", ["INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT4E2M1"])
def test_branches_and_loops_move_them(dtype: str) -> None:
    """Results of If, states of Loop and Scan, and what these stack."""
    code = getattr(TensorProto, dtype)
    node = helper.make_node
    branches = {
        f"{name}_branch": _body(name, [node(op, ["x", *more], [name])], [name])
        for name, op, more in (("then", "Identity", []), ("else", "Gather", ["back"]))
    }
    trip = [
        node("Identity", ["go"], ["on"]),
        node("Gather", ["s", "back"], ["t"]),
        node("Identity", ["s"], ["row"]),
    ]
    states = [value("i", np.int64, []), value("go", np.bool_, []), value("s", code, [3])]
    swap = [node("Identity", ["e"], ["next"]), node("Identity", ["s"], ["before"])]
    pair = [value("s", code, []), value("e", code, [])]
    loop = _body("l", trip, ["on", "t", "row"], states)
    scan = _body("s", swap, ["next", "before"], pair)
    nodes = [
        node("Cast", ["f"], ["x"], to=code),
        node("If", ["c"], ["a"], **branches),
        node("Loop", ["n", "", "a"], ["b", "rows"], body=loop),
        node("Gather", ["b", "first"], ["b0"]),
        node("Scan", ["b0", "b"], ["last", "shifted"], num_scan_inputs=1, body=scan),
        *(node("Cast", [k], [f"{k}_f"], to=TensorProto.FLOAT) for k in ("rows", "last", "shifted")),
    ]
    inputs = [value("f", np.float32, [3]), value("c", np.bool_, []), value("n", np.int64, [])]
    constants = {"back": np.array([2, 1, 0]), "first": np.array(0)}
    graph = model(nodes, inputs, ["rows_f", "last_f", "shifted_f"], opset=OPSET, consts=constants)
    graph.ir_version = 12
    x = np.float32([1, 2, 3])
    rows, last, shifted = tk.compile(from_onnx(graph))(x, np.array(False), np.array(3))
    np.testing.assert_array_equal(rows, [x[::-1], x, x[::-1]])
    np.testing.assert_array_equal(last, x[2])
    np.testing.assert_array_equal(shifted, [1, 1, 2])


def test_branches_of_two_types_are_refused() -> None:
    sides = {
        f"{k}_branch": _body(k, [helper.make_node("Cast", ["x"], [k], to=code)], [k])
        for k, code in (("then", TensorProto.INT4), ("else", TensorProto.UINT4))
    }
    nodes = [helper.make_node("If", ["c"], ["y"], **sides)]
    inputs = [value("x", np.float32, [3]), value("c", np.bool_, [])]
    with pytest.raises(UnsupportedError, match="results are of uint4, expected int4"):
        from_onnx(model(nodes, inputs, ["y"], opset=OPSET))


def test_files_of_arrays(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NumPy's files have raw bytes for these types; what was written can be read again."""
    words = ["run", str(library), "--output-dir", str(tmp_path / "out")]
    for name, x in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", x.view("V1"))
        words += ["--input", f"x_{name}={tmp_path / f'{name}.npy'}"]
    assert cli.main(words) == 0
    assert "float8_e4m3fn" in capsys.readouterr().out
    results = {}
    for name in ARRAYS:
        results[f"number_{name}"] = np.load(tmp_path / f"out/number_{name}.npy")
        for kind in ("part", "moved"):
            raw = np.load(tmp_path / f"out/{kind}_{name}.npy")
            results[f"{kind}_{name}"] = raw.view(dtype_of(name))
    checked(results)
    assert cli.main(["inspect", str(library)]) == 0
    assert "float6_e3m2fn" in capsys.readouterr().out


def test_verification(module: IRModule) -> None:
    executable = tk.compile(module, debug=True)
    assert tk.verify(executable, module, inputs=list(ARRAYS.values()))
    assert tk.verify(executable, module, seed=3)


def test_a_script_keeps_the_types(module: IRModule) -> None:
    assert from_source(module.script()).script() == module.script()


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (("y", "int4"), "no input or output 'y'"),
        (("x_int4", "int5"), "'int5' is no element type that is held in bytes"),
        (("x_int4", "uint4"), "'x_int4' is .*int8.*, and arrays of uint4 are tensors of uint8"),
    ],
)
def test_wrong_types_are_malformed(module: IRModule, pair: Any, says: str) -> None:
    f = main(module)
    wrong = Attrs.of(**{**f.attrs, ARRAY_TYPES: (pair,)})
    with pytest.raises(InternalError, match=says):
        verify(IRModule((replace(f, attrs=wrong),), "wrong"))
