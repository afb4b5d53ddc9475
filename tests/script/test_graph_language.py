"""The graph language: parsed, printed, verified, evaluated, and carried through the passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import DYNAMIC_OPS, IMPURE_OPS, Body, Call, Function, If, Lambda
from tensorkiln.ir.verify import verify
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.pipeline import relax_passes
from tensorkiln.script import constant_table, from_source, print_module
from tensorkiln.target import Target
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.outline_dataflow import outline_dataflow

from .language import PROGRAMS, Program

TARGET = Target({"kind": "llvm", "mcpu": "haswell"})


@pytest.fixture(params=list(PROGRAMS))
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]


def same(have: list[Any], want: list[Any]) -> None:
    assert len(have) == len(want)
    for h, w in zip(have, want, strict=True):
        if isinstance(w, np.ndarray):
            np.testing.assert_allclose(h, w, rtol=1e-5)
            assert np.shape(h) == np.shape(w)
        else:
            assert h == w


def run(mod: IRModule, program: Program) -> list[Any]:
    def copied(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(map(copied, v))
        return v.copy() if isinstance(v, np.ndarray) else v

    inputs = {k: copied(v) for k, v in program.inputs.items()}
    return evaluate(mod, inputs, packed=program.packed)


def round_trip(mod: IRModule) -> None:
    text = print_module(mod)
    again = from_source(text, constant_table(mod))
    assert first_difference(mod, again) is None, text
    assert print_module(again) == text
    verify(again)


def operators(body: Function | Body) -> list[str]:
    """Operators that host code would meet, in branches and closures too."""
    found = []
    for b in body.bindings:
        if isinstance(b.value, If):
            found += operators(b.value.then) + operators(b.value.orelse)
        elif isinstance(b.value, Lambda):
            found += operators(b.value.function)
        elif isinstance(b.value, Call) and b.value.op:
            found.append(b.value.op)
    return found


def test_it_means_what_numpy_says(program: Program) -> None:
    mod = program.module()
    verify(mod)
    same(run(mod, program), program.expected(**program.inputs))


def test_it_comes_back(program: Program) -> None:
    round_trip(program.module())


def test_outlined_it_means_the_same(program: Program) -> None:
    mod = infer_types(program.module())
    verify(mod)
    out = outline_dataflow(mod)
    verify(out)
    round_trip(out)
    same(run(out, program), program.expected(**program.inputs))
    for f in out.outers:
        assert not set(operators(f)) - {*IMPURE_OPS, *DYNAMIC_OPS}, f.name
    assert all(f.attrs.private for f in out.graphs if f.name not in mod)
    assert outline_dataflow(out) is out


def test_all_passes_keep_it(program: Program) -> None:
    mod = program.module()
    for p in relax_passes(TARGET):
        mod = p(mod)
        verify(mod)
        round_trip(mod)
        if all(f.name in program.packed for f in mod.prim_funcs):  # later, kernels compute
            same(run(mod, program), program.expected(**program.inputs))
