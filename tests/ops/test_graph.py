"""Building graph functions and evaluating them with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ir.expr import IntImm, Var
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    ShapeValue,
    Tuple,
    TupleItem,
    constant,
    tensor,
)
from tensorkiln.ir.stmt import PrimFunc, Seq
from tensorkiln.ops import call
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate
from tests.ops.element import data

N = Var("N")


def mlp() -> Function:
    b = GraphBuilder()
    x = b.param("x", tensor((N, 3), "float32"))
    w = constant(data(3, 4, dtype="float32"), "w")
    h = b.emit("relu", b.emit("linear", x, w, span="fc1"))
    return b.finish(b.emit("softmax", h))


def test_builder_names_types_and_spans() -> None:
    b = GraphBuilder()
    x = b.param("relu", tensor((2,), "float32"))
    first, second, third = (b.emit("relu", x, span="act") for _ in range(3))
    assert [v.name for v in (first, second, third)] == ["relu_1", "relu_2", "relu_3"]
    f = b.finish(third, "f", primitive=True)
    assert f.params == (x,)
    assert [binding.var for binding in f.bindings] == [first, second, third]
    assert f.bindings[0].value == Call("relu", (x,), call("relu", x).attrs)
    assert f.bindings[0].value.span == "act"
    assert f.is_primitive


def test_builder_refuses_a_second_parameter_of_a_name() -> None:
    b = GraphBuilder()
    b.param("x", tensor((2,), "float32"))
    with pytest.raises(UserError) as caught:
        b.param("x", tensor((2,), "float32"))
    assert caught.value.code == "duplicate-name"


def test_builder_keeps_generated_names_apart() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor((2,), "float32"))
    b.bind(x, x.type, "relu_1")
    names = [b.emit("relu", x).name for _ in range(3)]
    assert len({*names, "relu_1"}) == 4


def test_builder_appends_nothing_when_a_type_rule_refuses() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor((2,), "float32"))
    with pytest.raises(UserError):
        b.emit("transpose", x, axes=(0, 1))
    assert b.finish(x).bindings == ()


def test_evaluate_binds_symbols_and_promotes() -> None:
    f = mlp()
    x = data(5, 3, dtype="float32")
    w = f.bindings[0].value.args[1].array
    (out,) = evaluate(f, {"x": x})
    (wide,) = evaluate(f, {"x": x}, dtype="float64")
    h = np.maximum(x.astype(np.float64) @ w.astype(np.float64), 0)
    e = np.exp(h - h.max(1, keepdims=True))
    assert out.dtype == np.float32
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, e / e.sum(1, keepdims=True), rtol=1e-14)
    np.testing.assert_allclose(out, wide, rtol=1e-5)


def test_evaluate_promotes_dtype_attributes_of_floats_only() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor((2,), "int32"))
    as_float = b.emit("cast", x, dtype="float32")
    as_int = b.emit("cast", as_float, dtype="int8")
    filled = b.emit("full", shape=(2,), value=0.1, dtype="float32")
    f = b.finish(Tuple((as_int, b.emit("add", as_float, filled))))
    narrow, wide = evaluate(f, {"x": np.array([1, 2], np.int32)}, dtype="float64")
    assert narrow.dtype == np.int8
    assert wide.tolist() == [1.1, 2.1]


def test_evaluate_attributes_with_symbols() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor((N, 4), "float32"))
    flat = b.emit("reshape", x, shape=(N * 2, 2))
    last = b.emit("slice", flat, begin=(N * 2 - 1, 0), strides=(-1, 1), shape=(N, 2))
    x_value = data(3, 4, dtype="float32")
    (out,) = evaluate(b.finish(last), {"x": x_value})
    np.testing.assert_array_equal(out, x_value.reshape(6, 2)[:2:-1])


def test_evaluate_symbols_by_name_and_shape_values() -> None:
    b, m = GraphBuilder(), Var("M")
    ones = b.emit("full", shape=(m,), value=1.0)
    f = b.finish(Tuple((ones, ShapeValue((m * 2, IntImm(5))))))
    out, shape = evaluate(f, {}, {"M": 3})
    assert out.tolist() == [1, 1, 1]
    assert shape.tolist() == [6, 5]
    with pytest.raises(UserError) as caught:
        evaluate(f, {})
    assert caught.value.code == "unknown-symbol"
    assert "M" in caught.value.message


def test_evaluate_unpacks_constants_with_a_layout() -> None:
    layout = Layout.parse("A/4 B%2 A%4 B/2")
    logical = data(6, 5, dtype="float32")
    kind = tensor((6, 5), "float32").with_layout(layout)
    b = GraphBuilder()
    x = b.param("x", tensor((6, 5), "float32"))
    packed = b.emit("relayout", x, layout=str(layout))
    f = b.finish(b.emit("add", packed, Constant(layout.pack(logical), kind)))
    (out,) = evaluate(f, {"x": np.zeros((6, 5), np.float32)})
    np.testing.assert_array_equal(out, logical)


def test_evaluate_calls_functions_of_the_module() -> None:
    """A fused group has its own symbols; tuples come apart again."""
    k = Var("K")
    inner = GraphBuilder()
    p = inner.param("p", tensor((k,), "float32"))
    group = inner.finish(Tuple((inner.emit("neg", p), inner.emit("abs", p))), "fused", primitive=1)
    outer = GraphBuilder()
    x = outer.param("x", tensor((N,), "float32"))
    pair = outer.bind(Call(GlobalRef("fused"), (x,)), group.result.type)
    second = outer.bind(TupleItem(pair, 1), x.type)
    main = outer.finish(Tuple((second, Tuple((pair, x)))), "main")
    x_value = np.array([-1.0, 2.0], np.float32)
    results = evaluate(IRModule((group, main)), {"x": x_value})
    assert [r.tolist() for r in results] == [[1, 2], [1, -2], [1, 2], [-1, 2]]
    (alone, _) = evaluate(IRModule((group, main)), {"p": x_value}, function="fused")
    assert alone.tolist() == [1, -2]


@pytest.mark.parametrize(
    ("inputs", "code", "words"),
    [
        ({}, "missing-input", ["x"]),
        ({"x": np.zeros((2, 3), np.float32), "y": 1}, "unknown-input", ["'y'"]),
        ({"x": np.zeros((2, 4), np.float32)}, "shape-mismatch", ["'x'", "[N, 3]", "[2, 4]"]),
        ({"x": np.zeros(3, np.float32)}, "shape-mismatch", ["'x'", "[3]"]),
        ({"x": np.zeros((2, 3))}, "dtype-mismatch", ["'x'", "float32[N, 3]", "float64"]),
    ],
)
def test_evaluate_refuses_inputs(inputs: dict, code: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        evaluate(mlp(), inputs)
    assert caught.value.code == code
    assert all(w in caught.value.message for w in words), caught.value.message


def test_evaluate_refuses_symbols_that_disagree() -> None:
    b = GraphBuilder()
    x, y = (b.param(n, tensor((N,), "float32")) for n in "xy")
    f = b.finish(b.emit("add", x, y))
    with pytest.raises(UserError) as caught:
        evaluate(f, {"x": np.zeros(2, np.float32), "y": np.zeros(3, np.float32)})
    assert "'y'" in caught.value.message


def test_evaluate_names_what_is_not_a_graph() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor((2,), "float32"))
    f = b.finish(b.bind(Call(GlobalRef("kernel"), (x,), span="n3"), x.type))
    kernel = PrimFunc("kernel", (), Seq(()))
    with pytest.raises(UnsupportedError, match="'kernel'"):
        evaluate(IRModule((f, kernel)), {"x": np.zeros(2, np.float32)})
    with pytest.raises(UserError) as caught:
        evaluate(IRModule((f,)), {"x": np.zeros(2, np.float32)}, function="mian")
    assert caught.value.code == "unknown-function"
    assert "'main'" in caught.value.hint


def test_variables_are_values() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor((2,), "float32"))
    alias = b.bind(x, x.type)
    assert isinstance(alias, RVar)
    (out,) = evaluate(b.finish(alias), {"x": np.ones(2, np.float32)})
    assert out.tolist() == [1, 1]
