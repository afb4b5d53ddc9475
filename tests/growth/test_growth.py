"""Small texts of large consequence end in a result or an error with a type, in one process each:
none ends the process, takes its memory, or exceeds Python's stack."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.in_turn()
@pytest.mark.parametrize("kind", ["onnx", "constants", "scripts"])
def test_small_texts_of_large_consequence(kind: str) -> None:
    command = [sys.executable, "-m", "tests.growth.child", kind]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = process.stdout.splitlines()
    bad = [line for line in lines if not line.endswith((": result", ": error"))]
    assert (process.returncode, bad) == (0, []), process.stderr[-2000:]
    assert sum(line.endswith(": result") for line in lines) >= 2
    assert len(lines) >= 3
