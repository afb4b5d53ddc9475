"""whole_registers: what is accessed as vectors and as elements, or as vectors that overlap, is one
and the same memory, whichever code generator prints it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.codegen.expand.unroll import unroll_function
from tensorkiln.codegen.expand.whole_registers import whole_registers
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, Ramp
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, PrimFunc, Stmt, Store, seq

SIZE = 8
# Pieces of eight elements: (first, lanes), each element once.
WAYS: dict[str, tuple[tuple[int, int], ...]] = {
    "elements": tuple((k, 1) for k in range(SIZE)),
    "pairs": tuple((k, 2) for k in range(0, SIZE, 2)),
    "fours": ((0, 4), (4, 4)),
    "whole": ((0, 8),),
    "shifted": ((0, 1), (1, 4), (5, 2), (7, 1)),
}
PAIRS = list(itertools.product(WAYS, WAYS))


def _index(first: int, lanes: int) -> Expr:
    return IntImm(first) if lanes == 1 else Ramp(IntImm(first), IntImm(1), lanes)


def program(name: str, written: str, read: str, dtype: str = "float32") -> PrimFunc:
    """y = x through registers, written by the pieces of one way and read by those of another."""
    x, y = buffer("x", (SIZE,), dtype), buffer("y", (SIZE,), dtype)
    r = buffer("r", (2, SIZE), dtype, "register")
    unit_index = IntImm(1)

    def copied(to: Buffer, source: Buffer, way_name: str) -> list[Stmt]:
        stores: list[Stmt] = []
        for first, lanes in WAYS[way_name]:
            index = _index(first, lanes)
            indices = [(unit_index, index) if b is r else (index,) for b in (to, source)]
            stores.append(Store(to, indices[0], Load(source, indices[1])))
        return stores

    body = Alloc(r, seq(*copied(r, x, written), *copied(y, r, read)))
    return PrimFunc(name, (x, y), body, public=True)


def test_the_same_pieces_stay_in_registers() -> None:
    for way_name in WAYS:
        f = unroll_function(program("f", way_name, way_name))
        assert whole_registers(f) is f, way_name


@pytest.mark.parametrize(("written", "read"), [p for p in PAIRS if p[0] != p[1]])
def test_others_are_in_memory(written: str, read: str) -> None:
    f = whole_registers(unroll_function(program("f", written, read)))
    assert [s.buffer.scope for s in (f.body,) if isinstance(s, Alloc)] == ["local"]
    assert 'scope="register"' not in f.script() and f.script().count("r[1, ") == len(
        WAYS[written] + WAYS[read]
    )


DTYPES = ("float32", "int8", "float64", "bool", "float16")
PROGRAMS = {
    f"{written}_{read}_{dtype}": program(f"{written}_{read}_{dtype}", written, read, dtype)
    for (written, read), dtype in zip(PAIRS * len(DTYPES), sorted(DTYPES * len(PAIRS)), strict=True)
}
TARGETS = {
    "native": "native",
    "baseline": "llvm",
    "c": "c",
    "c of avx2": {"kind": "c", "mcpu": "haswell"},
}


@pytest.mark.parametrize("target", TARGETS)
def test_values(target: str) -> None:
    lib = tk.compile(IRModule(tuple(PROGRAMS.values())), TARGETS[target]).jit()
    for name in PROGRAMS:
        dtype = name.rpartition("_")[2]
        x = (np.arange(SIZE) % 3 - 1).astype(dtype)
        y = np.zeros_like(x)
        lib[name](x, y)
        assert np.array_equal(x, y), name
