"""The node tests of the ONNX standard: what imports must be right; and the page of what is
imported, which is written from what agreed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import onnx
import pytest

from tensorkiln.frontend.onnx.standard import HINTS
from tensorkiln.frontend.onnx.table import DOMAINS
from tests.frontend.onnx_backend import (
    AT_LEAST,
    OF_BFLOAT16,
    Outcome,
    cases,
    is_bfloat16,
    outcome,
)
from tests.frontend.onnx_models import ours

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx-operators.md"


@cache
def outcomes() -> tuple[Outcome, ...]:
    """Of all cases that NumPy can evaluate."""
    return tuple(outcome(case, ours) for case in cases() if not is_bfloat16(case))


@pytest.mark.slow
def test_standard_node_cases() -> None:
    wrong = {o.name: o.reason for o in outcomes() if o.kind in ("differs", "failed")}
    assert wrong == {}
    assert sum(o.kind == "agrees" for o in outcomes()) >= AT_LEAST - OF_BFLOAT16


@pytest.mark.slow
def test_the_page_of_operators(
    golden: Callable[[Path, str], None], request: pytest.FixtureRequest
) -> None:
    """Other versions of the package `onnx` have other cases: the page is of one of them, and must
    hold the same rows of operators in all."""
    written = page(outcomes())
    there = PAGE.read_text(encoding="utf-8")
    if request.config.getoption("--bless") or f"onnx {onnx.__version__}" in there:
        golden(PAGE, written)
    assert set(re.findall(r"^\| `(\w+)`", there, re.M)) >= {n for t in DOMAINS.values() for n in t}


HEAD = """# ONNX operators

Which operators of ONNX are imported, from what the standard's own node tests say. Written by
`pytest tests/frontend/test_onnx_conformance.py --bless` with onnx {version}; `make onnx-backend`
runs all {total} cases compiled. Of the {count} that NumPy can evaluate too, {agree} agree, and each
other one is refused by an error that says why.

Models of opset 7 and newer are read. An operator without an importer of its own, or one defined
anew in a newer opset, is imported as the nodes of its function body where the standard has one, if
the package `onnx` is installed. `kiln check model.onnx` lists every node of a model that cannot be
compiled, with what helps.

- **Element types**: bool, integers of 8 to 64 bits, float16, bfloat16, float32 and float64.
  Floats of 4, 6 and 8 bits (`float8e4m3fn`, `float8e4m3fnuz`, `float8e5m2`, `float8e5m2fnuz`,
  `float8e8m0`, `float6e2m3`, `float6e3m2`, `float4e2m1`) and integers of 2 and 4 (`int4`, `uint4`,
  `int2`, `uint2`) are stored and not computed with: `Cast`, `CastLike`, `QuantizeLinear` and
  `DequantizeLinear` (by blocks, too) convert them, operators that only move elements move them, and
  all others refuse them. As inputs and outputs they are tensors of bytes, one for each element: the
  bits of a float (uint8), or an integer's value (int8 or uint8). Weights are unpacked at import.
- **Strings** are no elements of tensors.
- **Shapes** may be symbolic, and may be [computed from data](howto/control-flow.md#in-onnx-models).
- **Control flow**: a branch or loop whose course is known at import is imported in its place, up to
  64 steps; others are [branches and loops](howto/control-flow.md#in-onnx-models) of host code,
  those of `RNN`, `GRU` and `LSTM` over long or symbolic sequences among them.
- **Sequences and optionals** are worked off at import, so positions in them must be constants. A
  result of the model that is a sequence becomes as many outputs, `name/0`, `name/1` and so on; an
  input cannot be one.
- **Random numbers** need the attribute `seed`. They are constants of the compiled model, those of
  `numpy.random.RandomState(seed)`; without a seed make the random tensor an input of the model.
- **Quadratic time**: `DFT` and `STFT` are products with matrices.

The tables have for each operator the opsets in which a definition of its own importer begins
(`body`: by its function body), the cases of this operator alone that agree, and the element types
of their first operand and result.

"""
ROWS = """| operator | from opset | cases | element types |
|---|---|---|---|
"""


def page(found: Sequence[Outcome]) -> str:
    agree = sum(o.kind == "agrees" for o in found)
    text = HEAD.format(version=onnx.__version__, total=len(cases()), count=len(found), agree=agree)
    for domain, title in (("", "ai.onnx"), ("ai.onnx.ml", "ai.onnx.ml")):
        text += f"## {title}\n\n{ROWS}{rows(found, domain)}\n"
    return text + f"## What is refused\n\n{REFUSED}{refusals(found)}"


def rows(found: Sequence[Outcome], domain: str) -> str:
    tried: dict[str, list[Outcome]] = defaultdict(list)
    for o in found:
        for space, name, _ in o.operators:
            if space == domain:
                tried[name].append(o)
    table = DOMAINS[domain]
    names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == domain}
    lines = []
    for name in sorted({*table, *names}):
        good = [o for o in tried[name] if o.kind == "agrees"]
        versions = CONTROL.get(name) or ", ".join(map(str, sorted(table.get(name, ()))))
        how = versions or ("body" if good else "no")
        types = sorted({t for o in good for t in o.dtypes})
        count = f"{len(good)} of {len(tried[name])}" if tried[name] else ""
        lines.append(f"| `{name}` | {how} | {count} | {', '.join(types)} |\n")
    return "".join(lines)


# Operators on bodies, which no table of importers has.
CONTROL = {"If": "7", "Loop": "7", "Scan": "8", "SequenceMap": "17"}
# Part of a reason -> what helps.
HELPS = {
    "element type string": "tensors hold no strings: do this before the model",
    "is not a tensor": "an input for each tensor of the sequence, or for the optional's",
    "domain 'ai.onnx.preview.training'": "export the model for inference",
    "opset 1 is": "onnx.version_converter.convert_version converts models",
    "without a seed": "the attribute seed, or the random tensor as an input",
}
REFUSED = """| cases | reason | what helps |
|---|---|---|
"""


def refusals(found: Sequence[Outcome]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for o in found:
        if o.kind == "refused":
            counts[o.reason] += 1
    lines = []
    for reason, count in sorted(counts.items(), key=lambda row: (-row[1], row[0])):
        op = reason.partition(":")[0]
        helps = HINTS.get(op, "") or next((v for k, v in HELPS.items() if k in reason), "")
        lines.append(f"| {count} | {reason} | {helps} |\n")
    return "".join(lines)
