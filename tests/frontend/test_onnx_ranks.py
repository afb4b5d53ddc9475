"""Inputs that declare no shape: nodes tell their ranks, or the user does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.cli import main
from tensorkiln.frontend import check_onnx, from_onnx
from tensorkiln.frontend.onnx.proto import (
    Dim,
    NodeProto,
    OnnxGraph,
    OnnxShape,
    TensorTypeProto,
    TypeProto,
    ValueInfo,
)
from tensorkiln.frontend.onnx.ranks import with_ranks
from tensorkiln.ir.type_text import show
from tests.frontend.onnx_models import model, ours, theirs, value

RNG = np.random.default_rng(4)


def f(*shape: int) -> np.ndarray:
    return RNG.random(shape, np.float32)


def n(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def node(op: str, operands: str, results: str = "y", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, operands.split(), results.split(), **attrs)


Nodes = Sequence[onnx.NodeProto]
# By name: nodes that make y, constants, and values of the inputs, which declare no shape.
MODELS: dict[str, tuple[Nodes, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]] = {
    "conv": ([node("Conv", "x w")], {"w": f(3, 2, 3, 3)}, {"x": f(1, 2, 5, 6)}),
    "conv of one dimension": ([node("Conv", "x w")], {"w": f(3, 2, 3)}, {"x": f(1, 2, 5)}),
    "conv behind others": (
        [node("Relu", "x", "a"), node("Mul", "a s", "b"), node("Conv", "b w")],
        {"w": f(3, 2, 1, 1), "s": np.float32(2)},
        {"x": f(1, 2, 5, 6)},
    ),
    "transposed conv": ([node("ConvTranspose", "x w")], {"w": f(2, 3, 3, 3)}, {"x": f(1, 2, 4, 4)}),
    "pool": ([node("MaxPool", "x", kernel_shape=[2, 2])], {}, {"x": f(1, 2, 4, 4)}),
    "gemm": ([node("Gemm", "x w")], {"w": f(4, 3)}, {"x": f(2, 4)}),
    "transpose": ([node("Transpose", "x", perm=[2, 0, 1])], {}, {"x": f(2, 3, 4)}),
    "recurrence": (
        [node("GRU", "x w r", hidden_size=2)],
        {"w": f(1, 6, 3), "r": f(1, 6, 2)},
        {"x": f(4, 2, 3)},
    ),
    "einsum": ([node("Einsum", "x w", equation="bij,jk->bik")], {"w": f(4, 3)}, {"x": f(2, 3, 4)}),
    "product and sum": (
        [
            node("MatMul", "x w", "a"),
            node("Add", "a b", "c"),
            node("Transpose", "c", perm=[0, 2, 1]),
        ],
        {"w": f(4, 3), "b": f(3)},
        {"x": f(2, 5, 4)},
    ),
    "product with matrices": (
        [node("Gemm", "z w", "a"), node("MatMul", "x a", "b"), node("Transpose", "b", perm=[1, 0])],
        {"w": f(4, 3)},
        {"x": f(5, 2), "z": f(2, 4)},
    ),
    "axes that are not kept": (
        [
            node("ReduceMean", "x", "a", axes=[1, 2], keepdims=0),
            node("Unsqueeze", "a one", "b"),
            node("Transpose", "b", perm=[1, 0, 2]),
        ],
        {"one": n(1)},
        {"x": f(2, 3, 4, 5)},
    ),
    "pads": ([node("Pad", "x p")], {"p": n(0, 1, 0, 1)}, {"x": f(2, 3)}),
    "tile by a node": (
        [helper.make_node("Constant", [], ["r"], value_ints=[2, 1]), node("Tile", "x r")],
        {},
        {"x": f(2, 3)},
    ),
    "tile": ([node("Tile", "x r")], {"r": n(2, 1, 1)}, {"x": f(2, 3, 1)}),
    "resize": (
        [helper.make_node("Resize", ["x", "", "s"], ["y"])],
        {"s": np.array([1, 1, 2, 2], np.float32)},
        {"x": f(1, 2, 3, 4)},
    ),
    "rows of a table": (
        [node("Gather", "t x", "a"), node("Transpose", "a", perm=[1, 0, 2])],
        {"t": f(9, 4)},
        {"x": n(1, 8, 3, 5).reshape(2, 2)},
    ),
    "concatenation": (
        [node("Concat", "x z w", axis=1)],
        {"w": f(2, 3)},
        {"x": f(2, 1), "z": f(2, 4)},
    ),
    "broadcast": (
        [node("Add", "x v", "a"), node("Conv", "a w")],
        {"v": f(2, 1, 1), "w": f(3, 2, 1, 1)},
        {"x": f(1, 2, 3, 3)},
    ),
    "depth": ([node("SpaceToDepth", "x", blocksize=2)], {}, {"x": f(1, 2, 4, 4)}),
    "split": (
        [node("Split", "x", "a b", axis=1), node("Conv", "a w", "c"), node("Add", "c b")],
        {"w": f(2, 2, 1, 1)},
        {"x": f(1, 4, 3, 3)},
    ),
}


def made(name: str, declared: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    nodes, consts, feeds = MODELS[name]
    inputs = [value(k, v.dtype, (declared or {}).get(k)) for k, v in feeds.items()]
    return model(nodes, inputs, ["y"], consts=consts, opset=13)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_follow_from_nodes(name: str) -> None:
    """The same results as ONNX Runtime's, which asks for no shape."""
    feeds = MODELS[name][2]
    module = from_onnx(made(name))
    (output,), (want,) = ours(module, feeds), theirs(made(name), feeds)
    np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-5)


