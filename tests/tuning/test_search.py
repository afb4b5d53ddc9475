"""The search: resumed wherever it was killed, bounded, and never slower than untuned."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ir.expr import Var
from tensorkiln.kernels.case import rand
from tensorkiln.kernels.records import read_records
from tests.transform.graphs import graph
from tests.tuning import hooks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A search that nobody disturbs, and its journal."""
    path = tmp_path_factory.mktemp("whole") / "journal"
    return hooks.tuned(path), path


def test_records_are_better_than_untuned(whole: tuple[Any, Path]) -> None:
    result, _ = whole
    assert len(result.rows) == 2 and len(result.records) >= 1
    for row in result.rows:
        assert row.tried == 8 and row.unit == "points" and not row.failures
        assert row.ratio <= 0.98 if row.knobs else row.ratio == 1
    for record in result.records:
        assert record.least < record.untuned and record.unit == "points"
        assert record.machine == "a table"


@pytest.mark.parametrize("dies", [2, 7, 16])
def test_killed_and_called_again_it_finds_the_same(
    whole: tuple[Any, Path], tmp_path: Path, dies: int
) -> None:
    """kill -9 at a measurement: what was measured before is not measured again."""
    result, reference = whole
    path = tmp_path / "journal"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.tuning.hooks", str(path), str(dies)],
        cwd=ROOT,
        capture_output=True,
        timeout=300,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    before = path.read_text().splitlines()
    assert 1 <= len(before) < len(reference.read_text().splitlines())
    again = hooks.tuned(path)
    assert again.records.text() == result.records.text()
    assert again.rows == result.rows
    after = path.read_text().splitlines()
    assert after[: len(before)] == before
    assert sorted(after) == sorted(reference.read_text().splitlines())


def test_all_of_it_known_nothing_is_measured(whole: tuple[Any, Path], tmp_path: Path) -> None:
    result, reference = whole
    path = tmp_path / "journal"
    path.write_bytes(reference.read_bytes())
    calls = hooks._calls
    assert hooks.tuned(path).records.text() == result.records.text()
    assert hooks._calls == calls and path.read_bytes() == reference.read_bytes()


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"threads": 2}, "another number of threads"),
        ({"measure": hooks.Failing()}, "another way to measure"),
    ],
)
def test_the_journal_of_another_search(
    whole: tuple[Any, Path], tmp_path: Path, change: dict[str, Any], difference: str
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(whole[1].read_bytes())
    with pytest.raises(UserError, match=difference):
        hooks.tuned(path, **change)
    with pytest.raises(UserError, match="another model"):
        tk.tune(
            graph(lambda g, x: g.linear(x, rand(32, 16)), x=(24, 32)),
            hooks.TARGET,
            measure=hooks.Points(),
            journal=path,
        )
    with pytest.raises(UserError, match="another target"):
        tk.tune(hooks.model(), "llvm", measure=hooks.Points(), journal=path)


def test_records_that_are_known_are_tried_first(whole: tuple[Any, Path]) -> None:
    result, _ = whole
    again = hooks.tuned(None, records=result.records, trials=1)
    tried = {row.name: row.knobs for row in again.rows if row.knobs}
    assert tried == {row.name: row.knobs for row in result.rows if row.knobs}


def test_a_hook_that_fails_costs_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_calls", 0)
    mod = graph(lambda g, x: g.linear(x, rand(32, 64)), x=(24, 32))
    with ThreadPoolExecutor(1) as executor:
        result = tk.tune(
            mod,
            hooks.TARGET,
            measure=hooks.Failing(),
            executor=executor,
            trials=6,
            batch=6,
            limit=0.5,
            each=0.01,
        )
    (row,) = result.rows
    failed = {f.state: f.reason for f in row.failures}
    assert failed["wrong"] == "it computed another thing"
    assert "takes more than" in failed["hang"] and len(row.failures) == 4
    reasons = " ".join(f.reason for f in row.failures)
    assert "the board is gone" in reasons and "measure returned nan" in reasons
    assert row.ratio == 0.5


def test_it_ends_when_its_time_is_over() -> None:
    start = time.monotonic()
    with ThreadPoolExecutor(1) as executor:
        result = tk.tune(
            hooks.model(), hooks.TARGET, seconds=3, measure=hooks.Points(), executor=executor
        )
    assert time.monotonic() - start < 60
    assert len(result.rows) == 2 and all(row.tried < row.choices for row in result.rows)


def test_only_the_costliest(whole: tuple[Any, Path]) -> None:
    result = hooks.tuned(None, kernels=1, trials=1)
    by_cost = sorted(whole[0].rows, key=lambda r: -(r.untuned or 0) * r.calls)
    assert [row.name for row in result.rows] == [by_cost[0].name]


def test_symbolic_dimensions_need_a_size() -> None:
    mod = graph(lambda g, x: g.linear(x, rand(32, 64)), x=(Var("n"), 32))
    with pytest.raises(UserError, match="symbolic dimension 'n'") as caught:
        tk.tune(mod, hooks.TARGET, measure=hooks.Points())
    assert caught.value.code == "unknown-dim"
    with ThreadPoolExecutor(1) as executor:
        result = tk.tune(mod, sizes={"n": 24}, trials=2, each=0.01, executor=executor)
    (row,) = result.rows
    assert row.tried == 2 and not row.failures and row.unit == "ms"


def test_a_model_without_knobs() -> None:
    result = tk.tune(graph(lambda g, x: g.exp(x), x=(8,)), hooks.TARGET, search="random")
    assert (result.rows, len(result.records)) == ((), 0)
    assert result.table() == "no kernel of this model has knobs"
    assert [k.family for k in result.others] == ["movement"]


def test_records_change_the_compile_and_nothing_else(
    whole: tuple[Any, Path], tmp_path: Path
) -> None:
    result, _ = whole
    path = result.save(tmp_path / "records")
    assert read_records(path).text() == result.records.text()
    mod = hooks.model()
    tuned, plain = tk.compile(mod, records=path, target="native"), tk.compile(mod)
    x = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32)
    np.testing.assert_allclose(tuned(x), plain(x), rtol=1e-4, atol=1e-4)


