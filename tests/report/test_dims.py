"""`explain_dims`: what makes a dimension symbolic, and where it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.cli import main
from tensorkiln.script import from_source
from tests.frontend.test_check_onnx import external


def model(*, rows: Any = "batch size") -> Any:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"], name="flat"),
        helper.make_node("NonZero", ["x"], ["found"], name="found"),
        helper.make_node("Slice", ["x", "begin", "end", "axes"], ["first"], name="first"),
        helper.make_node("ReduceSum", ["x"], ["sum"], name="sum", keepdims=0),
        helper.make_node("Relu", ["x"], ["same"], name="same"),
    ]
    weights = {"shape": [-1, 6], "begin": [0], "end": [1], "axes": [0]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [rows, 12])],
        [
            helper.make_tensor_value_info(n, 7 if n == "found" else 1, None)
            for n in ("flat", "found", "first", "sum", "same")
        ],
        [numpy_helper.from_array(np.array(v), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_inputs_data_and_ends() -> None:
    origin_report = tk.explain_dims(model())
    first, second = origin_report.origins
    assert (first.name, first.input, first.axis) == ("batch size", "x", 0)
    assert (second.input, second.node, second.operator) == ("", "found", "nonzero")
    assert [(e.name, e.node, e.shape) for e in origin_report.ends] == [
        ("batch size", "first", ("1", "12")),
        ("batch size", "sum", ()),
    ]
    batch_name = "batch_size"  # as expressions spell it
    ends = (("1", "12"), (), (batch_name, "12"))
    assert origin_report.outputs == ((f"{batch_name} * 2", "6"), ("2", second.name), *ends)
    text = str(origin_report)
    assert "batch size is dynamic: input 'x', axis 0" in text
    assert "it ends at first (slice), whose result is [1, 12]" in text
    assert f"{second.name} is dynamic: the data of found (nonzero)" in text
    assert json.loads(json.dumps(origin_report.to_json()))["origins"][0]["axis"] == 0


def test_constant_and_frozen_dimensions() -> None:
    for origin_report in (
        tk.explain_dims(model(rows=4)),
        tk.explain_dims(model(), freeze={"batch size": 4}),
    ):
        assert [o.operator for o in origin_report.origins] == ["nonzero"] and not origin_report.ends
    only = tk.explain_dims(make_mlp().SerializeToString(), freeze={"batch": 2})
    assert not only.origins and str(only) == "output: [2, 10]"


def test_dimensions_that_are_expressions_and_shared() -> None:
    mod = from_source("""
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("m", 3), "float32")):
    a = R.matmul(x, y)
    b = R.concat(a, a, axis=0)
    return b
""")
    origin_report = tk.explain_dims(mod)
    assert [(o.name, o.input, o.axis) for o in origin_report.origins] == [
        ("n", "x", 0),
        ("m", "x", 1),
    ]
    assert [(e.name, e.operator) for e in origin_report.ends] == [("m", "matmul")]
    assert origin_report.outputs == (("n * 2", "3"),) and not origin_report.conditions


def test_what_sizes_a_call_may_have() -> None:
    input_shapes = [("a", ["batch size", 4]), ("b", ["unk__6", 4])]
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["a", "b"], ["c"], name="sum"),
            helper.make_node("Gather", ["c", "five"], ["d"], name="row"),
        ],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in input_shapes],
        [helper.make_tensor_value_info("d", TensorProto.FLOAT, None)],
        [helper.make_tensor("five", TensorProto.INT64, [], [5])],
    )
    model_proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    origin_report = tk.explain_dims(model_proto.SerializeToString())
    assert len(origin_report.conditions) == 3 and "requires" in str(origin_report)
    assert origin_report.conditions[0].startswith("'batch size' == max('batch size', unk__6)")
    assert all(
        name in text
        for name, text in zip(("sum", "sum", "row"), origin_report.conditions, strict=True)
    )


BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, bool c, int64 trips) => (float[K, 4] y, float[4] z)
    <int64 three = {3}, int64 five = {5}, float[4] zero = {0, 0, 0, 0}> {
    always = Gather(x, three)
    [pick] y = If (c) <
        then_branch = g1 () => (float[A, 4] a) {
            [row] r = Gather(x, five)
            s = Constant<value_ints = [1, 4]>()
            a = Reshape(r, s)
        },
        else_branch = g2 () => (float[B, 4] b) { [near] t = Gather(x, three)  b = Add(x, t) }
    >
    [turn] z = Loop (trips, , always) <
        body = g3 (int64 i, bool ci, float[4] v) => (bool co, float[4] w) {
            co = Identity(ci)
            [inner] w = If (ci) <
                then_branch = g4 () => (float[4] d) { [deep] e = Gather(x, five)  d = Add(v, e) },
                else_branch = g5 () => (float[4] f) { f = Neg(v) }
            >
        }
    >
}"""


def test_sizes_that_branches_and_loops_need() -> None:
    model = parser.parse_model(BRANCHES).SerializeToString()
    origin_report = tk.explain_dims(model)
    assert [c.partition(": ")[0] for c in origin_report.conditions] == ["N >= 4 (Gather:always"]
    nodes = [c.partition(": ")[0] for c in origin_report.branch_conditions]
    assert nodes == ["N >= 6 (pick/row", "N >= 6 (turn/inner/deep"]
    assert "a branch or loop, where it runs, requires N >= 6 (pick/row" in str(origin_report)
    # What is listed is what is checked: the branch that needs six rows is refused, the other runs.
    f, four = tk.compile(model), np.ones((4, 4), np.float32)
    f(four, np.array(False), np.array(0))
    for branch, trips in ((True, 0), (False, 1)):
        with pytest.raises(tk.UserError, match="N >= 6"):
            f(four, np.array(branch), np.array(trips))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model().SerializeToString())
    assert main(["check", str(path), "--dims"]) == 0
    assert "batch size is dynamic" in capsys.readouterr().out
    assert main(["check", str(path), "--dims", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dims"]["ends"][0]["node"] == "first"
    assert main(["check", "--table", "--dims"]) == 2
    capsys.readouterr()
    model_proto = model()
    model_proto.graph.node[4].op_type = "NoSuch"
    path.write_bytes(model_proto.SerializeToString())
    assert main(["check", str(path), "--dims"]) == 1
    assert "only of what can be compiled" in capsys.readouterr().out
    for option in (["--dims"], ["--external", "c_reference"]):
        bare = external(tmp_path, "float32", (3, 5), "MatMul")
        assert main(["check", str(bare), *option]) == 2
        assert f"{option[0]} needs the model's weights" in capsys.readouterr().err
