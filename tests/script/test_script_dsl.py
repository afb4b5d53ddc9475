"""The decorators: Python functions and classes read from their source, with captured values."""

# ruff: noqa: ANN201, ANN202 - the types of scripts are not Python's
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tensorkiln.script
from tensorkiln.base.errors import UserError
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Broadcast, FloatImm, IntImm
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Constant, Function, GlobalRef, TensorType, tensor
from tensorkiln.ir.stmt import For, PrimFunc, Store
from tensorkiln.ir.verify import verify
from tensorkiln.script import R, T, from_source, ir_module, print_function, print_module

# The seed's example spells it so.
tvm = SimpleNamespace(script=tensorkiln.script)


@tvm.script.ir_module
class MyModule:
    @T.prim_func
    def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            Y[i] = X[i] + 1

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = MyModule
        with R.dataflow():
            y = R.call_tir(cls.add_one, [x], R.Tensor((4,), "float32"))
        return y


def test_the_seed_example() -> None:
    assert isinstance(MyModule, IRModule)
    verify(MyModule)
    add_one, main = MyModule["add_one"], MyModule["main"]
    assert isinstance(add_one, PrimFunc) and isinstance(main, Function)
    assert add_one.public and add_one.outputs == 1
    assert isinstance(add_one.body, For) and isinstance(add_one.body.body, Store)
    assert add_one.body.body.value.b == FloatImm(1.0)  # type: ignore[attr-defined]
    call = main.bindings[0].value
    assert isinstance(call, Call) and call.callee == GlobalRef("add_one")
    assert call.args == main.params
    assert main.result.type == tensor((4,), "float32")
    assert first_difference(from_source(print_module(MyModule)), MyModule) is None


def test_captured_arithmetic_and_arrays() -> None:
    size, blocks, weights = 8, (2, 3), np.arange(40, dtype="float32")

    @ir_module(name="net")
    class Net:
        @T.prim_func(private=True)
        def copy(X: T.Buffer((size * 2,), "float32"), Y: T.Buffer(blocks, "float32")):
            for i, j in T.grid(blocks[0], size - 5):
                Y[i, j] = X[i + j] * size

        @R.function
        def main(x: R.Tensor((size,), "float32")):
            y: R.Tensor((size,), "float32") = R.op("mine.add", x, weights, axes=(0, size))
            return y

    verify(Net)
    copy, main = Net["copy"], Net["main"]
    assert isinstance(copy, PrimFunc) and isinstance(main, Function)
    assert Net.name == "net"
    assert [b.shape for b in copy.buffers] == [(IntImm(16),), (IntImm(2), IntImm(3))]
    assert "T.serial(2)" in print_function(copy) and "T.serial(3)" in print_function(copy)
    assert "* T.float32(8.0)" in print_function(copy)
    call = main.bindings[0].value
    assert isinstance(call, Call) and isinstance(call.args[1], Constant)
    assert call.args[1].array is weights
    assert call.attrs.axes == (0, 8)


def test_functions_outside_a_class() -> None:
    @T.prim_func(private=True)
    def relu(X: T.Buffer(("n", 4), "float32"), Y: T.Buffer(("n", 4), "float32"), n: T.int64):
        """Zero where negative."""
        for i in T.parallel(n):
            Y[i, T.Ramp(0, 1, 4)] = T.max(X[i, T.Ramp(0, 1, 4)], 0)
            Y[i, 0] += 2

    assert isinstance(relu, PrimFunc) and not relu.public
    verify(IRModule((relu,)))
    store = relu.body.body.stmts[0]  # type: ignore[attr-defined]
    assert store.value.b == Broadcast(FloatImm(0.0), 4)
    assert "Y[i, 0] = Y[i, 0] + T.float32(2.0)" in print_function(relu)


def test_same_name_twice_in_one_file() -> None:
    def make(second: bool) -> IRModule:
        if second:

            @ir_module
            class Net:
                @T.prim_func
                def two(X: T.Buffer((2,), "float32")):
                    X[0] = 2

        else:

            @ir_module
            class Net:  # type: ignore[no-redef]
                @T.prim_func
                def one(X: T.Buffer((1,), "float32")):
                    X[0] = 1

        return Net  # type: ignore[return-value]

    assert list(make(True)) == ["two"] and list(make(False)) == ["one"]


def test_types_of_operators_come_from_infer() -> None:
    text = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    return R.add(R.relu(x), x)
"""

    def infer(call: Call) -> TensorType:
        return call.args[0].type  # type: ignore[return-value]

    main = from_source(text, infer=infer)["main"]
    assert isinstance(main, Function)
    assert [b.value.op for b in main.bindings] == ["relu", "add"]  # type: ignore[union-attr]
    assert main.result.type == tensor((4,), "float32")


def test_errors_name_the_line_of_the_file() -> None:
    with pytest.raises(UserError) as info:

        @T.prim_func
        def wrong(X: T.Buffer((4,), "float32")):
            X[0] = Z[0]  # noqa: F821

    assert "test_script_dsl.py:" in info.value.where
    line = int(info.value.where.split(":")[-2])
    assert "Z[0]  # noqa" in Path(__file__).read_text(encoding="utf-8").split("\n")[line - 1]


def test_source_that_is_not_there() -> None:
    code = "from tensorkiln.script import T\n@T.prim_func\ndef f(n: T.int64):\n    pass\n"
    with pytest.raises(UserError, match="from_source"):
        exec(compile(code, "<nowhere>", "exec"), {"__name__": "nowhere"})


def test_bodies_are_never_run() -> None:
    @T.prim_func
    def f(X: T.Buffer((4,), "float32")):
        X[0] = 1
        if X[0] < 0:
            X[1] = 1 / X[0]

    assert isinstance(f, PrimFunc)
