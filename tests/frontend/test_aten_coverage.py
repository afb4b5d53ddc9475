"""docs/torch-operators.md is written from the table of importers: `pytest --bless` renews it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensorkiln.frontend.torch import aten_complex  # noqa: E402 - after the skip
from tensorkiln.frontend.torch.dispatch import operator_name  # noqa: E402 - after the skip
from tensorkiln.frontend.torch.table import IMPORTERS, NOTHING, REASONS  # noqa: E402
from tests.frontend.test_aten_operators import BY_OPERATOR, OTHERWISE  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs/torch-operators.md"
WRITTEN_WITH = "2.13"


# What is refused of operators that are imported.
LIMITS = (
    (
        "complex inputs and results of the program",
        "an element type of the compiled function has no two parts: pass `torch.view_as_real`",
    ),
    (
        "complex numbers in other operators than those above",
        "they have no rule for them: `torch.view_as_real` gives both parts",
    ),
    ("transforms of a length that is open", "their matrices are made at import: `freeze=`"),
    (
        "[random numbers](howto/torch.md#random-numbers) without `seed=`, of an open shape, or in "
        "the body of `torch.while_loop`",
        "they are constants: the same in every call and iteration",
    ),
    (
        "`scaled_dot_product_attention` with `dropout_p`",
        "it is one kernel, which drops nothing: dropout on the product outside of it has a seed",
    ),
    (
        "quantised, sparse and nested tensors",
        "only dense ones of plain element types are imported; quantise as "
        "[ONNX](onnx-operators.md)",
    ),
    (
        "operators that other packages register",
        "nobody says what they compute: an [external](externals.md), or operators of ATen",
    ),
)


def overloads(core: bool) -> dict[str, Any]:
    """torch's ATen operators by their names in tables; those of core ATen, or all."""
    operators = {}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, remainder = name.partition("::")
        base, _, overload = remainder.partition(".")
        if space != "aten":
            continue
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if op is not None and (not core or torch.Tag.core in op.tags):
            operators[operator_name(op)] = op
    return operators


def reason(name: str) -> str:
    return REASONS.get(name) or REASONS.get(name.partition(".")[0], "")


def listed(names: list[str]) -> str:
    """`add` (`Tensor`, `Scalar`), ...: overloads beside their operator."""
    by_base: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        base, _, overload = name.partition(".")
        by_base[base].append(overload)
    parts = []
    for base, several in by_base.items():
        named = ", ".join(f"`{overload_name}`" for overload_name in several if overload_name)
        parts.append(f"`{base}`" + (f" ({named})" if named else ""))
    return ", ".join(parts)


def page() -> str:
    core = overloads(core=True)
    imports = [n for n in core if n in IMPORTERS]
    checks = [n for n in core if n in NOTHING]
    lacking = [n for n in core if n not in IMPORTERS and n not in NOTHING]
    beyond_core = [n for n in IMPORTERS if n not in core]
    rows = "\n".join(f"| `{n}` | {reason(n)} |" for n in sorted(lacking))
    beyond = [n for n in REASONS if n not in core and n not in {c.partition(".")[0] for c in core}]
    refusal_rows = "\n".join(f"| `{n}` | {reason(n)} |" for n in sorted(beyond))
    refusal_rows += "".join(
        f"\n| {limit_name} | {limit_reason} |" for limit_name, limit_reason in LIMITS
    )
    complex_ = sorted({*aten_complex.PART_WISE, *aten_complex.OVERLOADS, *aten_complex.TABLE})
    return f"""# Operators of PyTorch

Written by `pytest tests/frontend/test_aten_coverage.py --bless` with torch {WRITTEN_WITH}; how
programs of torch are imported is in [howto/torch.md](howto/torch.md). Of the {len(core)} operators
(with their overloads) of core ATen, to which `torch.export` and `torch.compile` decompose others,
{len(imports)} are imported, {len(checks)} only concern sizes, and {len(lacking)} are refused. Every
importer is tested against torch in float64, for several element types and shapes
(`tests/frontend/aten_cases.py`).

## Core ATen, imported

{listed(imports)}

## Core ATen, about sizes

Sizes are expressions in the compiled function, and need no operators: {listed(checks)}.

## Core ATen, refused

| operator | why |
|---|---|
{rows}

## Beyond core ATen, imported

These are kept whole where torch would decompose them, or come from other decompositions:

{listed(beyond_core)}

## On complex numbers

A tensor of complex numbers is two of floats in the compiled function
([howto](howto/torch.md#complex-numbers)). These operators have them as operands or results:

{listed(complex_)}

## What remains refused beyond core ATen

| operator | why |
|---|---|
{refusal_rows}
"""


def test_page(golden: Callable[[Path, str], None]) -> None:
    if not torch.__version__.startswith(WRITTEN_WITH + "."):
        assert set(overloads(core=True)) & set(IMPORTERS), "another torch has the same operators"
        return
    golden(PAGE, page())
    core = overloads(core=True)
    count = f"{len(core.keys() & IMPORTERS)} of {len(core)} operators of core ATen"
    assert count in (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")


def test_every_operator_of_core_aten_is_imported_or_has_a_reason() -> None:
    expected_names = IMPORTERS.keys() | NOTHING
    silent = [n for n in overloads(core=True) if n not in expected_names and not reason(n)]
    if torch.__version__.startswith(WRITTEN_WITH + "."):
        assert not silent


def test_every_importer_is_tested_and_its_operator_exists() -> None:
    assert BY_OPERATOR.keys() | OTHERWISE == IMPORTERS.keys()
    if torch.__version__.startswith(WRITTEN_WITH + "."):
        all_operators = overloads(core=False)
        assert {n for n in IMPORTERS if "::" not in n} <= all_operators.keys()
        assert {n.partition(".")[0] for n in REASONS} <= {
            n.partition(".")[0] for n in all_operators
        }
    assert not IMPORTERS.keys() & (REASONS.keys() | NOTHING)
