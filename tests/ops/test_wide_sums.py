"""Sums of float16 and bfloat16 are kept in float32 and rounded once, whatever computes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorkiln import ops
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.target import Target
from tests.emulated.machine import load
from tests.schedule.battery import TOLERANCE, Battery, arguments, typed
from tests.schedule.gpu.runner import DeviceRunner

Shape = tuple[int, ...]
# operator -> (call, shapes of its operands): thousands of terms of one sign, which sums of 16 bits
# do not reach.
SUMS: dict[str, tuple[Callable[..., Any], list[Shape]]] = {
    "sum": (lambda g, x: g.sum(x, axes=(1,)), [(3, 4100)]),
    "sum of columns": (lambda g, x: g.sum(x, axes=(0,)), [(4100, 3)]),
    "sum of all": (lambda g, x: g.sum(x, axes=(0, 1, 2)), [(5, 41, 20)]),
    "mean": (lambda g, x: g.mean(x, axes=(1,), keepdims=True), [(3, 4100)]),
    "mean of planes": (lambda g, x: g.mean(x, axes=(2, 3)), [(2, 5, 64, 65)]),
    "relu of a sum": (lambda g, x: g.relu(g.sum(g.relu(x), axes=(1,))), [(3, 4100)]),
    "prod": (lambda g, x: g.prod(g.add(g.mul(x, x), g.exp(x)), axes=(1,)), [(7, 4)]),
    "matmul": (lambda g, x, y: g.matmul(x, y), [(2, 9, 4100), (2, 4100, 10)]),
    "matmul of vectors": (lambda g, x, y: g.matmul(x, y), [(4100,), (4100,)]),
    "linear": (lambda g, x, w: g.linear(x, w), [(17, 4100), (4100, 19)]),
    "linear of a row": (lambda g, x, w, b: g.linear(x, w, b), [(1, 4100), (4100, 19), (19,)]),
    "conv2d": (
        lambda g, x, w, b: g.relu(g.conv2d(x, w, b, padding=(1, 1, 1, 1))),
        [(1, 460, 4, 5), (9, 460, 3, 3), (9,)],
    ),
    "conv2d by channel": (
        lambda g, x, w: g.conv2d(x, w, padding=(20, 20, 20, 20), groups=4),
        [(1, 4, 41, 41), (4, 1, 41, 41)],
    ),
    "conv2d_transpose": (
        lambda g, x, w, b: g.relu(g.conv2d_transpose(x, w, b, strides=(2, 2), cut=(1, 1, 1, 1))),
        [(1, 1100, 3, 4), (1100, 9, 4, 3), (9,)],
    ),
    "avg_pool2d": (lambda g, x: g.avg_pool2d(x, kernel=(64, 64)), [(1, 3, 66, 65)]),
    "layer_norm": (lambda g, x, y, z: g.layer_norm(x, y, z), [(3, 4100), (4100,), (4100,)]),
    "softmax": (lambda g, x: g.softmax(x, axis=-1), [(3, 4100)]),
    "softmax of columns": (lambda g, x: g.softmax(x, axis=0), [(4100, 3)]),
    "log_softmax": (lambda g, x: g.log_softmax(x, axis=-1), [(3, 4100)]),
    "lrn": (lambda g, x: g.lrn(x, size=801, alpha=800.0, beta=0.5), [(1, 800, 3, 3)]),
    "attention": (
        lambda g, x, y, z: g.attention(x, y, z, scale=0.1),
        [(1, 2, 9, 16), (1, 2, 4100, 16), (1, 2, 4100, 16)],
    ),
}
# Extremes are exact in any type; the last two exist for float32 only.
WITHOUT = {"max", "min", "argmax", "argmin", "max_pool2d", "top_k", "tree_leaves", "bounds_check"}
# These sum nothing, or each term is rounded, as in ONNX Runtime.
WITHOUT |= {"scatter", "coupled"}
FLOAT32_ONLY = {"winograd_conv2d", "strassen_parts", "strassen_linear"}
TYPES = ("float16", "bfloat16")
TARGETS: dict[str, object] = {
    "native": "native",
    "x86-64": {"kind": "llvm", "mcpu": "x86-64-v2"},
    "c": {"kind": "c"},
}
DEVICES: dict[str, dict[str, object]] = {
    "cuda": {"kind": "cuda", "arch": "sm_75"},
    "tensor cores": {"kind": "cuda", "arch": "sm_80"},
    "opencl": {"kind": "opencl"},
    "webgpu": {"kind": "webgpu"},
}


def positive(seed: int, dtype: np.dtype, shape: Shape) -> np.ndarray:
    return np.random.default_rng(seed).random(shape).astype(dtype)


@cache
def battery(dtype: str, device: bool = False) -> Battery:
    b = Battery()
    unit = float(ml_dtypes.finfo(dtype).eps)
    for name, (build, shapes) in SUMS.items():
        # Both sides are rounded, and may be neighbours; three operators round in attention.
        units = 3.0 if name == "attention" else 1.1
        if device and name == "conv2d by channel":  # minutes on an emulator
            continue
        b.add(
            name.replace(" ", "_"),
            build,
            *(typed(dtype, *s) for s in shapes),
            make=positive,
            tolerance=units * unit,
        )
    return b


def test_every_operator_that_sums_is_in_the_table() -> None:
    sums = {n for n, o in ops.OPS.items() if o.pattern in ("reduction", "contraction", "opaque")}
    assert sums - WITHOUT - FLOAT32_ONLY == {name.split()[0] for name in SUMS} - {"relu"}


@pytest.mark.in_turn("target")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_processors(target: str, dtype: str) -> None:
    b = battery(dtype)
    run = load(b.compile(Target(TARGETS[target])))
    for name in b.cases:
        b.check(name, run)


@pytest.mark.in_turn("device")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_devices(device: str, dtype: str) -> None:
    b = battery(dtype, device=True)
    made = DeviceRunner(b, target=Target(DEVICES[device]))
    for name in b.cases:
        made.check(name)


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_of_references(dtype: str) -> None:
    """What folds constants computes the same."""
    b = battery(dtype)
    for name, case in b.cases.items():
        inputs = arguments(case, {}, 0)
        (found,) = evaluate(case.function, inputs)
        (want,) = evaluate(case.function, inputs, dtype="float64")
        assert found.dtype == dtype
        case.compare(found, want, name)
        assert case.tolerance < TOLERANCE[dtype]
