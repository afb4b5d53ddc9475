"""`check`: every blocker at once, with all that is known of it, also without the weights' files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main
from tensorkiln.frontend.onnx import absent_files
from tensorkiln.frontend.onnx.places import place_of
from tensorkiln.frontend.onnx.proto import NODE
from tensorkiln.frontend.onnx.wire import decode


def model(nodes: list[Any], outputs: list[str], *weights: Any, opset: int = 17) -> Any:
    x = helper.make_tensor_value_info("x", 1, ["n", 3])
    ends = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", [x], ends, list(weights))
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("acme", 3)]
    return helper.make_model(graph, opset_imports=sets)


def planted(count: int) -> tuple[Any, dict[str, str]]:
    """A model of `count` nodes of which ten cannot be compiled: those, with their kinds."""
    bad = [
        helper.make_node("NoSuch", ["x"], ["b0"], name="unknown"),
        helper.make_node("Foo", ["x"], ["b1"], name="foreign", domain="acme"),
        helper.make_node("Foo", ["x", "x"], ["b2"], name="foreign too", domain="acme"),
        helper.make_node("Relu", ["x", "x"], ["b3"], name="operands"),
        helper.make_node("Softmax", ["x"], ["b4"], name="axis", axis=7),
        helper.make_node("Transpose", ["x"], ["b5"], name="permutation", perm=[0, 0]),
        helper.make_node("Cast", ["x"], ["b6"], name="complex", to=14),
        helper.make_node("Flatten", ["x"], ["b7"], name="shapes", axis=5),
        helper.make_node("Concat", ["x", "x"], ["b8"], name="attribute"),
        helper.make_node("Relu", ["nothing"], ["b9"], name="dangling"),
    ]
    nodes, last = [], "x"
    for k in range(count - len(bad)):
        nodes.append(helper.make_node("Relu", [last], [f"r{k}"], name=f"r{k}"))
        last = f"r{k}"
        if k < len(bad):
            nodes.append(bad[k])
    model_proto = model(nodes, [last, *(f"b{k}" for k in range(10))])
    return model_proto, {n.name: n.op_type for n in bad}


def test_ten_blockers_in_two_thousand_nodes() -> None:
    model_proto, expected_nodes = planted(2000)
    issues = tk.check(model_proto.SerializeToString())
    assert {i.node: i.op for i in issues} == expected_nodes and len(issues) == 10
    for issue in issues:
        assert issue.opset == ("acme 3" if issue.op == "Foo" else "17")
        assert issue.types in (("float32",), ("float32", "float32"), ())
        assert issue.message and issue.kind


def behind(*, declared: list[object] | None) -> list[tuple[str, str]]:
    """The nodes that are refused behind an operator nobody knows, with their kinds."""
    yes, inner = helper.make_tensor_value_info, helper.make_node
    branch = helper.make_graph([inner("Foo", ["a"], ["t"], name="t", domain="acme")], "b", [], [])
    branch.output.append(yes("t", 1, None))
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], name="first", domain="acme"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Foo", ["b"], ["c"], name="second", domain="acme"),
        helper.make_node("Softmax", ["b"], ["d"], name="axis", axis=7),
        helper.make_node("Hardmax", ["b"], ["e"], name="attribute", bogus=7),
        helper.make_node("Gelu", ["c"], ["f"], name="of a body", bogus=7),
        helper.make_node("StringSplit", ["c"], ["g", "h"], name="strings"),
        helper.make_node("Reshape", ["b", "shape"], ["i"], name="size"),
        helper.make_node("If", ["c"], ["j"], name="if", then_branch=branch, else_branch=branch),
    ]
    shape = numpy_helper.from_array(np.array([7, 5]), "shape")
    model_proto = model(nodes, ["d"], shape, opset=20)
    if declared is not None:
        model_proto.graph.value_info.append(yes("a", 1, declared))
    return [(i.node, i.kind) for i in tk.check(model_proto.SerializeToString())]


@pytest.mark.parametrize("declared", [None, [2, 3], ["unk__5", 3]])
def test_checking_goes_on_behind_an_unknown_operator(declared: list[object] | None) -> None:
    named = [("first", "operator"), ("second", "operator")]
    attributes = [("attribute", "attribute"), ("of a body", "attribute")]
    later_issues = [("strings", "operator"), *[("if/t", "operator")] * 2]
    sized = [("axis", "malformed"), attributes[0], attributes[1]]
    issues = behind(declared=declared)
    if declared == [2, 3]:
        assert issues == [*named, *sized, later_issues[0], ("size", "malformed"), *later_issues[1:]]
    elif declared is None:
        assert issues == [*named, *attributes, *later_issues]
    else:  # sizes that nothing tells might fit: what depends on them is not judged
        assert issues == [*named, attributes[1], *later_issues]


def test_types_that_the_schema_tells() -> None:
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["a", "b"], name="computed"),
        helper.make_node("Foo", ["a"], ["c"], name="foreign", domain="acme"),
    ]
    model_proto = model(nodes, ["c"])
    model_proto.graph.input.append(helper.make_tensor_value_info("k", 7, [1]))
    del model_proto.graph.output[:]
    model_proto.graph.output.append(helper.make_tensor_value_info("c", 1, None))
    issues = tk.check(model_proto.SerializeToString())
    assert [i.types for i in issues if i.node == "foreign"] == [("float32",)]


def test_those_that_differ_in_their_node_share_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [helper.make_node("Foo", ["x"], [f"y{k}"], name=f"f{k}", domain="acme") for k in "abc"]
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, ["ya"]).SerializeToString())
    assert main(["check", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:6] == ["fa", "3", "Foo", "acme", "3", "float32"]
    assert "3 node(s) cannot be compiled" in lines[2] and len(lines) == 3


# ---- without weights -----------------------------------------------------------------------------


def external(folder: Path, dtype: str, shape: tuple[int, ...], op: str) -> Path:
    """A model whose operator takes a tensor in a file, which is removed."""
    value = numpy_helper.from_array(np.ones(shape, dtype), "w")
    model_proto = model([helper.make_node(op, ["x", "w"], ["y"], name="it")], ["y"], value)
    path = folder / "net.onnx"
    onnx.save(model_proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "w.bin").unlink()
    return path


@pytest.mark.parametrize(
    ("dtype", "shape", "op"),
    [("float32", (3, 5), "MatMul"), ("float32", (3, 70_000), "MatMul"), ("float32", (3,), "Add")],
)
def test_weights_need_not_be_there(
    dtype: str,
    shape: tuple[int, ...],
    op: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = external(tmp_path, dtype, shape, op)
    assert tk.check(path) == () and absent_files(path) == ("w.bin",)
    assert main(["check", str(path)]) == 0
    assert "checked without the weights in 'w.bin'" in capsys.readouterr().out
    assert main(["check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["absent"] == ["w.bin"]
    with pytest.raises(UserError, match="no such file"):
        tk.compile(path)


@pytest.mark.parametrize("dtype", ["int64"])
def test_shapes_must_be_there(dtype: str, tmp_path: Path) -> None:
    (issue,) = tk.check(external(tmp_path, dtype, (2,), "Reshape"))
    assert issue.kind == "weights" and issue.node == "it" and "may decide shapes" in issue.message


def test_files_that_are_there_are_read(tmp_path: Path) -> None:
    path = external(tmp_path, "int64", (2,), "Reshape")
    (tmp_path / "w.bin").write_bytes(np.array([-1, 1], "int64").tobytes())
    assert tk.check(path) == () and absent_files(path) == ()
    (tmp_path / "w.bin").write_bytes(b"1")
    with pytest.raises(UserError, match="holds 1"):
        tk.check(path)


def test_a_file_outside_of_the_folder_is_refused_as_ever(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external(inner, "float32", (3, 5), "MatMul")
    text = path.read_bytes()
    path.write_bytes(text.replace(b"w.bin", b"../xx"))
    with pytest.raises(UserError, match="external data"):
        tk.check(path)


# ---- lines of programs ---------------------------------------------------------------------------

TRACE = """File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call
  File "/home/me/net.py", line 12, in forward
    return self.act(x)
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/activation.py", line 3, in forward
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (TRACE, "net.py:12"),
        ("/home/me/net.py(7): forward\n/a/site-packages/torch/x.py(3): call\n", "net.py:7"),
        ('File "C:\\\\nets\\\\a.py", line 3, in f', "a.py:3"),
        ('File "/x/site-packages/a.py", line 3, in f', "a.py:3"),
        ("", ""),
        ("a comment", ""),
        ('File "', ""),
    ],
)
@pytest.mark.parametrize("field", ["doc", "metadata"])
def test_lines_that_exporters_write(text: str, place: str, field: str) -> None:
    node = helper.make_node("NoSuch", ["x"], ["y"], name="it")
    if field == "doc":
        node.doc_string = text
    else:
        entry = node.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.stack_trace", text
    assert place_of(decode(NODE, memoryview(node.SerializeToString()))) == place
    (issue,) = tk.check(model([node], ["y"]).SerializeToString())
    assert issue.place == place


def test_the_line_of_a_model_that_torch_exported(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

    program = torch.onnx.export(Net(), (torch.ones(1, 3),), dynamo=True, verbose=False)
    assert program is not None
    model_proto = program.model_proto
    for node in model_proto.graph.node:
        node.op_type = "NoSuch"
    (issue,) = tk.check(model_proto)
    assert issue.place.startswith("test_check_onnx.py:")
