"""The node tests of the ONNX standard: what imports must be right; the data of what did, and the
page that is made from it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import onnx
import pytest

from tensorkiln.frontend.onnx import coverage
from tensorkiln.frontend.onnx.standard import HINTS
from tensorkiln.frontend.onnx.table import DOMAINS
from tests.frontend.onnx_backend import (
    AT_LEAST,
    AT_LEAST_AT_RUN_TIME,
    OF_BFLOAT16,
    Outcome,
    cases,
    compiled,
    evaluated,
    is_bfloat16,
    outcome,
)
from tests.frontend.onnx_coverage import DATA, record, text_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx-operators.md"


@cache
def outcomes() -> tuple[Outcome, ...]:
    """Of all cases; NumPy evaluates them, but for those of bfloat16, which it does not have."""
    return tuple(outcome(case, compiled if is_bfloat16(case) else evaluated) for case in cases())


@pytest.mark.slow
def test_standard_node_cases() -> None:
    wrong = {o.name: o.reason for o in outcomes() if o.kind in ("differs", "failed")}
    assert wrong == {}
    assert sum(o.kind == "agrees" for o in outcomes()) >= AT_LEAST


@pytest.mark.slow
def test_standard_node_cases_of_inputs_at_run_time() -> None:
    case_outcomes = [outcome(case, evaluated, True) for case in cases() if not is_bfloat16(case)]
    assert {o.name: o.reason for o in case_outcomes if o.kind in ("differs", "failed")} == {}
    assert sum(o.kind == "agrees" for o in case_outcomes) >= AT_LEAST_AT_RUN_TIME - OF_BFLOAT16


@pytest.mark.slow
def test_what_is_recorded(
    golden: Callable[[Path, str], None], request: pytest.FixtureRequest
) -> None:
    """Other versions of the package `onnx` have other cases: the data is of one of them."""
    if request.config.getoption("--bless") or coverage.recorded()["onnx"] == onnx.__version__:
        golden(DATA, text_of(record(outcomes())))
        coverage.recorded.cache_clear()


def test_the_page_of_operators(golden: Callable[[Path, str], None]) -> None:
    golden(PAGE, page())
    page_text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)`", page_text, re.M)) >= {
        n for t in DOMAINS.values() for n in t
    }


HEAD = """# ONNX operators

