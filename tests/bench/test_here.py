"""What `python -m bench.here` does with its budget, by a clock that its steps move."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.here import LEAST, MOST, Peers, Step, main, steps_for, within

QUICK, ALL = ("ort",), ("ort", "torch")
Seen = dict[str, tuple[float, Peers]]


def measured(
    seconds: float, rows: Sequence[tuple[str, float, float]], failing: str = ""
) -> tuple[Seen, list[str], float]:
    """What each step of `rows` (name, fixed seconds, those of slow peers) got in `seconds`, the
    notes, and the time that has passed."""
    now, steps = [100.0], Seen()

    def step(name: str, fixed: float, slow: float) -> Step:
        def run(step_seconds: float, peers: Peers) -> None:
            steps[name] = step_seconds, peers
            now[0] += fixed + 2 * step_seconds + (slow if "torch" in peers else 0)
            if name == failing:
                raise ValueError("no such engine")

        return Step(name, run, fixed, 2, slow)

    notes = within([step(*row) for row in rows], seconds, (QUICK, ALL), lambda: now[0])
    return steps, notes, now[0] - 100


ROWS = [("a", 4.0, 20.0), ("b", 4.0, 20.0), ("c", 4.0, 0.0)]


def test_much_time_is_not_used_up() -> None:
    steps, notes, passed = measured(1000, ROWS)
    assert [*steps] == ["a", "b", "c"] and notes == [] and passed < 100
    assert {step_seconds for step_seconds, _ in steps.values()} == {MOST} and steps["a"][1] == ALL


@pytest.mark.parametrize("seconds", [15, 20, 30, 40, 60, 62, 70])
def test_a_budget_is_kept(seconds: float) -> None:
    """By seconds first, then by slow peers, then by steps."""
    steps, notes, passed = measured(seconds, ROWS)
    assert passed <= seconds
    assert all(LEAST <= step_seconds <= MOST for step_seconds, _ in steps.values())
    missing = [name for name, *_ in ROWS if name not in steps]
    assert all(any(n.startswith(f"{name}: left out") for n in notes) for name in missing)
    assert ("a: without torch" in notes) == (steps["a"][1] == QUICK)
    assert (seconds >= 58) == (steps["a"][1] == ALL)


def test_a_step_that_fails_ends_nothing() -> None:
    steps, notes, _ = measured(1000, ROWS, failing="b")
    assert "c" in steps and notes == ["b: failed: no such engine"]


def test_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    names = [s.name for s in steps_for(["mlp", "bert"], ["float32", "int8"], (1,))]
    assert names == [
        *("units", "float32 mlp", "float32 bert", "int8 bert", "decoding, 1 threads"),
        *("denormals", "roofline of mlp", "roofline of bert"),
    ]
    for wrong in ("--models=mlpp", "--precisions=int4"):
        with pytest.raises(SystemExit):
            main([wrong])
        assert "unknown" in capsys.readouterr().err
