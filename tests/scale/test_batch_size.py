"""How many rows a call has: formulas of metadata, conditions, and what was asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.scale.batch_size import bytes_of_a_row, most_of, rows_of_a_call, size_of

FORMULAS = {
    "batch * 1536": 7 * 1536,
    "(batch * 3612672) + kiln_max((batch * 861184), ((((batch * 39675) + 3) / 4) * 64))": (
        7 * 3612672 + max(7 * 861184, (7 * 39675 + 3) // 4 * 64)
    ),
    "kiln_min(batch, 3) - 1": 2,
    "floordiv(batch, 2) + floormod(batch, 4)": 3 + 3,
    "batch % 4": 3,
    # What is no size here counts as nothing, and breaks nothing.
    "other * 2": 0,
    "batch ** 99999999": 0,
    "kiln_max(batch)": 0,
    "__import__('os')": 0,
    "batch / 0": 0,
    "batch +": 0,
    "(" * 5000: 0,
    "-" * 100_000 + "1": 0,
    "batch\0": 0,
}


@pytest.mark.parametrize("text", FORMULAS, ids=lambda text: text[:40])
def test_formulas(text: str) -> None:
    assert size_of(text, {"batch": 7}) == FORMULAS[text]


def _function(**fields: object) -> FunctionInfo:
    x = ParamInfo("x", "float32", ("batch", 4))
    y = ParamInfo("y", "float64", ("batch",))
    options = {"symbols": {"batch": 0}, "workspace_bytes": "batch * 40 + 1000", **fields}
    return FunctionInfo("main", "graph", (x,), (y,), **options)  # type: ignore[arg-type]


def test_bytes_of_a_row() -> None:
    """Inputs, results, and what the workspace grows by."""
    f = _function()
    assert bytes_of_a_row(f, "batch", f.inputs) == 4 * 4 + 8 + 40


@pytest.mark.parametrize(
    ("requires", "row_limit"),
    [((), None), (("batch <= 512",), 512), (("batch < 512", "n <= 4"), 511), (("n <= 4",), None)],
)
def test_conditions_of_the_library_count(requires: tuple[str, ...], row_limit: int | None) -> None:
    assert most_of("batch", requires) == row_limit
    f = _function(requires=requires)
    limit = row_limit or 1024
    assert rows_of_a_call(f, "batch", None, 10_000) == (min(limit, 1024), 1)
    assert rows_of_a_call(f, "batch", None, 0) == (1, 1)
    assert rows_of_a_call(f, "batch", 7, 10) == (7, 1)
    if row_limit is not None:
        with pytest.raises(tk.UserError, match=f"1 to {row_limit} rows at a time"):
            rows_of_a_call(f, "batch", row_limit + 1, 10)


def test_a_least_number_of_rows() -> None:
    f = _function(symbols={"batch": 2})
    assert rows_of_a_call(f, "batch", None, 1) == (2, 2)
    with pytest.raises(tk.UserError, match="2 or more rows"):
        rows_of_a_call(f, "batch", 1, 1)


def test_a_compiled_network_says_what_a_row_takes(tmp_path: Path) -> None:
    """The estimate is what an executor holds after calls, but for what it holds once."""
    tk.compile(make_mlp().SerializeToString()).export_library(tmp_path / "mlp.so")
    f = tk.load(tmp_path / "mlp.so")
    info = f.functions["main"]
    assert re.search(r"batch", str(info.workspace_bytes))
    workspace_bytes = size_of(info.workspace_bytes, {"batch": 64})
    import numpy as np

    f(np.zeros((64, 784), np.float32))
    assert f.executor.workspace_bytes == workspace_bytes > 0
