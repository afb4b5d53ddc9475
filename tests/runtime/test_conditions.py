"""Sizes that a model cannot take are refused, in the model's own names, on every way in."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: no model can be made")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import tensorkiln as tk  # noqa: E402
from tensorkiln.base.errors import UserError  # noqa: E402
from tensorkiln.cli.inspect import report_text  # noqa: E402
from tensorkiln.inspectors.library import inspect_library  # noqa: E402
from tensorkiln.ir.text.printer import constant_table, print_module  # noqa: E402
from tensorkiln.runtime import Executor, load_module  # noqa: E402
from tensorkiln.script import from_source  # noqa: E402

ROOT = Path(__file__).parents[2]
F = np.float32
TABLE = np.random.default_rng(3).standard_normal((8, 4)).astype(F)
LIMIT = "'seq-len' <= 8 (Slice:rows)"
TOO_LONG = f"main: seq-len is 9; expected {LIMIT}"


def model() -> onnx.ModelProto:
    """`input.1`[batch, seq-len, 4] + table[:seq-len] -> `out:0`"""
    nodes = [
        helper.make_node("Shape", ["input.1"], ["length"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "length", "zero"], ["rows"]),
        helper.make_node("Add", ["input.1", "rows"], ["out:0"], name="add"),
    ]
    graph = helper.make_graph(
        nodes,
        "positions",
        [helper.make_tensor_value_info("input.1", TensorProto.FLOAT, ["batch", "seq-len", 4])],
        [helper.make_tensor_value_info("out:0", TensorProto.FLOAT, ["batch", "seq-len", 4])],
        [
            numpy_helper.from_array(TABLE, "table"),
            numpy_helper.from_array(np.array([0], np.int64), "zero"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    executable = tk.compile(tk.frontend.from_onnx(model()))
    return executable.export_library(tmp_path_factory.mktemp("positions") / "positions.so")


@pytest.fixture(scope="module")
def executor(path: Path) -> Executor:
    return Executor(load_module(path))


def rows(batch: int, length: int) -> np.ndarray:
    return np.arange(batch * length * 4, dtype=F).reshape(batch, length, 4)


@pytest.mark.parametrize("length", range(1, 9))
def test_lengths_within_the_table(executor: Executor, length: int) -> None:
    x = rows(2, length)
    result = executor["main"](x)
    np.testing.assert_array_equal(result.numpy(), x + TABLE[:length])


@pytest.mark.parametrize("filled", [False, True])
def test_a_length_beyond_the_table(executor: Executor, filled: bool) -> None:
    x = rows(1, 9)
    with pytest.raises(ValueError, match=re.escape(TOO_LONG)) as caught:
        executor["main"](x, out=np.zeros_like(x)) if filled else executor["main"](x)
    assert isinstance(caught.value, UserError)
    assert caught.value.code == "unmet-condition"
    x = rows(1, 8)  # and the executor still works
    np.testing.assert_array_equal(executor["main"](x).numpy(), x + TABLE)


def test_an_empty_dimension(executor: Executor) -> None:
    for empty in (rows(2, 0), rows(0, 3), rows(0, 0)):
        assert executor["main"](empty).shape == empty.shape


def test_the_plain_c_entry(path: Path) -> None:
    library = ctypes.CDLL(os.fspath(path))
    library.positions_last_error.restype = ctypes.c_char_p
    x, out = rows(1, 16), np.full((1, 16, 4), 7, F)

    def call(length: int) -> int:
        sizes = ctypes.c_int64(1), ctypes.c_int64(length)
        data = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        return int(library.positions_main(*sizes, *data))

    assert (call(9), library.positions_last_error().decode()) == (12, TOO_LONG)
    negative = "main: 'seq-len' is -1, expected at least 0"
    assert (call(-1), library.positions_last_error().decode()) == (3, negative)
    assert call(0) == 0
    assert (out == 7).all()
    assert call(8) == 0
    np.testing.assert_array_equal(out[:, :8], x[:, :8] + TABLE)


FFI = """
import sys
import numpy as np, tvm_ffi
main = tvm_ffi.load_module(sys.argv[1])["main"]
assert tuple(main(np.zeros((1, 8, 4), np.float32)).shape) == (1, 8, 4)
x = np.zeros((1, 9, 4), np.float32)
assert tuple(main(x[:, :0]).shape) == (1, 0, 4)
for arguments in (x,), (x, x.copy()):
    try:
        main(*arguments)
    except ValueError as error:
        print(str(error).splitlines()[-1])
