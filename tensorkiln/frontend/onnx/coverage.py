"""What the standard's node tests say of each operator, opset and element type: `coverage.json`,
which `pytest tests/frontend/test_onnx_conformance.py --bless` writes from what they did.

A *row* is a definition of an operator, by the first opset that has it. Its cases are those of one
node; a case counts for each element type that it has for a type variable of the definition ("T").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from tensorkiln.base.record import JsonRecord, json_key
from tensorkiln.frontend.onnx.load import load
from tensorkiln.frontend.onnx.proto import NodeProto, OnnxGraph, OpsetId


@dataclass(frozen=True, slots=True)
class Cell(JsonRecord):
    """One element type of one type variable: of `cases` that ran with it, `passed` were right, and
    the others were refused."""

    type: str = field(metadata=json_key(hidden=True))
    passed: int
    cases: int

    @property
    def result(self) -> str:
        """`passed` if a case passed, `refused` if all were refused, `not run` if there is none."""
        return _result(self.passed, self.cases)

    def to_json(self) -> dict[str, Any]:
        """What `kiln check --table --json` says of the element type."""
        return {"result": self.result, **JsonRecord.to_json(self)}


@dataclass(frozen=True, slots=True)
class Row(JsonRecord):
    """A definition of an operator; `opset` is the first that has it. `types` has a cell for each
    element type that the definition allows for each of its type variables."""

    domain: str
    operator: str
    opset: int
    passed: int = 0
    cases: int = 0
    types: Mapping[str, Sequence[Cell]] = field(
        default_factory=dict, metadata=json_key(hidden=True)
    )

    @property
    def result(self) -> str:
        """As of a cell, of all cases of the definition."""
        return _result(self.passed, self.cases)

    @property
    def name(self) -> str:
        """The operator with its domain, if that is not ONNX's first."""
        return f"{self.domain}.{self.operator}" if self.domain else self.operator

    def to_json(self) -> dict[str, Any]:
        """The row for `kiln check --table --json`."""
        types = {v: {c.type: c.to_json() for c in cells} for v, cells in self.types.items()}
        return {**JsonRecord.to_json(self), "result": self.result, "types": types}


def _result(passed: int, cases: int) -> str:
    return "passed" if passed else "refused" if cases else "not run"


@cache
def recorded() -> Mapping[str, Any]:
    """The data as it was written. `sets` has sets of element types, each a text; an operator's
    definition has under `types` for each type variable the number of its set, and then [passed,
    cases] for each element type that was run."""
    text = (files(__package__) / "coverage.json").read_text(encoding="utf-8")
    record: Mapping[str, Any] = json.loads(text)
    return record


def rows() -> tuple[Row, ...]:
    """All rows, by domain, operator and opset."""
    record, table = recorded(), []
    for domain, operators in record["operators"].items():
        for operator, versions in operators.items():
            for opset, version in versions.items():
                cells = {
                    variable: _cells(record["sets"][number], counts)
                    for variable, (number, counts) in version["types"].items()
                }
                passed, cases = version["cases"]
                table.append(Row(domain, operator, int(opset), passed, cases, cells))
    return tuple(table)


def rows_of(model: Any) -> tuple[Row, ...]:
    """The rows of the definitions that a model uses, by domain and operator. An operator that the
    standard does not define in the model's opset has a row without cases.

    Raises UserError if the file is not an ONNX model.
    """
    model_proto = load(model).model
    function_keys = {(_domain(f.domain), f.name) for f in model_proto.functions}
    outer = _opsets(model_proto.opset_import)
    operator_keys = set(_used(model_proto.graph.node if model_proto.graph else (), outer))
    for f in model_proto.functions:
        operator_keys |= set(_used(f.node, {**outer, **_opsets(f.opset_import)}))
    return tuple(_in_force(*key) for key in sorted(operator_keys) if key[:2] not in function_keys)


def _cells(allowed: str, counts: Mapping[str, Sequence[int]]) -> tuple[Cell, ...]:
    return tuple(Cell(t, *counts.get(t, (0, 0))) for t in allowed.split())


def _in_force(domain: str, operator: str, opset: int) -> Row:
    candidates = [r for r in rows() if (r.domain, r.operator) == (domain, operator)]
    fitting = [r for r in candidates if r.opset <= opset]
    return max(fitting, key=lambda r: r.opset, default=Row(domain, operator, opset))


def _used(nodes: Iterable[NodeProto], opsets: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """(domain, operator, the model's opset of the domain) of nodes, and of those in their bodies;
    how deep bodies nest, the reader of files bounds."""
    for node in nodes:
        domain = _domain(node.domain)
        yield domain, node.op_type, opsets.get(domain, 1)
        for attr in node.attribute:
            if isinstance(attr.g, OnnxGraph):
                yield from _used(attr.g.node, opsets)


def _opsets(imports: Iterable[OpsetId]) -> dict[str, int]:
    return {_domain(o.domain): o.version for o in imports}


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
