"""Tests that fail on purpose, for test_campaign.py: each fault for some seeds only. The name of the
file keeps it out of other runs."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorkiln as tk

SEED = int(os.environ.get("FUZZ_SEED", "1"))
# A file that says whether a worker was killed already.
KILLED = os.environ.get("PLANTED_KILLED", "")
_state: list[int] = []


@pytest.mark.parametrize("k", range(4))
def test_raised_in_the_package(k: int) -> None:
    """The same fault from several tests and seeds, with another text each time."""
    number = random.Random(f"{SEED} {k}").randrange(100, 10**6)
    if SEED == 1 and k == 0:
        return
    tk.Target({"kind": "llvm", "mcpu": f"cpu{number}"})


def test_is_right() -> None:
    assert SEED > 0


def test_state_of_another_is_kept() -> None:
    _state.append(SEED)


def test_fails_after_another() -> None:
    assert _state != [2], "the other test ran before"


@given(st.integers())
def test_a_property(x: int) -> None:
    assert SEED != 1 or x < 1000, "too large"


def test_crashes() -> None:
    if SEED == 2:
        ctypes.string_at(8)


def test_ends_the_process() -> None:
    if SEED == 1:
        sys.stdout.flush()
        os._exit(7)


def test_hangs() -> None:
    while SEED == 2:
        time.sleep(0.05)


def test_kills_the_worker_once() -> None:
    if KILLED and not Path(KILLED).exists():
        Path(KILLED).touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
