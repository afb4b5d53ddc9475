"""Processes and threads that measure: what ends them, and what is said of it."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tensorkiln.runtime import timing
from tensorkiln.runtime.measuring import TookTooLongError, within
from tensorkiln.runtime.timing import machine_name, time_kernel
from tests.tuning.test_trial import trial


def test_work_without_end_is_ended() -> None:
    """A loop of Python ends, too: its thread does not go on for ever."""
    before = threading.active_count()

    def spin() -> None:
        while True:
            pass

    start = time.monotonic()
    with pytest.raises(TookTooLongError):
        within(0.1, spin)
    while threading.active_count() > before and time.monotonic() < start + 60:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_results_and_errors_come_through() -> None:
    assert within(60, pow, 2, 5) == 32
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0)


def test_the_machine_has_a_name() -> None:
    assert machine_name() == machine_name() != ""


def test_what_is_no_library_is_an_error() -> None:
    t, _ = trial()
    measurement = time_kernel(t, b"untuned", b"candidate")
    assert measurement.state == "error" and "untuned.so" in measurement.reason


# What a process may leave, as Python that takes the place of it, and the verdict.
ENDS = {
    "nothing": ("pass", "error", "without a verdict"),
    "a damaged verdict": (
        "open(sys.argv[1] + '/verdict.json', 'w').write('{')",
        "error",
        "without a verdict",
    ),
    "another kind of verdict": (
        "open(sys.argv[1] + '/verdict.json', 'w').write('{\"state\": \"fine\"}')",
        "error",
        "without a verdict",
    ),
    "words": ("sys.exit('no space left')", "error", "no space left"),
    "a status": ("sys.exit(3)", "error", "exit status 3"),
    "a signal": ("import os; print('step', end='', flush=True); os.abort()", "crash", "SIGABRT"),
    "its own alarm": (
        "import signal, time; signal.alarm(1); time.sleep(60)",
        "hang",
        "did not end in time",
    ),
    "no end": ("import time; time.sleep(60)", "hang", "did not end in time"),
}


@pytest.mark.parametrize("name", ENDS)
def test_however_a_process_ends(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, state, words = ENDS[name]
    monkeypatch.setattr(
        timing,
        "python_command",
        lambda module, *a: [sys.executable, "-c", f"import sys; {code}", *a],
    )
    monkeypatch.setattr(timing, "STARTING", 4.0 if name == "no end" else 60.0)
    t, _ = trial()
    measurement = time_kernel(replace(t, limit=0.1, seconds=0.01), b"", b"")
    assert measurement.state == state and words in measurement.reason, measurement
