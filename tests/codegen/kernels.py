"""Small tensor programs for emitter tests, compiled together and called with NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import For, PrimFunc, Stmt, Store
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.target import Target
from tensorkiln.target.isa import ISAS
from tests.codegen.opencl.library import OpenCLLibrary
from tests.emulated.machine import Library, load
from tests.processors import lacking

# Every level of x86-64 that is generated for: SSE2, AVX2 with FMA, and this machine. LEVELS has
# those that it can run.
_X86: dict[str, Target] = {
    "sse2": Target("llvm"),
    "avx2": Target({"kind": "llvm", "mcpu": "haswell"}),
    "native": Target("native"),
}
LEVELS = {name: target for name, target in _X86.items() if not lacking(target)}


def without(target: Target, *names: str) -> Target:
    """The target without these features, those that it lacks among them, and without all features
    that imply one: whatever the processor at hand has."""
    isa = ISAS[target.arch]
    features = target.features
    for name in names:
        features = isa.without(features, name)
    model = isa.cpu_features(target.mcpu)
    flags = [*(f"+{f}" for f in features - model), *(f"-{f}" for f in model - features)]
    return target.replace(mattr=sorted(flags))


# Levels of AArch64, which run under an emulator: NEON, and with dot products of bytes, first of
# equal signs only.
_ARM: dict[str, Target] = {
    "neon": Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}),
    "dotprod": Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}),
    "i8mm": Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a55", "mattr": ["+i8mm"]}
    ),
}
TARGETS = _X86 | _ARM
# As C, which gcc compiles without optimisation: with vectors of two widths.
_C: dict[str, Target] = {
    "c": Target("c"),
    "c of avx2": Target({"kind": "c", "mcpu": "haswell"}),
}
# As OpenCL C, one thread of it.
_OPENCL: dict[str, Target] = {"opencl": Target({"kind": "opencl", "supports_float64": True})}
FORMS = TARGETS | _C | _OPENCL
# Parameters for tests: `neon` where an emulator is found, the others when `make aarch64` asks.
EVERY_LEVEL = [
    *LEVELS,
    pytest.param("neon", marks=pytest.mark.emulated),
    *(
        pytest.param(name, marks=[pytest.mark.emulated, pytest.mark.aarch64])
        for name in ("dotprod", "i8mm")
    ),
]
# The same, C and OpenCL C.
EVERY_FORM = [*EVERY_LEVEL, *_C, *_OPENCL]
N = 4096

Formula = Callable[..., Expr]
Body = Callable[..., Stmt]


def elementwise(
    name: str, f: Formula, ins: Sequence[str], out: str, lanes: int, n: int = N
) -> PrimFunc:
    """out[i] = f(in0[i], in1[i], ...) for n elements, `lanes` at a time."""
    bufs = [buffer(f"p{k}", (n,), d, align=1) for k, d in enumerate(ins)]
    result = buffer("out", (n,), out, align=1)
    i, lane = Var("i"), Var("l")
    index = i * lanes + lane if lanes > 1 else i
    body: Stmt = Store(result, (index,), f(*[Load(b, (index,)) for b in bufs]))
    if lanes > 1:
        body = For(lane, IntImm(0), IntImm(lanes), "vectorized", body)
    loop = For(i, IntImm(0), IntImm(n // lanes), "serial", body)
    return PrimFunc(name, (*bufs, result), loop, public=True)


def program(name: str, shapes: Sequence[tuple[tuple[int, ...], str]], body: Body) -> PrimFunc:
    """A kernel over buffers of these shapes and dtypes; the last one is written."""
    bufs: list[Buffer] = [buffer(f"p{k}", s, d, align=1) for k, (s, d) in enumerate(shapes)]
    return PrimFunc(name, tuple(bufs), body(*bufs), public=True)


def compiled(funcs: Sequence[PrimFunc], target: Target) -> Library:
    """All kernels in one library."""
    if target.kind == "opencl":
        return OpenCLLibrary(funcs, target)
    return load(compile_module(IRModule(tuple(funcs), "kernels"), target, relax_pipeline=None))


@dataclass(frozen=True)
class Case:
    """An expression and what NumPy says it is."""

    name: str
    ins: tuple[str, ...]
    out: str
    formula: Formula
    numpy: Callable[..., np.ndarray]

    def kernels(self, widths: Sequence[int] = (1, 8)) -> list[PrimFunc]:
        return [
            elementwise(f"{self.name}_x{w}", self.formula, self.ins, self.out, w) for w in widths
        ]


def numbers(dtype: str, seed: int, n: int = N) -> np.ndarray:
    """Random values of a dtype, corners first: ends of the range, zeros, NaN, denormals."""
    generator = np.random.default_rng([seed, n])
    if dtype == "bool":
        return generator.random(n) < 0.5
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        x = generator.integers(info.min, info.max, n, dtype, endpoint=True)
        x[::3] = generator.integers(max(info.min, -9), 9, len(x[::3]), dtype)
        corners = [info.min, info.max, 0, 1, info.max - 1, info.min + 1]
        x[: len(corners)] = corners
        return x
    info = ml_dtypes.finfo(dtype)
    x = generator.standard_normal(n) * 10.0 ** generator.integers(-9, 10, n)
    x[::4] = generator.integers(-8, 9, len(x[::4])) / 2
    low, big = float(info.smallest_subnormal), float(info.max)
    tiny = float(info.tiny)
    corners = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        big,
        -big,
        low,
        -low,
        tiny,
        -tiny,
        0.5,
        1.5,
        -0.5,
        2.0**23,
        -(2.0**23),
        2.0**52,
        8388607.5,
        -1e-30,
    ]
    with np.errstate(all="ignore"):
        corner = generator.permutation(np.tile(corners, 4))
        x[: len(corner)] = corner
        return x.astype(dtype)
