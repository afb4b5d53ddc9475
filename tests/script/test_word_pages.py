"""The pages on the two languages name every word of their parsers."""

from __future__ import annotations

from pathlib import Path

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.ir.expr import CALLED, DEVICE_INSTRUCTIONS
from tensorkiln.script import parse_functions, parse_graph_types, parse_loops, parse_statements
from tensorkiln.script.functions import FUNCTIONS
from tensorkiln.script.parse_block import BLOCK_WORDS
from tensorkiln.script.parse_graph_calls import CALLS

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Keywords of Python, which a script cannot write after a dot.
KEYWORDS = {"and", "or", "not"}
# What the printer writes for nodes that a reader writes otherwise (`for`, an assignment, a sum).
PRINTED = {"T.store", "T.prefetch", "T.evaluate", "T.reduce", "T.var", "T.thread", "T.unrolled"}


def lacking(page: str, words: set[str]) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return sorted(w for w in words if f"`{w}`" not in text and f"{w}(" not in text)


def test_graphs() -> None:
    words = {*CALLS, *parse_graph_types._WORDS, "R.dataflow", "R.output", "R.func_attr"}
    assert len(words) > 20
    assert lacking("graphs.md", words) == []


def test_tensor_programs() -> None:
    words = {f"T.{w}" for w in (*parse_loops.LOOPS, *parse_functions._CALLS, *CALLED)}
    words |= {f"T.{w}" for w in {*FUNCTIONS} - {*DEVICE_INSTRUCTIONS} - KEYWORDS}
    words |= {*parse_statements._CALLS, *BLOCK_WORDS, "T.Buffer", "T.func_attr", "T.grid"}
    assert len(words) > 80
    types = {f"T.{name}" for name in PROGRAM_TYPES}  # "and so for each type"
    assert lacking("tensor-programs.md", words - PRINTED - types) == []


def test_instructions_of_devices_have_these_prefixes() -> None:
    known = ("thread_", "subgroup_", "warp_", "warpgroup_")
    assert all(name.startswith(known) for name in DEVICE_INSTRUCTIONS)
