from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.cli import compare
from tensorkiln.cli.bench import answer_text
from tensorkiln.cli.compare import Answer, OutputDifference, Request
from tensorkiln.measure.latency import Latency
from tests.cli import fakes


@dataclass
class Session:
    """ONNX Runtime's, of a model like the stand-in library, but for `change`."""

    change: Callable[[Any], Any] = lambda y: y
    inputs: tuple[str, ...] = ("x", "ids")
    outputs: tuple[str, ...] = ("y/out.0", "count")

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.inputs]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.outputs]

    def run(self, names: None, feeds: dict[str, Any]) -> list[Any]:
        x, ids = (feeds[name] for name in self.inputs)
        return [self.change(x * 2), np.array(ids.sum())]


def compared(monkeypatch: pytest.MonkeyPatch, session: Any, model: str = "net.onnx") -> Answer:
    fakes.install(monkeypatch)
    monkeypatch.setattr(compare, "_session", lambda model, threads: session)
    return compare.compare(Request("net.so", model, dims={"batch": 4}, seconds=0.01))


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
    answer = compared(monkeypatch, Session(change))
    assert answer.agrees is agrees
    assert answer.difference is not None
    assert answer.difference.trials == 3
    assert answer.peer is not None
    assert answer.peer.count > 0
    assert answer.ours.min_ms <= answer.ours.median_ms
    assert ("agree" if agrees else "DIFFER") in answer_text(answer)


@pytest.mark.parametrize(
    ("model", "reason"), [("", "no --model was given"), ("net.onnx", "pip install")]
)
def test_nothing_agrees_without_a_comparison(
    monkeypatch: pytest.MonkeyPatch, model: str, reason: str
) -> None:
    """No model, or no ONNX Runtime (its session is None)."""
    answer = compared(monkeypatch, None, model)
    assert (answer.peer, answer.difference) == (None, None)
    answer_json = json.loads(json.dumps(answer.to_json()))
    assert answer_json["agrees"] is None
    assert reason in answer_json["not_compared"]
    assert f"not compared: {answer.not_compared}" in answer_text(answer)
    assert "agree" not in answer_text(answer)


def test_wrong_shape_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="an output has shape"):
        compared(monkeypatch, Session(lambda y: y[:1]))


def raising(y: Any) -> Any:
    raise RuntimeError("no kernel")


@pytest.mark.parametrize(
    ("session", "says"),
    [
        (Session(inputs=("x",)), "the model 1 and 2"),
        (Session(outputs=("y",)), "the model 2 and 1"),
        (Session(raising), "cannot run the model: no kernel"),
    ],
)
def test_a_model_of_another_library(
    monkeypatch: pytest.MonkeyPatch, session: Any, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        compared(monkeypatch, session)


def test_user_error_of_the_fresh_process_stays_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.so"):
        compare.compare_fresh(Request(str(tmp_path / "none.so")))


def test_crash_of_the_fresh_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.sys, "executable", "/bin/false")
    with pytest.raises(InternalError, match="fresh process failed"):
        compare.compare_fresh(Request("x.so"))


def test_ratio_in_the_table() -> None:
    difference = OutputDifference(1e-6, 2.0, 0.01, 3)
    answer = Answer(Latency(1.0, 2.0, 5), 1, Latency(3.0, 4.0, 5), difference)
    text = answer_text(answer)
    assert "0.50x of ONNX Runtime's" in text
    assert "results agree" in text


@pytest.mark.parametrize(
    ("precision", "offset", "agrees"),
    [("float16", 5e-3, True), ("float16", 5e-2, False), ("bfloat16", 3e-2, True)],
)
def test_tolerance_of_lower_precisions(
    monkeypatch: pytest.MonkeyPatch, precision: str, offset: float, agrees: bool
) -> None:
    """A part of the largest result, wherever the difference is; the text names the precision."""
    monkeypatch.setattr(compare, "precision_of", lambda path: precision)
    answer = compared(monkeypatch, Session(lambda y: y + offset * np.abs(y).max()))
    assert (answer.precision, answer.agrees) == (precision, agrees)
    assert f"as far as {precision} goes" in answer_text(answer)
