"""Candidates that are wrong, crash, hang: each costs itself, and is named."""

from __future__ import annotations

from pathlib import Path

import tensorkiln as tk
from tests.transform.graphs import graph
from tests.tuning import planted as ways

# Of each way to fail, the state and words of the reason.
FAULTS = {
    ways.WRONG: ("wrong", "of 600 elements are wrong"),
    ways.PART: ("wrong", "at [599] it is nan"),
    ways.ENDLESS: ("hang", "the candidate kernel did not end in time"),
    ways.CRASH: ("crash", "the candidate kernel ended by SIGSEGV"),
    ways.OUTSIDE: ("wrong", "it wrote outside of its result"),
    ways.RAISES: ("error", "no such way"),
}


def test_each_is_survived_and_named(planted: Path) -> None:
    mod = graph(lambda g, x: g.exp(x), x=(600,))
    result = tk.tune(mod, seconds=200, search="random", limit=1, each=0.01)
    (row,) = result.rows
    assert (row.family, row.tried, row.choices, row.problem) == ("planted", 7, 7, "")
    failed = {f.knobs["way"]: (f.state, f.reason) for f in row.failures}
    assert failed.keys() == FAULTS.keys()
    for variant, (state, words) in FAULTS.items():
        assert failed[variant][0] == state and words in failed[variant][1], failed[variant]
        assert f"{row.name}: {state} with way={variant}: " in result.table()
    assert row.knobs == {"way": ways.FAST} and row.ratio < 0.5
    (record,) = result.records
    assert record.choices == {"way": ways.FAST} and record.least < record.untuned