WRONG = [
    ({"seconds": 0}, "seconds=0"),
    ({"seconds": "long"}, "seconds"),
    ({"each": -1}, "each=-1"),
    ({"limit": float("nan")}, "limit=nan"),
    ({"kernels": 0}, "kernels=0"),
    ({"kernels": 1.5}, "kernels=1.5"),
    ({"batch": 0}, "batch=0"),
    ({"trials": True}, "trials=True"),
    ({"threads": 0}, "threads=0"),
    ({"seed": -1}, "seed=-1"),
    ({"search": "modle"}, "did you mean 'model'"),
    ({"measure": "tiem"}, "did you mean 'time'"),
    ({"measure": len}, "attribute 'unit'"),
    ({"measure": 3}, "no way to measure 3"),
    ({"executor": "locl"}, "executor"),
    ({"measure_executor": 3}, "executor"),
    ({"records": 3}, "records"),
    ({"journal": 3}, "path"),
    ({"sizes": {"n": 0}}, "sizes"),
    ({"sizes": {"n": 3}}, "no symbolic dimension 'n'"),
    ({"sizes": [3]}, "sizes"),
    ({"precision": "float8"}, "float8"),
    ({"externals": "cblas"}, "externals"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=str)
def test_what_is_no_option_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        tk.tune(hooks.model(), hooks.TARGET, **{"trials": 1, "search": "random", **options})
    assert words in str(caught.value)


@pytest.mark.parametrize("target", ["c", "cuda", "opencl", {"kind": "llvmjit"}])
def test_targets_without_libraries_of_kernels(target: Any) -> None:
    with pytest.raises(UnsupportedError, match="llvm"):
        tk.tune(hooks.model(), target)


def test_instructions_are_of_aarch64() -> None:
    with pytest.raises(UnsupportedError, match="x86_64"):
        tk.tune(hooks.model(), hooks.TARGET, measure="instructions")


def test_a_journal_is_lines_of_json(whole: tuple[Any, Path]) -> None:
    head, *rows = map(json.loads, whole[1].read_text().splitlines())
    assert head["kiln_tuning"] == 1 and len(rows) == 2 + 2 * 8 + len(whole[0].records)
    assert all(row["state"] == "ok" for row in rows)
