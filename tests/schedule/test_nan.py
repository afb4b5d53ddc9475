"""A NaN among the elements makes sums, means, extremes, average pooling and softmax NaN, wherever
it stands and whatever schedule a kernel has, and nothing else; the greatest and least element are
where the first one is. (What it does to max pooling is not specified.)"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar
from tensorkiln.kernels.case import c
from tensorkiln.ops.evaluate import evaluate
from tests.codegen.kernels import LEVELS
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery, compare

N = Var("N")
# name -> (the operand's shape, what is computed of it)
CASES: dict[str, tuple[tuple[Any, ...], Callable[[Any, RVar], RVar]]] = {}
for op in ("sum", "mean", "prod", "max", "min"):
    for shape, axes in (
        ((3, 70), (1,)),
        ((70, 5), (0,)),
        ((2, 9, 20), (1,)),
        ((5, 6), (0, 1)),
        ((3, 4, 2), (0, 2)),
        ((2, 16, 3, 3), (2, 3)),
        ((1, 3), (1,)),
    ):
        at = "x".join(map(str, shape)) + "_" + "".join(map(str, axes))
        CASES[f"{op}_{at}"] = shape, lambda g, x, op=op, a=axes: g.emit(op, x, axes=a)
    CASES[f"{op}_blocked"] = (
        (2, 16, 5, 7),
        lambda g, x, op=op: g.emit(op, g.conv2d(x, IDENTITY), axes=(2, 3)),
    )
    CASES[f"{op}_symbolic"] = (N, 33), lambda g, x, op=op: g.emit(op, x, axes=(0,))
    CASES[f"{op}_symbolic_last"] = (2, N), lambda g, x, op=op: g.emit(op, x, axes=(1,))
for kernel in ((2, 2), (3, 3), (1, 5)):
    for pad in (0, 1):
        attrs = {"kernel": kernel, "strides": (1, 2), "padding": (0, pad, 0, pad)}
        name = f"avg_pool2d_{kernel[0]}{kernel[1]}_{pad}"
        CASES[name] = (1, 3, 5, 9), lambda g, x, a=attrs: g.avg_pool2d(x, **a)
        CASES[f"{name}_blocked"] = (
            (1, 16, 5, 9),
            lambda g, x, a=attrs: g.conv2d(g.avg_pool2d(g.conv2d(x, IDENTITY), **a), IDENTITY),
        )
for op in ("argmax", "argmin"):
    for shape, axis in (((3, 70), 1), ((70, 5), 0), ((2, 9, 20), 1), ((1, 3), 1), ((3, N), 1)):
        name = f"{op}_{'x'.join(map(str, shape))}_{axis}"
        CASES[name] = shape, lambda g, x, op=op, a=axis: g.emit(op, x, axis=a)
for op in ("softmax", "log_softmax"):
    CASES[op] = (3, 33), lambda g, x, op=op: g.emit(op, x)
    CASES[f"{op}_first"] = (9, 4), lambda g, x, op=op: g.emit(op, x, axis=0)
IDENTITY = c(np.eye(16)[:, :, None, None])


@cache
def battery() -> Battery:
    b = Battery()
    for name, (shape, build) in CASES.items():
        b.add(name, build, shape)
    return b


@cache
def library(level: str) -> Library:
    return load(battery().compile(LEVELS[level]))


def inputs(shape: tuple[int, ...], blocked: bool) -> list[np.ndarray]:
    """NaN at some places each, in rows of its own, and everywhere."""
    random = np.random.default_rng(0)
    found = []
    size = int(np.prod(shape))
    for k in range(0, size, max(size // 23, 1)):
        x = random.standard_normal(shape).astype(np.float32)
        x.reshape(-1)[[k, (k * 7 + 3) % size]] = np.nan
        found.append(x)
    if blocked:
        return found
    return [*found, np.full(shape, np.nan, np.float32)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", ["sse2", "native"])
def test_nan(level: str, name: str) -> None:
    shape = tuple(70 if d is N else d for d in CASES[name][0])
    for x in inputs(shape, name.endswith("blocked")):
        with np.errstate(all="ignore"):
            (want,) = evaluate(battery().cases[name].function, {"x0": x}, dtype="float64")
        compare(np.asarray(library(level)[name](x)), want, 1e-4, name)