OPEN: dict[str, tuple[Nodes, Mapping[str, np.ndarray]]] = {
    "elementwise": ([node("Relu", "x")], {}),
    "a product": ([node("MatMul", "x w")], {"w": f(4, 3)}),
    "a vector beside": ([node("Add", "x w")], {"w": f(4)}),
}


@pytest.mark.parametrize("name", OPEN)
def test_where_nodes_do_not_tell(name: str) -> None:
    nodes, consts = OPEN[name]
    net = model(nodes, [value("x", np.float32, None)], ["y"], consts=consts, opset=13)
    with pytest.raises(UnsupportedError) as caught:
        from_onnx(net)
    (issue,) = [i for i in caught.value.issues if i.node == "x"]
    assert "'x' declares no shape" in issue.message
    assert "shapes={'x': ('n', 3)}" in issue.hint and "--shape x=n,3" in issue.hint
    assert issue in check_onnx(net)


def test_a_declared_result_or_value_tells() -> None:
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a")]
    for field in ("output", "value_info"):
        net = model(nodes, [value("x", np.float32, None)], ["y"], consts={"w": f(4, 3)})
        if field == "output":
            net.graph.output[0].CopyFrom(value("y", np.float32, ["a", "b", 3]))
        else:
            net.graph.value_info.append(value("a", np.float32, ["a", "b", 3]))
        x = f(2, 5, 4)
        np.testing.assert_allclose(
            ours(from_onnx(net), {"x": x})[0], theirs(net, {"x": x})[0], rtol=1e-5
        )


def test_shapes_that_the_user_gives() -> None:
    net = model([node("Relu", "x")], [value("x", np.float32, None)], ["y"])
    module = from_onnx(net, shapes={"x": ("batch", 3, None)})
    (param,) = module["main"].params  # type: ignore[union-attr]
    assert "batch, 3, x_d2" in show(param.type)
    x = f(2, 3, 4)
    np.testing.assert_array_equal(ours(module, {"x": x})[0], x)
    frozen = from_onnx(net, shapes={"x": ("batch", 3)}, freeze={"batch": 2})
    assert frozen["main"].params[0].type.static_shape() == (2, 3)  # type: ignore[union-attr]
    scalar = from_onnx(net, shapes={"x": ()})
    assert scalar["main"].params[0].type.static_shape() == ()  # type: ignore[union-attr]
    for shapes, says in (
        ({"z": (1,)}, "no input 'z'"),
        ({"x": 3}, "'x' has 3"),
        ({"x": "n,3"}, "'x' has 'n,3'"),
        ({"x": (-1,)}, "'x' has -1"),
        ({"x": (True,)}, "'x' has True"),
        ({"x": ("",)}, "'x' has ''"),
        ([], "shapes is a list"),
    ):
        with pytest.raises(UserError, match=says):
            from_onnx(net, shapes=shapes)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="declares its shape"):
        from_onnx(made("gemm", {"x": ["a", "b"]}), shapes={"x": ("n", 4)})


def test_long_chains() -> None:
    """From the last of many nodes back to the first: a rank is concluded from once."""
    nodes = [node("Relu", f"v{k}", f"v{k + 1}") for k in range(20_000)]
    graph = OnnxGraph(
        node=tuple(NodeProto(tuple(n.input), tuple(n.output), op_type=n.op_type) for n in nodes),
        input=(ValueInfo("v0", TypeProto(TensorTypeProto(1))),),
        output=(ValueInfo("v20000", TypeProto(TensorTypeProto(1, OnnxShape((Dim(), Dim()))))),),
    )
    (ranked_input,) = with_ranks(graph, {})
    assert ranked_input.type is not None and ranked_input.type.tensor is not None
    assert ranked_input.type.tensor.shape == OnnxShape((Dim(), Dim()))


def test_nodes_that_contradict_each_other() -> None:
    """The one that does not fit is named."""
    nodes = [node("Gemm", "x w", "a"), node("Conv", "x v", "b"), node("Shape", "b")]
    consts = {"w": f(4, 3), "v": f(3, 2, 1, 1)}
    with pytest.raises(UnsupportedError) as caught:
        from_onnx(model(nodes, [value("x", np.float32, None)], ["y"], consts=consts))
    assert {i.op for i in caught.value.issues} <= {"Gemm", "Conv"}


def test_the_option_of_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = model([node("Relu", "x:0")], [value("x:0", np.float32, None)], ["y"])
    onnx.save(net, tmp_path / "net.onnx")
    words = ["compile", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "net.so"), "-q"]
    assert main(words) == 3 and "--shape x:0=n,3" in capsys.readouterr().err
    assert main([*words, "--shape", "x:0=rows,2"]) == 0
    run = tk.load(tmp_path / "net.so")
    assert run(f(3, 2)).shape == (3, 2)
    with pytest.raises(ValueError, match="rows, 2"):
        run(f(3, 3))


@pytest.mark.parametrize(
    "command",
    [
        ["check", "--dims"],
        ["verify", "--reference", "onnxruntime", "--dim", "rows=3"],
        ["explain", "--no-times", "-q", "-o", "report"],
        ["tune", "--seconds", "1", "--trials", "1", "-q", "--records", "net.records"],
    ],
    ids=lambda words: words[0],
)
def test_the_option_of_other_commands(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    net = model([node("Relu", "x:0")], [value("x:0", np.float32, None)], ["y"])
    onnx.save(net, "net.onnx")
    words = [command[0], "net.onnx", *command[1:]]
    assert main(words) != 0
    assert "--shape x:0=n,3" in "".join(capsys.readouterr())
    assert main([*words, "--shape", "x:0=rows,2"]) == 0
