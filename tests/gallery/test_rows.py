"""The gallery itself: its table, and that its runner tells right results from others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tensorkiln.base.errors import UserError
from tests.gallery import case
from tests.gallery.__main__ import page, summary
from tests.gallery.case import KINDS, ROUTES, Outcome, Row, judged, refusal, run
from tests.gallery.rows import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
ONES = np.ones((2, 3), np.float32)
SLOPE = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`run` is for processes of their own: it silences them and takes two threads."""
    monkeypatch.setattr(case, "quiet", lambda: None)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_table() -> None:
    assert len(ROWS) >= 300
    for name, row in ROWS.items():
        assert row.routes and set(row.routes) <= set(ROUTES), name
        assert len(set(row.routes)) == len(row.routes), name
        assert set(row.refused) <= set(row.routes), name
        assert (row.other_inputs is None) or row.sizes is not None, name
    assert {"timm", "transformers", "torchvision", "diffusers", "ultralytics"} <= {
        row.package for row in ROWS.values()
    }


def test_page_has_all_rows() -> None:
    cells = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    written = {(first.removeprefix("| "), route) for first, _, route, *_ in cells[2:]}
    assert written == {(name, route) for name, row in ROWS.items() for route in row.routes}


def test_the_table_needs_no_collection() -> None:
    """Names can be listed where none of the packages is installed."""
    code = (
        "import sys, json; from tests.gallery.rows import ROWS;"
        "print(json.dumps([m for m in sys.modules if '.' not in m]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {row.package for row in ROWS.values()} - {"torch"} & set(json.loads(process.stdout))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.linear(x))


@pytest.mark.parametrize("route", ["torch", "dynamo", "script"])
def test_a_right_network(route: str) -> None:
    row = Row("small", "torch", lambda: (Small(), (torch.randn(2, 3),)), (route,))
    outcome = run(row, route, times=False)
    assert (outcome.kind, outcome.details) == ("right", ""), outcome
    assert outcome.compiled > 0 and outcome.error < 1e-5


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        case, "results", lambda call, module, arguments: [np.zeros((2, 4), np.float32)]
    )
    row = Row("small", "torch", lambda: (Small(), (torch.randn(2, 3),)))
    assert run(row, "torch", times=False).kind == "wrong"


def test_a_network_that_is_not_made() -> None:
    def make() -> Any:
        raise ImportError("no such collection")

    outcome = run(Row("absent", "torch", make), "torch", times=False)
    assert (outcome.kind, outcome.details) == ("not made", "ImportError: no such collection")


@pytest.mark.parametrize(
    ("outputs", "want", "exact", "kind"),
    [
        (SLOPE, SLOPE, SLOPE, "right"),
        (SLOPE + 1e-6, SLOPE, SLOPE.astype(np.float64), "right"),
        (SLOPE + 1e-3, SLOPE, SLOPE.astype(np.float64), "wrong"),
        (SLOPE.T, SLOPE, SLOPE, "wrong"),
        (SLOPE.astype(np.float64), SLOPE, SLOPE, "wrong"),
        (SLOPE * np.nan, SLOPE, SLOPE, "wrong"),
        (ONES, ONES, ONES, "says nothing"),
        (ONES, ONES * np.nan, ONES, "says nothing"),
        (SLOPE.astype(np.int64), SLOPE.astype(np.int64), SLOPE.astype(np.int64), "right"),
        (SLOPE.astype(np.int64) + 1, SLOPE.astype(np.int64), SLOPE.astype(np.int64), "wrong"),
    ],
)
def test_judged(outputs: np.ndarray, want: np.ndarray, exact: np.ndarray, kind: str) -> None:
    assert judged([outputs], [want], [exact])[0] == kind
    assert judged([], [want], [exact])[0] == "wrong"


def test_refusals() -> None:
    row = Row("r", "torch", lambda: (None, ()), refused={"torch": "complex numbers"})
    expected = UserError("complex numbers are not supported", code="x")
    assert refusal(row, "torch", expected).kind == "refused"
    assert refusal(row, "torch", UserError("something else", code="x")).kind == "error"
    assert (
        refusal(row, "torch", UserError("torch said no", code="export-failed")).kind == "not made"
    )


def test_summary_counts_the_worst_route() -> None:
    outcomes = [Outcome("a", "torch", "right"), Outcome("a", "script", "wrong", "a | b")]
    assert summary(outcomes) == "1 networks: 1 wrong; of 2 imports 1 right"
    assert set(KINDS) >= {o.kind for o in outcomes}
    name = next(iter(ROWS))
    assert f"| {name} | " in page([Outcome(name, "torch", "right", error=1e-7)])
