"""Random tensor programs as OpenCL C, one thread each, against the evaluator of the language."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pytest

from tensorkiln.codegen.c_like.opencl import emit_opencl
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Assert, CallKernel
from tensorkiln.ir.visit import extern_names, walk_stmt
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.codegen.opencl.device import device
from tests.codegen.random_programs import Program, draw
from tests.codegen.test_random_programs import SCALARS, SEED, same
from tests.schedule.gpu.runner import OPENCL

FEW, MANY, PARTS = 12, 100, 5


def printable(seed: str) -> Iterator[Program]:
    """Programs of what devices have: no calls, no assertions."""
    for k in count():
        p = draw(f"{seed} {k}", f"f{k}", SCALARS)
        calls = extern_names(p.f) or any(
            isinstance(s, Assert | CallKernel) for s in walk_stmt(p.f.body)
        )
        if not calls and p.failed is None:
            yield p


def wrong(seed: str, number: int) -> list[str]:
    """Programs whose results differ on the device."""
    programs = list(islice(printable(seed), number))
    mod = IRModule(tuple(p.f for p in programs), "programs")
    for step in (pass_sizes, lower_blocks, vectorize_loops):
        mod = step(mod)
    program = device().build(emit_opencl(mod.prim_funcs, OPENCL).text)
    differences = []
    for p, f in zip(programs, mod.prim_funcs, strict=True):
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
        program.run(f.name, (1, 1, 1), (1, 1, 1), arguments)
        for x, output in zip(f.params, arguments, strict=True):
            want = p.results.get(x.name)
            if isinstance(x, Buffer) and not same(output, want):
                differences.append(
                    f"{p.f.script()}\n{p.inputs}\n{x.name}:\n{output}\nis not\n{want}"
                )
    return differences


def test_random_programs() -> None:
    differences = wrong(f"{SEED} opencl", FEW)
    assert not differences, differences[0]


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_hundreds(part: int) -> None:
    differences = wrong(f"{SEED} opencl {part}", MANY)
    assert not differences, differences[0]
