"""Bytes of tables, at places that are bytes: by permutations where a processor has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, Var, cast
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import For, PrimFunc, Store
from tests.codegen.kernels import EVERY_LEVEL, TARGETS
from tests.emulated.machine import load

LANES = (1, 2, 4, 8, 16, 32, 64)
DTYPES = ("uint8", "int8", "float32")
N = 256


def kernel(dtype: str, lanes: int, size: int = 256, places: str = "uint8") -> PrimFunc:
    """out[i] = table[places[i]] for 256 places, `lanes` at a time."""
    table = buffer("table", (size,), dtype, align=1)
    indices, out = buffer("at", (N,), places, align=1), buffer("out", (N,), dtype, align=1)
    i, lane = Var("i"), Var("l")
    place = i * lanes + lane if lanes > 1 else i
    index: Expr = cast(Load(indices, (place,)), "int64")
    body = Store(out, (place,), Load(table, (index,)))
    inner = For(lane, IntImm(0), IntImm(lanes), "vectorized", body) if lanes > 1 else body
    loop = For(i, IntImm(0), IntImm(N // lanes), "serial", inner)
    return PrimFunc(f"{dtype}_{lanes}_{size}_{places}", (table, indices, out), loop, public=True)


KERNELS = (
    *(kernel(dtype, lanes) for dtype in DTYPES for lanes in LANES),
    kernel("uint8", 16, size=300),
    kernel("uint8", 16, places="uint16"),
)


@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_each_byte_is_that_of_its_place(level: str) -> None:
    target = TARGETS[level]
    executable = tk.compile(IRModule(KERNELS, "kernels"), target, relax_pipeline=None)
    run = load(executable)
    rng = np.random.default_rng(4)
    for k in KERNELS:
        table, indices, out = (
            rng.integers(0, 256, p.shape[0].value).astype(p.dtype.name)  # type: ignore[union-attr]
            for p in k.params  # type: ignore[union-attr]
        )
        indices[:] = rng.permutation(N)
        run[k.name](table, indices, out)
        np.testing.assert_array_equal(out, table[indices.astype(int)], err_msg=k.name)


def test_a_processor_that_permutes_bytes_does_so(tmp_path: Path) -> None:
    """Only tables of 256 bytes at places of one byte."""
    target = tk.Target({"kind": "llvm", "mcpu": "icelake-server"})
    texts = tk.compile(IRModule(KERNELS, "kernels"), target, relax_pipeline=None).artifacts
    for k in KERNELS:
        dtype, lanes, size, places = k.name.split("_")
        permutes = "vperm" in texts[f"{k.name}.s"].text()
        assert permutes == (
            dtype != "float32" and lanes != "1" and size == "256" and places == "uint8"
        ), k.name
