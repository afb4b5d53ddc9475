"""Sizes in outer functions, whose dimensions may be 0, mean what they mean in Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.runtime import Executor
from tensorkiln.script import from_source

FORMULAS = (
    "n + 3",
    "n - 3",
    "3 - n",
    "n * m",
    "n * -2",
    "-n",
    "(n - 1) // 2",
    "(n - 5) // 3",
    "(n + 15) // 16",
    "(n * 3 - m) // 4",
    "n // -2",
    "(m - n) // -3",
    "(n - 1) % 2",
    "(n - 5) % 3",
    "(n + 15) % 16",
    "(n * 3 - m) % 4",
    "n % -2",
    "(m - n) % -3",
    "n // (m + 1)",
    "(n - 4) // (m + 1)",
    "(n - 4) % (m + 1)",
    "n % (m + 1)",
    "min(n, m)",
    "max(n - 2, 0)",
    "min(n // 2, max(m, 1)) + 1",
    "(max(n, m) + 1) // 2 * 2 - n",
    "(max(n - 1, 0) + min(m, 2) - 3) // 2",
)
SIZES = list(itertools.product((0, 1, 2, 3, 7, 16), (0, 1, 4, 5)))


def script_of(formula: str) -> str:
    return formula.replace("min(", "T.min(").replace("max(", "T.max(")


@pytest.fixture(scope="module")
def run() -> object:
    sizes = ", ".join(map(script_of, FORMULAS))
    source = f"""
@R.function
def sizes(x: R.Tensor(("n", "m"), "float32"), label: R.Object):
    return (label, R.shape([{sizes}]))
"""
    return Executor(tk.compile(from_source(source), "native"), tk.cpu())["sizes"]


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_sizes(run: object, n: int, m: int) -> None:
    assert callable(run)
    label, sizes = run(np.zeros((n, m), np.float32), "label")
    assert label == "label"
    want = [eval(formula, {"n": n, "m": m, "min": min, "max": max}) for formula in FORMULAS]
    assert dict(zip(FORMULAS, sizes, strict=True)) == dict(zip(FORMULAS, want, strict=True))
