"""`kiln check --table`: what the standard's node tests say, of all operators and of a model's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, defs, helper

from tensorkiln.cli import main
from tensorkiln.frontend.onnx.coverage import recorded, rows, rows_of
from tensorkiln.frontend.onnx.table import DOMAINS
from tests.frontend.onnx_backend import variables_of

OPERATORS = [
    "Add",
    "And",
    "ArgMax",
    "Bernoulli",
    "Cast",
    "Gather",
    "Relu",
    "Softmax",
    "StringSplit",
]
# The versions of the standard have the same definitions of opsets that are released.
RELEASED = range(7, 24)


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda: capsys.readouterr()


def of_nodes(*nodes: onnx.NodeProto, functions: Any = (), **opsets: int) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", [], [])
    imports = [helper.make_opsetid(d.replace("_", "."), v) for d, v in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def node(op: str, domain: str = "", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, ["x"], ["y"], domain=domain, **attrs)


def test_text_of_a_model(tmp_path: Path, output: Any, golden: Callable[[Path, str], None]) -> None:
    """The definitions that are in force in its opset, each once, and one that nobody has."""
    names = ["And", "Softmax", "Bernoulli", "Softmax", "StringSplit"]
    model = of_nodes(*map(node, names), node("Gated", "com.acme"), ai_onnx=22, com_acme=2)
    onnx.save(model, tmp_path / "net.onnx")
    assert main(["check", str(tmp_path / "net.onnx"), "--table"]) == 0
    golden(Path(__file__).parent / "golden" / "check_table.txt", output().out)


def test_text_of_all(output: Any) -> None:
    assert main(["check", "--table"]) == 0
    head, *lines, end = output().out.splitlines()
    assert head.split() == ["OPERATOR", "OPSET", "TYPE", "RESULT", "ELEMENT", "TYPES"]
    assert {line.split()[0].rpartition(".")[2] for line in lines} >= {
        name for table in DOMAINS.values() for name in table
    }
    cases = recorded()["cases"]
    assert f"node tests of onnx {recorded()['onnx']} agree" in end
    assert sum(row.cases for row in rows()) <= cases["all"]


def test_json(tmp_path: Path, output: Any) -> None:
    assert main(["check", "--table", "--json"]) == 0
    report = json.loads(output().out)
    assert report.keys() == {"command", "version", "onnx", "operators"}
    assert report["onnx"] == recorded()["onnx"]
    assert len(report["operators"]) == len(rows())
    for row in report["operators"]:
        assert row.keys() == {"domain", "operator", "opset", "passed", "cases", "result", "types"}
        assert 0 <= row["passed"] <= row["cases"]
        for cells in row["types"].values():
            for cell in cells.values():
                assert cell["passed"] <= cell["cases"] <= row["cases"]
                results = ("not run", "refused", "passed")
                assert cell["result"] == results[(cell["cases"] > 0) + (cell["passed"] > 0)]
    onnx.save(of_nodes(node("Relu"), ai_onnx=14), tmp_path / "net.onnx")
    assert main(["check", str(tmp_path / "net.onnx"), "--table", "--json"]) == 0
    report = json.loads(output().out)
    assert report["model"].endswith("net.onnx")
    (row,) = report["operators"]
    assert (row["operator"], row["opset"], row["result"]) == ("Relu", 14, "passed")
    assert row["types"]["T"]["float"] == {"result": "passed", "passed": 1, "cases": 1}


@pytest.mark.parametrize("opset", RELEASED)
@pytest.mark.parametrize("op", OPERATORS)
def test_the_definition_in_force(op: str, opset: int) -> None:
    """As the package `onnx` says, with the types that it allows."""
    (row,) = rows_of(of_nodes(node(op), ai_onnx=opset))
    try:
        schema = defs.get_schema(op, opset)
    except defs.SchemaError:
        assert (row.opset, row.types, row.result) == (opset, {}, "not run")
        return
    assert row.opset == schema.since_version
    allowed = {v: [c.type for c in cells] for v, cells in row.types.items()}
    assert allowed == {v: list(types) for v, types in variables_of(schema).items()}


def test_operators_in_bodies_and_functions() -> None:
    """A function is no operator, and has opsets of its own."""
    body = helper.make_graph([node("Softmax")], "b", [], [])
    outer = helper.make_graph([node("If", then_branch=body, else_branch=body)], "b", [], [])
    imports = [helper.make_opsetid("", 12)]
    f = helper.make_function("own", "F", ["x"], ["y"], [node("Relu"), node("Neg")], imports)
    rows = rows_of(
        of_nodes(
            node("If", then_branch=outer, else_branch=body),
            node("F", "own"),
            node("Relu", "ai.onnx"),
            node("Scaler", "ai.onnx.ml"),
            functions=[f],
            ai_onnx=21,
            own=1,
            ai_onnx_ml=3,
        )
    )
    names = [(row.name, row.opset) for row in rows]
    assert names == [
        ("If", 21),
        ("Neg", 6),
        ("Relu", 6),
        ("Relu", 14),
        ("Softmax", 13),
        ("ai.onnx.ml.Scaler", 1),
    ]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "check needs a model"),
        (["--json"], "check needs a model"),
        (["--table", "--target", "llvm"], "--table and --target do not go together"),
        (["--table", "--external", "cmsis_nn"], "--table and --external do not go together"),
        (["none.onnx", "--table"], "no such file: 'none.onnx'"),
    ],
)
def test_what_has_no_effect_is_refused(argv: list[str], says: str, output: Any) -> None:
    assert main(["check", *argv]) == 2
    out, err = output()
    assert ("error" in json.loads(out) if "--json" in argv else out == "") and says in err


def test_a_file_that_is_no_model(tmp_path: Path, output: Any) -> None:
    (tmp_path / "net.onnx").write_bytes(b"no model")
    assert main(["check", str(tmp_path / "net.onnx"), "--table"]) == 2
    assert "not an ONNX model" in output().err


def test_types_are_the_standards() -> None:
    """Each element type of a cell is one of ONNX's, alone or in a sequence or an optional."""
    type_names = {name.lower() for name in TensorProto.DataType.keys()}  # noqa: SIM118
    for row in rows():
        for cells in row.types.values():
            for cell in cells:
                words = cell.type.replace("optional(", "").replace("seq(", "").rstrip(")")
                assert words in type_names or words.startswith("map("), cell
