"""16-bit floats that wait in variables, buffers, lanes and closures while blocks begin and end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.runtime.tensor import dtype_named
from tensorkiln.script import from_source

# What each does before its loops, and what it stores.
BODIES = {
    "parameter": ("", "serial", "x"),
    "lanes_of_parameter": ("", "vectorized", "x"),
    "threads": ("", "parallel", "x"),
    "variable": ("v: T.{d} = X[0]", "serial", "v"),
    "lanes_of_variable": ("v: T.{d} = X[0]", "vectorized", "v"),
    "closure": ("v: T.{d} = X[0] + x", "parallel", "v"),
    "element": ("", "serial", "X[0]"),
    "lanes_of_element": ("", "vectorized", "X[0]"),
    "select": ("", "serial", "T.select(j > i, x, X[0])"),
    "negative": ("", "serial", "-x"),
    "function": ("v: T.{d} = T.exp(X[0])", "serial", "v * x"),
    "local": (
        'b = T.alloc_buffer((1,), "{d}", scope="local")\n        b[0] = X[0]',
        "serial",
        "b[0]",
    ),
    "sum": (
        'b = T.alloc_buffer((1,), "{d}", scope="local")\n        b[0] = x\n'
        "        for k in range(3):\n            b[0] = b[0] + X[0]",
        "serial",
        "b[0]",
    ),
    "register": (
        'b = T.alloc_buffer((8,), "{d}", scope="register")\n'
        "        for k in T.vectorized(8):\n            b[k] = X[0]",
        "vectorized",
        "b[i]",
    ),
}


def value(name: str, x: float, first: float, j: int, i: int) -> float:
    """What is stored."""
    return {
        "parameter": x,
        "lanes_of_parameter": x,
        "threads": x,
        "closure": first + x,
        "negative": -x,
        "select": x if j > i else first,
        "function": float(np.exp(first)) * x,
        "sum": x + 3 * first,
    }.get(name, first)


@pytest.fixture(scope="module")
def lib() -> Any:
    lines = ["@tk.script.ir_module", "class Narrow:"]
    for d in ("bfloat16", "float16"):
        for name, (before, kind, stored) in BODIES.items():
            outer = "T.parallel(4)" if kind == "parallel" else "range(4)"
            inner = "T.vectorized(8)" if kind == "vectorized" else "range(8)"
            lines.append(
                f'    @T.prim_func\n    def {name}_{d}(x: T.{d}, X: T.Buffer((1,), "{d}"), '
                f'Y: T.Buffer((4, 8), "{d}")):\n        {before.format(d=d) or "pass"}\n'
                f"        for j in {outer}:\n            for i in {inner}:\n"
                f"                Y[j, i] = {stored}"
            )
    text = "\n".join(lines).replace("        pass\n", "")
    return tk.compile(from_source(text), tk.Target("native")).jit()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", BODIES)
def test_values(lib: Any, name: str, dtype: str) -> None:
    kind = dtype_named(dtype)
    y = np.zeros((4, 8), kind)
    lib[f"{name}_{dtype}"](1.5, np.full(1, -0.375, kind), y)
    want = [[value(name, 1.5, -0.375, j, i) for i in range(8)] for j in range(4)]
    np.testing.assert_allclose(y.astype(float), want, rtol=2**-7 if name == "function" else 0)
