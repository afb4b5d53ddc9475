"""Random tensor programs as WGSL, one thread each, against the evaluator of the language.

What WGSL leaves open is left out: infinities, NaN, and the signs of zeros.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_like.wgsl import WgslFunction, emit_wgsl
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.codegen.opencl.test_random import printable
from tests.codegen.random_programs import Program
from tests.codegen.test_random_programs import SEED, same
from tests.codegen.wgsl.device import Program as Built
from tests.codegen.wgsl.device import device
from tests.schedule.gpu.runner import WEBGPU

FEW, MANY, PARTS = 120, 1000, 5  # drawn; one in six has no numbers of 64 bits


def emitted(p: Program) -> tuple[PrimFunc, tuple[WgslFunction, ...]] | None:
    """A program that WGSL can say; None for one that is refused."""
    mod = IRModule((p.f,), "program")
    for step in (pass_sizes, lower_blocks, vectorize_loops):
        mod = step(mod)
    (f,) = mod.prim_funcs
    try:
        return f, emit_wgsl([f], WEBGPU)
    except UnsupportedError:
        return None


def is_plain(p: Program) -> bool:
    """Whether all results are numbers, and all sizes have 32 bits, to which launches see."""
    sizes = [p.inputs[v.name] for v in p.f.scalars if v.dtype.name == "int64"]
    if any(int(n) != np.int64(n).astype(np.int32) for n in sizes if n is not None):
        return False
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in p.results.values())


def differs(p: Program, f: PrimFunc, wgsl_functions: tuple[WgslFunction, ...]) -> bool:
    """Whether a result is another on the device."""
    sizes = {
        d.name: n
        for b in p.f.buffers
        for d, n in zip(b.shape, p.inputs[b.name].shape, strict=True)
        if isinstance(d, Var) and int_value(d) is None
    }
    arguments: list[object] = []
    for x in f.params:
        if isinstance(x, Buffer):
            arguments.append(p.inputs[x.name].copy())
        else:
            value = p.inputs[x.name] if x.name in p.inputs else sizes[x.name]
            arguments.append(np.asarray(value).astype(x.dtype.name)[()])
    Built(wgsl_functions).run(f.name, (1, 1, 1), (1, 1, 1), arguments)
    pairs = [
        (a, p.results[x.name]) for x, a in zip(f.params, arguments, strict=True) if x in f.buffers
    ]
    return not all(same(a, b) or np.array_equal(a, b) for a, b in pairs)


def wrong(seed: str, number: int) -> tuple[list[str], int]:
    """(programs whose results differ, how many ran)."""
    device()
    differences, ran = [], 0
    for p in islice(printable(seed), number):
        wgsl_program = emitted(p)
        if wgsl_program is not None and is_plain(p):
            ran += 1
            if differs(p, *wgsl_program):
                differences.append(f"{p.f.script()}\n{wgsl_program[1][0].text}")
    return differences, ran


def test_random_programs() -> None:
    differences, ran = wrong(f"{SEED} wgsl", FEW)
    assert not differences, differences[0]
    assert ran >= FEW // 20


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_hundreds(part: int) -> None:
    differences, ran = wrong(f"{SEED} wgsl {part}", MANY)
    assert not differences, differences[0]
    assert ran >= MANY // 20
