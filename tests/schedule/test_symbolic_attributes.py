"""Every operator with extents or positions among its attributes, where these are made of dimensions
that no operand of the kernel has: it is given them all the same, its text names them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.external import External, PartitionExternals, symbols
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Expr, ExprLike, Var, maximum
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, RVar
from tensorkiln.ir.verify import verify
from tensorkiln.target import Target
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery
from tests.script.round_trip import RoundTrip, reread

N, M = Var("N"), Var("M")
FORMS: dict[str, Expr] = {
    "n": N,
    "n_plus_m": N + M,
    "2n": N * 2,
    "nm": N * M,
    "most": maximum(N, M),
    "half": N // 2 + 1,
}
SIZES = [{"N": n, "M": m} for n, m in ((1, 1), (2, 5), (7, 3), (20, 17))]

Build = Callable[[Any, RVar, Expr], RVar]
# operator and attribute -> (the operand's shape, what is computed of it); M is an extent of it
CASES: dict[str, tuple[Callable[[Expr], tuple[ExprLike, ...]], Build]] = {
    "arange_start": (lambda e: (M,), lambda g, x, e: g.add(
        x, g.arange(start=e, step=1, count=M, dtype="float32"))),
    "arange_back": (lambda e: (M,), lambda g, x, e: g.add(
        x, g.cast(g.arange(start=e * 3, step=-1, count=M, dtype="int64"), dtype="float32"))),
    "arange_step": (lambda e: (M,), lambda g, x, e: g.mul(
        x, g.arange(start=-2, step=e, count=M, dtype="float32"))),
    "arange_count": (lambda e: (1,), lambda g, x, e: g.add(
        x, g.arange(start=3, step=2, count=e, dtype="float32"))),
    "full": (lambda e: (3,), lambda g, x, e: g.mul(
        x, g.full(shape=(e, 3), value=2.0, dtype="float32"))),
    "reshape": (lambda e: (e * 4,), lambda g, x, e: g.softmax(g.reshape(x, shape=(4, e)))),
    "broadcast_to": (lambda e: (1, 3), lambda g, x, e: g.relu(g.broadcast_to(x, shape=(e, 3)))),
    "slice_begin": (lambda e: (e + M, 3), lambda g, x, e: g.relu(g.slice(
        x, begin=(e, 1), strides=(1, 1), shape=(M, 2)))),
    "slice_strides": (lambda e: (e * M,), lambda g, x, e: g.relu(g.slice(
        x, begin=(0,), strides=(e,), shape=(M,)))),
    "slice_back": (lambda e: (e + M,), lambda g, x, e: g.relu(g.slice(
        x, begin=(e,), strides=(-1,), shape=(e + 1,)))),
    "pad": (lambda e: (M, 2), lambda g, x, e: g.relu(g.pad(x, before=(e, 0), after=(1, 2)))),
    "pad_edge": (lambda e: (M,), lambda g, x, e: g.relu(g.pad(
        x, before=(2,), after=(e,), mode="edge"))),
    "pad_reflect": (lambda e: (e + M,), lambda g, x, e: g.relu(g.pad(
        x, before=(e,), after=(M - 1,), mode="reflect"))),
    "tile": (lambda e: (2, 3), lambda g, x, e: g.relu(g.tile(x, repeats=(1, e)))),
    "take": (lambda e: (e + M, 3), lambda g, x, e: g.take(
        x, g.arange(start=e, step=1, count=M, dtype="int64"), axis=0)),
    "sum_of_a_slice": (lambda e: (e + M, 3), lambda g, x, e: g.sum(g.slice(
        x, begin=(e, 0), strides=(1, 1), shape=(M, 3)), axes=(0,))),
}  # fmt: skip
NAMES = [
    f"{case}__{list(FORMS)[(i + k) % len(FORMS)]}"
    for i, case in enumerate(CASES)
    for k in (0, 2, 3)
]


@cache
def battery() -> Battery:
    """N and M are extents of operands that nothing else reads."""
    b = Battery()
    for name in NAMES:
        case, _, form = name.partition("__")
        (shape, build), e = CASES[case], FORMS[form]
        b.add(
            name,
            lambda g, x, n, m, build=build, e=e: build(g, x, e),
            shape(e),
            (N,),
            (M,),
            sizes=SIZES,
            tolerance=2e-6,
        )
    return b


@cache
def library(pipeline: str) -> Library:
    functions = tuple(case.function for case in battery().cases.values())
    return load(tk.compile(IRModule(functions, "battery"), relax_pipeline=pipeline))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pipeline", ["default", "minimal"])
def test_values(pipeline: str, name: str) -> None:
    battery().check(name, library(pipeline))


def test_text_of_every_pass_reads_back() -> None:
    functions = tuple(case.function for case in battery().cases.values())
    tk.compile(IRModule(functions[::3], "battery"), instruments=[RoundTrip()])


def test_functions_of_externals_are_given_them_too() -> None:
    functions = tuple(case.function for case in battery().cases.values())
    every = External("mine", lambda call, target: True, lambda f, symbol: ())
    after = PartitionExternals(Target("llvm"), (every,))(IRModule(functions, "battery"))
    verify(after)
    assert first_difference(after, reread(after)) is None
    f = next(f for f in after.externals if "arange_add" in f.name)
    assert isinstance(f, Function) and set(symbols(f)) >= {M}
