"""Every expression of 32 bits and less as WGSL computes what NumPy computes, and elementary
functions keep their limits: the tables of C and LLVM, on a device.

What WGSL leaves open is left out: infinities, NaN and subnormal numbers, and the sign of zero.
Where a device divides and takes roots less exactly, the last bits of those differ.
"""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.codegen.c_like.wgsl import emit_wgsl
from tensorkiln.ir.expr import intrin
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.codegen.kernels import elementwise, numbers
from tests.codegen.test_elementary import FUNCTIONS, LIMITS32, ONE, samples, units
from tests.codegen.test_emit_values import CASES
from tests.codegen.wgsl.device import Program
from tests.schedule.gpu.runner import WEBGPU

N = 512
ABLE = [c for c in CASES if all(map(WEBGPU.has_type, (*c.ins, c.out)))]
_FLOATS = ("float16", "bfloat16", "float32")
_ROOTS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-7}  # 2.5 units, or one after rounding


def run(func: PrimFunc, *arrays: np.ndarray) -> None:
    """Run a program in one thread."""
    (f,) = vectorize_loops(lower_blocks(IRModule((func,), "one"))).prim_funcs
    wgsl_functions = emit_wgsl([f], WEBGPU)
    Program(wgsl_functions).run(f.name, (1, 1, 1), (1, 1, 1), arrays)


def is_plain(x: np.ndarray) -> np.ndarray:
    """Which numbers every implementation has."""
    if x.dtype.kind in "iub":
        return np.ones(x.shape, bool)
    size = np.abs(x.astype(np.float64))
    return np.isfinite(size) & ((size == 0) | (size >= 2.0**-126))


def shorter(x: np.ndarray) -> np.ndarray:
    """The first of the numbers, which are the corners, and some others."""
    return np.concatenate([x[: N // 2], x[-(N // 2) :]])


# Lanes of a vector are computed one by one, so a few cases of them are enough.
ROWS = [
    pytest.param(
        case,
        8 if k % 20 == 0 else 1,
        id=case.name,
        marks=[] if k % 5 == 0 else [pytest.mark.fuzz],
    )
    for k, case in enumerate(ABLE)
]


@pytest.mark.parametrize(("case", "width"), ROWS)
def test_expression(case, width: int) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    xs = [shorter(numbers(d, seed)) for seed, d in enumerate(case.ins)]
    with np.errstate(all="ignore"):
        want = case.numpy(*xs)
    output = np.zeros(N, case.out)
    run(elementwise(case.name, case.formula, case.ins, case.out, width, N), *xs, output)
    is_known = np.logical_and.reduce([is_plain(x) for x in (*xs, want)])
    if case.name.startswith("isnan"):
        is_known[:] = True
    assert is_known.sum() > N // 4
    bad = is_known & (output != want)
    if case.name.startswith(("div_", "sqrt_")) and case.out in _FLOATS:
        with np.errstate(all="ignore"):
            far = np.abs(output.astype(np.float64) - want) / np.abs(want.astype(np.float64))
        bad &= far > _ROOTS[case.out]
    if case.name == "floordiv_float":  # a quotient near an integer may be on its other side
        bad &= np.abs(output - want) > 1
    bad_places = np.flatnonzero(bad)[:5]
    assert not bad.any(), ([x[bad_places] for x in xs], output[bad_places], want[bad_places])


@pytest.mark.parametrize("name", ONE)
def test_accuracy(name: str) -> None:
    low, high, limit = LIMITS32[name]
    x = samples(name, low, high, "float32")
    x = x[:: len(x) // 4096]
    output = np.zeros_like(x)
    run(elementwise(name, lambda v: intrin(name, v), ("float32",), "float32", 1, len(x)), x, output)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](x.astype(np.float64))
    error = units(output, want) / np.broadcast_to(np.asarray(limit(x.astype(np.float64))), x.shape)
    worst = int(np.argmax(np.where(is_plain(x) & is_plain(want.astype(np.float32)), error, 0)))
    # Up to 2.5 units come on top, of the division in sigmoid and the like.
    assert error[worst] <= 3, (x[worst], output[worst], want[worst])