"""


@pytest.mark.skipif(
    importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed"
)
def test_tvm_ffi(path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", FFI, str(path)], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    first, second = process.stdout.splitlines()
    assert first.endswith(TOO_LONG) and second.endswith(TOO_LONG)


def convolution(stride: int) -> onnx.ModelProto:
    """x[1, 16, h, 8] convolved by a 3x3 window without padding, then given four rows more."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["inner"], strides=[stride, stride]),
        helper.make_node("Pad", ["inner", "pads"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "window",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, "h", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.ones((16, 16, 3, 3), F), "w"),
            numpy_helper.from_array(np.array([0, 0, 4, 0] + [0] * 4, np.int64), "pads"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("stride", [1, 2])
def test_a_window_larger_than_its_input(stride: int) -> None:
    """Sizes below zero are refused; (2 - 3) // 2 + 1 rounds down to an empty result."""
    run = Executor(tk.compile(tk.frontend.from_onnx(convolution(stride))))["main"]
    for height in range(1, 8):
        x = np.ones((1, 16, height, 8), F)
        rows = (height - 3) // stride + 1
        if rows < 0:
            with pytest.raises(ValueError, match=f"main: h is {height}; expected h >= [23] "):
                run(x)
        else:
            result = run(x).numpy()
            assert result.shape == (1, 16, 4 + rows, (8 - 3) // stride + 1)
            assert (result[:, :, :4] == 0).all()
            np.testing.assert_allclose(result[:, :, 4:], 144, rtol=1e-5)


# ---- names -------------------------------------------------------------------------------------


def test_inputs_by_the_models_names(executor: Executor) -> None:
    x = rows(1, 2)
    result = executor["main"](**{"input.1": x})
    np.testing.assert_array_equal(result.numpy(), x + TABLE[:2])
    with pytest.raises(TypeError, match=r"no input 'input\.2'; it has input\.1"):
        executor["main"](**{"input.2": x})
    with pytest.raises(ValueError, match=r"input 'input\.1' must have 3 dimensions, \[batch, seq-"):
        executor["main"](x[0])
    with pytest.raises(ValueError, match="output 'out:0' must have shape"):
        executor["main"](x, out=np.zeros((1, 3, 4), F))


def test_inspection_shows_the_models_names(path: Path) -> None:
    report = inspect_library(path)
    (main,) = report.metadata.functions
    assert [t.name for t in (*main.inputs, *main.outputs)] == ["input.1", "out:0"]
    assert main.inputs[0].shape == ("batch", "seq-len", 4)
    assert main.symbols == {"batch": 0, "seq-len": 0}
    assert main.requires == (LIMIT,)
    text = report_text(report)
    assert f"  requires {LIMIT}\n" in text
    assert re.search(r"in +input\.1 +float32 +batch x seq-len x 4", text)


def test_the_header_shows_both_names() -> None:
    header = tk.compile(tk.frontend.from_onnx(model())).header()
    assert " *   in     input_1      float32 [batch, seq-len, 4] ('input.1' in the model)" in header
    assert " *   size   seq_len      at least 0 ('seq-len' in the model)" in header
    assert f" *   requires {LIMIT}" in header


def test_conditions_survive_as_text() -> None:
    """Printed and read back, the condition still speaks of the parameter's dimension."""
    module = tk.frontend.from_onnx(model())
    again = from_source(print_module(module), constants=constant_table(module))
    run = Executor(tk.compile(again))["main"]
    with pytest.raises(ValueError, match=re.escape(TOO_LONG)):
        run(rows(1, 9))
