"""Each pass of the pipelines left out, run twice, or moved past its neighbour.

Either the result is right, or the error names the pass that is missing or misplaced; it is never an
InternalError or an exception of Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.case import rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.passes import Pass, pass_name
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.script import from_source
from tests.transform.graphs import graph

TARGET = tk.Target("native")
RANDOM = np.random.default_rng(3)


def network() -> IRModule:
    """A convolution, a pool, a product, an attention's worth of movement, symbolic sizes."""

    def build(g: Any, x: Any) -> Any:
        h = g.relu(g.conv2d(x, rand(16, 8, 3, 3), padding=(1, 1, 1, 1)))
        h = g.max_pool2d(h, kernel=(2, 2), strides=(2, 2))
        h = g.reshape(h, shape=(2, 16 * 16))
        h = g.softmax(g.linear(h, rand(256, 12)), axis=-1)
        return g.concat(g.mul(h, rand(12)), g.tanh(h), axis=1)

    return graph(build, x=(2, 8, 8, 8))


TEXTS = {
    "symbolic": """
@R.function
def main(x: R.Tensor(("n", 12), "float32")) -> R.Tensor(("n", 12), "float32"):
    y: R.Tensor((n, 12), "float32") = R.softmax(x, axis=-1)
    z: R.Tensor((n, 12), "float32") = R.mul(y, x)
    return z
""",
    "attention": """
@R.function
def main(x: R.Tensor((1, 2, 12, 16), "float32")) -> R.Tensor((1, 2, 12, 16), "float32"):
    y: R.Tensor((1, 2, 12, 16), "float32") = R.attention(x, x, x, scale=0.25)
    return y
""",
    "outer": """
@R.function
def main(x: R.Tensor((6, 12), "float32")) -> R.Tensor((6, 12), "float32"):
    s: R.Tensor((), "float32") = R.sum(x, axes=(0, 1))
    c: R.Tensor((), "bool") = R.greater(s, R.const(0.0, "float32"))
    if c:
        y: R.Tensor((6, 12), "float32") = R.tanh(x)
    else:
        y: R.Tensor((6, 12), "float32") = R.neg(x)
    return y
""",
    "program": """
@tk.script.ir_module
class Module:
    @T.prim_func(private=True)
    def scale(X: T.Buffer(("n", 8), "float32"), Y: T.Buffer(("n", 8), "float32")):
        for i, j in T.grid(n, 8):
            with T.block("s"):
                a, b = T.axis.remap("SS", [i, j])
                Y[a, b] = X[a, b] * T.float32(2)

    @R.function
    def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
        y: R.Tensor((6, 8), "float32") = R.call_tir(Module.scale, [x], R.Tensor((6, 8), "float32"))
        z: R.Tensor((6, 8), "float32") = R.relu(y)
        return z
""",
}
SHAPES = {
    "symbolic": (5, 12),
    "attention": (1, 2, 12, 16),
    "outer": (6, 12),
    "program": (6, 8),
    "network": (2, 8, 8, 8),
    "externals": (2, 8, 8, 8),
}


@cache
def case(name: str) -> tuple[IRModule, np.ndarray, np.ndarray]:
    mod = network() if name in ("network", "externals") else from_source(TEXTS[name])
    x = RANDOM.standard_normal(SHAPES[name]).astype(np.float32)
    (param,) = mod["main"].params  # type: ignore[union-attr]
    if name == "program":
        return mod, x, np.maximum(2 * x, 0)
    return mod, x, np.asarray(evaluate(mod, {param.name: x}))


def passes_of(name: str) -> tuple[list[Pass], list[Pass]]:
    externals = (C_REFERENCE,) if name == "externals" else ()
    return list(relax_passes(TARGET, externals)), list(tir_passes(TARGET, externals))


def left_out(passes: list[Pass], i: int) -> list[Pass]:
    return passes[:i] + passes[i + 1 :]


def twice(passes: list[Pass], i: int) -> list[Pass]:
    return [*passes[: i + 1], *passes[i:]]


def swapped(passes: list[Pass], i: int) -> list[Pass]:
    return [*passes[:i], *passes[i : i + 2][::-1], *passes[i + 2 :]]


CHANGES = {"left out": left_out, "twice": twice, "swapped": swapped}
COUNTS = [len(p) for p in passes_of("network")]


@pytest.mark.in_turn("change")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("change", CHANGES)
def test_every_pass(name: str, change: str) -> None:
    wrong = []
    for level, count in enumerate(COUNTS):
        for i in range(count):
            pipelines = [*passes_of(name)]
            moved = pass_name(pipelines[level][i])
            pipelines[level] = CHANGES[change](pipelines[level], i)
            fault = _fault(name, pipelines)
            if fault:
                wrong.append(f"{change} {moved}: {fault}")
    assert not wrong, "\n".join(wrong)


def _fault(name: str, pipelines: list[list[Pass]]) -> str:
    mod, x, wanted = case(name)
    externals = (C_REFERENCE,) if name == "externals" else ()
    try:
        exe = tk.compile(
            mod, TARGET, relax_pipeline=pipelines[0], tir_pipeline=pipelines[1], externals=externals
        )
        found = exe(x)
    except (UserError, UnsupportedError) as error:
        names = {pass_name(p) for ps in passes_of(name) for p in ps}
        said = str(error)
        return "" if any(n in said for n in names) else f"no pass is named: {error!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "" if np.allclose(found, wanted, rtol=1e-4, atol=1e-5) else "a wrong result"


def test_the_changes_do_something() -> None:
    kinds: set[Callable[..., Any]] = {left_out, twice, swapped}
    assert all(change(["a", "b", "c"], 1) != ["a", "b", "c"] for change in kinds)
