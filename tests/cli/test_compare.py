from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.cli import compare
from tensorkiln.cli.bench import answer_text
from tensorkiln.cli.compare import Answer, Request
from tensorkiln.tune.measure import Timing
from tests.cli import fakes


def peer(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(names: list[str], arrays: list[Any]) -> list[Any]:
        x, ids = arrays
        return [change(x * 2), np.array(ids.sum())]

    return call


@pytest.mark.parametrize(
    ("change", "agrees"),
    [
        (lambda y: y, True),
        (lambda y: y * (1 + 5e-4), True),
        (lambda y: y * (1 + 5e-3), False),
        (lambda y: np.where(y == y.flat[0], np.nan, y), False),
    ],
)
def test_tolerance(monkeypatch: pytest.MonkeyPatch, change: Any, agrees: bool) -> None:
    fakes.install(monkeypatch)
    monkeypatch.setattr(compare, "_peer", lambda request: peer(change))
    answer = compare.compare(Request("net.so", "net.onnx", dims={"batch": 4}, seconds=0.01))
    assert answer.agrees == agrees
    assert answer.trials == 3
    assert answer.peer is not None
    assert answer.peer.count > 0
    assert answer.ours.min_ms <= answer.ours.median_ms
    assert ("agree" if agrees else "DIFFER") in answer_text(answer, 1)


def test_without_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.install(monkeypatch)
    answer = compare.compare(Request("net.so", dims={"batch": 1}, seconds=0.01))
    assert answer.peer is None
    assert answer.agrees
    assert "ONNX" not in answer_text(answer, 2)


def test_wrong_shape_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.install(monkeypatch)
    monkeypatch.setattr(compare, "_peer", lambda request: peer(lambda y: y[:1]))
    with pytest.raises(Exception, match="expected"):
        compare.compare(Request("net.so", "m", dims={"batch": 4}, seconds=0.01))


def test_user_error_of_the_fresh_process_stays_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.so"):
        compare.compare_fresh(Request(str(tmp_path / "none.so")))


def test_crash_of_the_fresh_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.sys, "executable", "/bin/false")
    with pytest.raises(InternalError, match="fresh process failed"):
        compare.compare_fresh(Request("x.so"))


def test_ratio_in_the_table() -> None:
    answer = Answer(Timing(1.0, 2.0, 5), Timing(3.0, 4.0, 5), 1e-6, 2.0, 0.01, 3)
    text = answer_text(answer, 1)
    assert "0.50x of ONNX Runtime's" in text
    assert "results agree" in text
