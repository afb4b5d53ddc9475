"""Numbers of every type and place by programs in C, C++ and Rust: their exact bits, and Python's
sentences for what a type cannot hold."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import load_module
from tests.hosts.conftest import SCALARS, program
from tests.runtime import scalars
from tests.runtime.test_scalars import wrong_words

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scalars") / "scalars.so"
    return tk.compile(scalars.module(), tk.Target("native")).export_library(path)


@pytest.mark.parametrize("language", SCALARS)
def test_numbers(exported: Path, programs: Path, language: str) -> None:
    good = list(scalars.calls(scalars.GOOD))
    bad = [
        (f"first_{dtype}", value)
        for dtype in scalars.DTYPES
        for value, _ in scalars.bad_values(dtype)
        if not isinstance(value, int) or -(1 << 63) <= value < 1 << 64
    ]
    lines = [scalars.line(*call) for call in good]
    lines += [scalars.line(name, [value]) for name, value in bad]
    process = subprocess.run(
        [program(SCALARS, language, programs), exported],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    rows = process.stdout.splitlines()
    assert len(rows) == len(lines)
    for (name, numbers), row in zip(good, rows, strict=False):
        assert row.split()[0] == "0", row
        assert wrong_words(name, numbers, row.split()[1:]) == []
    lib = load_module(exported)
    for (name, value), row in zip(bad, rows[len(good) :], strict=True):
        with pytest.raises(UserError) as caught:
            lib[name](value, *scalars.tensors_of(name))
        code = {"out-of-range": 19, "argument-kind": 7}[caught.value.code]
        assert row == f"{code} {caught.value.message}"
