"""docs/operators.md is written from the table of operators: `pytest --bless` renews it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tensorkiln.ops import DYNAMIC, OPS
from tensorkiln.ops.attribute import Attribute
from tensorkiln.ops.op import OpDef, Signature

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
HEAD = """# Operators

Written from the table of operators by `pytest tests/ops/test_operators_page.py --bless`. In a
script they are `R.name(operands, attribute=value)`, for a builder `b.emit("name", ...)`. `x?` may
be left out, `xs*` is any number of operands. Attributes are given by name, always; one that an
operator does not have, or that cannot be this value, is an error. What an operator needs of
extents is an error where they are numbers that do not meet it, and a condition of the call where
they are symbolic.

"""
SIZED = """| operator | operands | attributes | needs |
|---|---|---|---|
"""
UNSIZED = """| operator | operands | attributes |
|---|---|---|
"""
DYNAMIC_HEAD = """
## Results whose size the data decides

"""


def row(op: Signature) -> str:
    attrs = "; ".join(f"`{name}`: {meaning(a)}" for name, a in op.attrs.items())
    needs = f" {op.needs.text if op.needs else ''} |" if isinstance(op, OpDef) else ""
    return f"| `{op.name}` | {', '.join(f'`{x}`' for x in op.inputs)} | {attrs} |{needs}\n"


def meaning(a: Attribute) -> str:
    expected = "the name of an element type" if a.example == "float32" else a.expected
    if a.has_default:
        return f"{expected}, `{a.default!r}`"
    return f"{expected} ({'needed' if a.required else 'may be left out'})"


def test_the_page_is_the_table(golden: Callable[[Path, str], None]) -> None:
    sized = "".join(map(row, sorted(OPS.values(), key=lambda op: op.name)))
    dynamic = "".join(map(row, sorted(DYNAMIC.values(), key=lambda op: op.name)))
    golden(PAGE, HEAD + SIZED + sized + DYNAMIC_HEAD + UNSIZED + dynamic)
