"""What the standard's node tests did, as data of the package (`frontend/onnx/coverage.json`), from
which `kiln check --table` and docs/onnx-operators.md are made."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from tensorkiln.frontend.onnx.importer import OLDEST_OPSET
from tests.frontend.onnx_backend import Outcome, variables_of

DATA = Path(__file__).resolve().parents[2] / "tensorkiln" / "frontend" / "onnx" / "coverage.json"


def definitions() -> Iterator[Any]:
    """The definitions of all operators that are in force in an opset that is read."""
    schemas = onnx.defs.get_all_schemas_with_history()
    versions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for s in schemas:
        versions[s.domain, s.name].append(s.since_version)
    for s in sorted(schemas, key=lambda s: (s.domain, s.name, s.since_version)):
        later = [v for v in versions[s.domain, s.name] if v > s.since_version]
        replaced = s.domain == "" and min(later, default=OLDEST_OPSET + 1) <= OLDEST_OPSET
        if not s.deprecated and not replaced:
            yield s


def record(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The data of these outcomes, of which each must agree or be refused."""
    assert {o.kind for o in outcomes} <= {"agrees", "refused"}
    ran: Counter[tuple[Any, ...]] = Counter()
    passed: Counter[tuple[Any, ...]] = Counter()
    for o in outcomes:
        for op in o.operators:
            for key in (op, *((*op, *t) for t in o.types)):
                ran[key] += 1
                passed[key] += o.kind == "agrees"
    sets: dict[str, int] = {}
    operators: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    counted: set[tuple[Any, ...]] = set()
    for s in definitions():
        op = (s.domain, s.name, s.since_version)
        types = {}
        for variable, allowed in variables_of(s).items():
            number = sets.setdefault(" ".join(allowed), len(sets))
            keys = {t: (*op, variable, t) for t in allowed if ran[(*op, variable, t)]}
            types[variable] = [number, {t: [passed[k], ran[k]] for t, k in keys.items()}]
            counted |= set(keys.values())
        counted.add(op)
        operators[s.domain][s.name][str(s.since_version)] = {
            "cases": [passed[op], ran[op]],
            "types": types,
        }
    uncounted = {key for key, count in ran.items() if count and key not in counted}
    assert not uncounted, f"of types or versions that the schemas do not have: {uncounted}"
    kinds = Counter(o.kind for o in outcomes)
    reasons = Counter(o.reason for o in outcomes if o.kind == "refused")
    return {
        "onnx": onnx.__version__,
        "cases": {"passed": kinds["agrees"], "all": len(outcomes)},
        "refusals": dict(sorted(reasons.items(), key=lambda row: (-row[1], row[0]))),
        "sets": list(sets),
        "operators": operators,
    }


def text_of(data: Any) -> str:
    """The data as the text of its file: a line for each definition, refusal and set."""
    deep = {"operators": 4, "refusals": 2, "sets": 2}
    parts = [f'"{key}": {_lines(value, deep.get(key, 1) - 1, "")}' for key, value in data.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any, depth: int, indent: str) -> str:
    if not depth:
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, list):
        rows = [inner + _lines(v, depth - 1, inner) for v in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    rows = [f"{inner}{json.dumps(k)}: {_lines(v, depth - 1, inner)}" for k, v in value.items()]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
