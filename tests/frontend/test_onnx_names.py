"""Names of operators: real ones that are not imported, and slips of those that are."""

from __future__ import annotations

import pytest

from tensorkiln.frontend.graph.issues import NodeProblem
from tensorkiln.frontend.onnx.dispatch import find
from tensorkiln.frontend.onnx.standard import HINTS
from tensorkiln.frontend.onnx.standard import STANDARD as OURS
from tensorkiln.frontend.onnx.table import IMPORTERS, ML_IMPORTERS

defs = pytest.importorskip("onnx.defs")
SCHEMAS = defs.get_all_schemas_with_history()
STANDARD = sorted({s.name for s in SCHEMAS if s.domain == ""})
ML = sorted({s.name for s in SCHEMAS if s.domain == "ai.onnx.ml"})


def hint_for(name: str) -> str:
    with pytest.raises(NodeProblem) as caught:
        find(IMPORTERS, name, defs.onnx_opset_version())
    return caught.value.hint


@pytest.mark.parametrize("name", sorted(set(STANDARD) - set(IMPORTERS)))
def test_no_real_operator_is_taken_for_a_slip(name: str) -> None:
    assert hint_for(name) == HINTS.get(name, "")


@pytest.mark.parametrize("name", sorted(set(ML) - set(ML_IMPORTERS)))
def test_what_helps_with_an_operator_of_ml(name: str) -> None:
    with pytest.raises(NodeProblem) as caught:
        find(ML_IMPORTERS, name, 5)
    assert caught.value.hint == HINTS[name]


def test_hints_are_for_what_is_not_imported() -> None:
    assert set(HINTS) <= {*STANDARD, *ML} - {*IMPORTERS, *ML_IMPORTERS}


def test_the_table_holds_the_operators_of_the_standard() -> None:
    assert {*STANDARD, *ML} == OURS


@pytest.mark.parametrize("name", sorted(n for n in IMPORTERS if len(n) > 4))
def test_a_slip_in_any_imported_operator_finds_it(name: str) -> None:
    swapped = name[:2] + name[3] + name[2] + name[4:]
    if swapped != name:
        assert repr(name) in hint_for(swapped)
    assert repr(name) in hint_for(name + "s") or name + "s" in STANDARD
