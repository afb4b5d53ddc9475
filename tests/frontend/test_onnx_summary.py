"""`kiln inspect net.onnx`: what a model holds, compared with what the package `onnx` says of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tensorkiln.base.errors import UserError
from tensorkiln.cli import main
from tensorkiln.frontend.onnx.summary import summary_of
from tensorkiln.frontend.onnx.tensors import DTYPES
from tests.frontend.test_check_onnx import external


def branching() -> Any:
    """A model with branches, a function, operators of two domains, weights of several types."""
    then_graph, else_graph = (
        helper.make_graph(
            [helper.make_node(op, ["x"], [op])],
            op,
            [],
            [helper.make_tensor_value_info(op, 1, None)],
        )
        for op in ("Relu", "Neg")
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=then_graph, else_branch=else_graph),
        helper.make_node("twice", ["y"], ["z"], domain="own"),
        helper.make_node("Add", ["z", "w"], ["out"]),
    ]
    function = helper.make_function(
        "own",
        "twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    graph = helper.make_graph(
        nodes,
        "branches",
        [
            helper.make_tensor_value_info("x", 1, ["n", None, 3]),
            helper.make_tensor_value_info("c", 9, []),
        ],
        [helper.make_tensor_value_info("out", 1, None)],
        [
            numpy_helper.from_array(np.ones((5, 3), np.float32), "w"),
            numpy_helper.from_array(np.ones(7, np.float16), "h"),
            numpy_helper.from_array(np.ones(2, np.int64), "i"),
        ],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=sets)


def test_a_model_with_branches_and_functions() -> None:
    summary = summary_of(branching())
    assert summary.opsets == {"ai.onnx": 17, "own": 1} and summary.graph == "branches"
    assert summary.operators == {"Add": 2, "If": 1, "own.twice": 1, "Relu": 1, "Neg": 1}
    assert summary.nodes == 6 and summary.functions == ("twice",)
    assert [(t.name, t.dtype, t.shape) for t in summary.inputs] == [
        ("x", "float32", ("n", "?", 3)),
        ("c", "bool", ()),
    ]
    assert [(t.name, t.shape) for t in summary.outputs] == [("out", None)]
    assert [(t.name, t.dtype, t.bytes) for t in summary.weights] == [
        ("w", "float32", 60),
        ("i", "int64", 16),
        ("h", "float16", 14),
    ]
    assert summary.weights_bytes == 90 and summary.files == summary.absent == ()


@pytest.mark.parametrize("code", [*DTYPES, 14, 17, 22])
def test_weights_of_every_type(code: int) -> None:
    value = helper.make_tensor("w", code, [4], [0] * 4)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", code, [4])],
        [value],
    )
    summary = summary_of(helper.make_model(graph).SerializeToString())
    (weight,) = summary.weights
    assert weight.shape == (4,) and weight.dtype == summary.outputs[0].dtype
    size = helper.tensor_dtype_to_np_dtype(code).itemsize * 4
    assert weight.bytes in (size, 2 if code == 22 else size, 0 if code == 14 else size)


def test_files_of_weights(tmp_path: Path) -> None:
    path = external(tmp_path, "float32", (3, 5), "MatMul")
    summary = summary_of(path)
    assert summary.files == summary.absent == ("w.bin",) and summary.weights_bytes == 60
    (tmp_path / "w.bin").write_bytes(bytes(60))
    assert summary_of(path).absent == ()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(branching().SerializeToString())
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    for words in ("ai.onnx 17, own 1", "6 of 5 operator(s)", "n x ? x 3", "rank unknown", "twice"):
        assert words in text, words
    assert main(["inspect", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    counts = Counter(n.op_type for n in onnx.load(path).graph.node)
    assert document["kind"] == "onnx" and counts["Add"] + 1 == document["operators"]["Add"]
    assert main(["inspect", str(path), "--as", "hexdump"]) == 0
    assert "00000000" in capsys.readouterr().out
    path.write_bytes(b"no model")
    assert main(["inspect", str(path)]) == 2
    assert "not an ONNX model" in capsys.readouterr().err


def test_what_is_no_model() -> None:
    for wrong in (b"", b"\xff" * 40, 5, None):
        with pytest.raises(UserError):
            summary_of(wrong)