Which operators of ONNX are imported, from what the standard's own node tests say. Written by
`pytest tests/frontend/test_onnx_conformance.py --bless` with onnx {version}, where NumPy computes
what is imported, but for bfloat16, which is compiled as all is by `make onnx-backend`. Of {all}
cases {passed} agree, and each other one is refused by an error that says why.
[`kiln check --table`](cli.md#inspect-and-check) prints this by opset and element type, with what
was refused and what was not run.

Of the 140 models that the package has as files, most of them converted from PyTorch, 128 agree
(`tests/frontend/test_onnx_data.py`, which says why the others are refused); those of opset 6 are
brought to 7 by `onnx.version_converter`.

Models of opset 7 and newer are read. An operator without an importer of its own, or one defined
anew in a newer opset, is imported as the nodes of its function body where the standard has one, if
the package `onnx` is installed. `kiln check model.onnx` lists every node of a model that cannot be
compiled, with what helps.

- **Element types**: bool, integers of 8 to 64 bits, float16, bfloat16, float32 and float64.
  Floats of 4, 6 and 8 bits (`float8e4m3fn`, `float8e4m3fnuz`, `float8e5m2`, `float8e5m2fnuz`,
  `float8e8m0`, `float6e2m3`, `float6e3m2`, `float4e2m1`) and integers of 2 and 4 (`int4`, `uint4`,
  `int2`, `uint2`) are stored and not computed with: `Cast`, `CastLike`, `QuantizeLinear` and
  `DequantizeLinear` (by blocks, too) convert them, operators that only move elements, branches
  and loops move them, and all others refuse them. As inputs and outputs they are
  [arrays of `ml_dtypes`](howto/call.md#types-of-fewer-than-16-bits), in functions with control flow
  the bytes of these. A zero point of floats must be a constant, which alone shows that it is 0.
  Weights are unpacked at import.
- **Strings** are no elements of tensors. Those of a list that the model has, as the labels of
  classifiers and what encoders make of them, are numbers of entries: a result that is of strings is
  of int64, and the function's attribute `texts` has the entries. Inputs of strings are refused:
  number the categories before the model. `ZipMap` gives scores as they are, in the order of its
  labels.
- **Inputs without a shape** have as many dimensions as nodes say that read them (a convolution's
  weight, `Gemm`, `perm`, axes that are reduced, declared results), all of them symbolic. Where none
  says it, the input is refused: `from_onnx(..., shapes={{"x": ("batch", 3)}})`, or
  `--shape x=batch,3`. Nodes within branches and loops, and elementwise
  operators alone, do not say it.
- **Shapes** may be symbolic, and may be [computed from data](howto/control-flow.md#in-onnx-models).
  So may be operands that say what an operator does: axes (up to 64 sets of them), pads, scales and
  sizes of `Resize`, `k` of `TopK` along a dimension of known extent, parts of `Split`, bounds and
  axes of `Slice`. With all inputs given at run time {at_run_time} of the standard's cases agree
  (`python -m tests.frontend.onnx_backend --run-time`). What must be known at import: the boxes of
  `tf_crop_and_resize`, the sizes of `Resize` with `antialias`, shapes of `Col2Im` and `MaxUnpool`,
  frames of `STFT`, parts of `SplitToSequence`, and whatever decides a number of dimensions.
- **Sizes that must agree** may be symbolic, too: elementwise operators need them equal or 1, others
  equal, and which node needs what is a condition of the call (`kiln check --dims`). An extent of 0
  does not broadcast with 1 then, and `Squeeze` without axes needs symbolic extents other than 1.
  `Attention` with symbolic numbers of heads needs as many for queries as for keys and values.
  Refused is what decides how a kernel is made: symbolic kernels of `Conv` and weights of
  `ConvTranspose` and `DeformConv`, matrices of `Det`, the length of `DFT`, numbers of channels of
  `InstanceNormalization` and of results of `Conv` in groups, shapes of random numbers.
- **Control flow**: a branch or loop whose course is known at import is imported in its place, up to
  64 steps; others are [branches and loops](howto/control-flow.md#in-onnx-models) of host code,
  those of `RNN`, `GRU` and `LSTM` over long or symbolic sequences among them.
- **Sequences and optionals** are worked off at import, so positions in them must be constants. A
  result of the model that is a sequence becomes as many outputs, `name/0`, `name/1` and so on; an
  input cannot be one.
- **Ranks** are known at import: a branch's results of two ranks are imported into both of what
  follows, but may not be results of the model, and data does not decide how many dimensions a
  tensor has (`Reshape` to a shape of open length).
- **Random numbers** need the attribute `seed`. They are constants of the compiled model, those of
  `numpy.random.RandomState(seed)`, and `Multinomial` is drawn by them; without a seed make the
  random tensor an input of the model.
- **Quadratic time**: `DFT` and `STFT` are products with matrices.

The tables have for each operator the opsets in which a definition of its own importer begins
(`body`: by its function body), the cases of this operator alone that agree, and the element types
that these have, by the standard's type variables where it has several.

"""
ROWS = """| operator | from opset | cases | element types |
|---|---|---|---|
"""


def page() -> str:
    """The page, of what is recorded."""
    record = coverage.recorded()
    cases = {**record["cases"], "at_run_time": f"{AT_LEAST_AT_RUN_TIME:,}"}
    text = HEAD.format(version=record["onnx"], **cases)
    for domain in record["operators"]:
        text += f"## {domain or 'ai.onnx'}\n\n{ROWS}{rows(domain)}\n"
    return text + f"## What is refused\n\n{REFUSED}{refusals(record['refusals'])}"


def rows(domain: str) -> str:
    defined: dict[str, list[coverage.Row]] = defaultdict(list)
    for row in coverage.rows():
        if row.domain == domain:
            defined[row.operator].append(row)
    table = DOMAINS.get(domain, {})
    lines = []
    for name in sorted({*table, *defined}):
        passed, cases = (sum(getattr(r, k) for r in defined[name]) for k in ("passed", "cases"))
        versions = CONTROL.get(name) or ", ".join(map(str, sorted(table.get(name, ()))))
        import_way = versions or ("body" if passed else "no")
        count = f"{passed} of {cases}" if cases else ""
        lines.append(f"| `{name}` | {import_way} | {count} | {types_of(defined[name])} |\n")
    return "".join(lines)


def types_of(defined: Sequence[coverage.Row]) -> str:
    """The element types that passed, by type variables if there are several."""
    passed: dict[str, set[str]] = defaultdict(set)
    for row in defined:
        for variable, cells in row.types.items():
            passed[variable] |= {c.type for c in cells if c.result == "passed"}
    texts = {variable: ", ".join(sorted(types)) for variable, types in passed.items() if types}
    if len(passed) < 2:
        return "".join(texts.values())
    return "; ".join(f"{variable}: {types}" for variable, types in texts.items())


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


def refusals(counts: Mapping[str, int]) -> str:
    lines = []
    for reason, count in counts.items():
        op = reason.partition(":")[0]
        helps = HINTS.get(op, "") or next((v for k, v in HELPS.items() if k in reason), "")
        lines.append(f"| {count} | {reason} | {helps} |\n")
    return "".join(lines)
