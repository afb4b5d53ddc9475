"""Each kernel of a lowered module, timed alone.

Kernels are called through the public library interface on warm operands, so a number below some
microseconds is mostly the call. Arithmetic and bytes are counted in the scheduled program and in
its parameters: padded channels count, caches do not.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Binary, Expr, IntImm, Intrin, Unary, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.planned import planned_graph
from tensorkiln.ir.stmt import Alloc, Block, For, If, Let, PrimFunc, Seq, Stmt, Store
from tensorkiln.ir.visit import free_vars, substitute, walk
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.runtime.tensor import Array, aligned_empty, dtype_named
from tensorkiln.target import Target

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel: calls per inference, least microseconds of one call, floating point operations,
    bytes of its operands. `micros` is NaN when it could not be called."""

    name: str
    op_class: str
    calls: int
    micros: float
    flops: float
    moved: float

    @property
    def total(self) -> float:
        """Microseconds of all its calls in one inference."""
        return self.calls * self.micros


def size_of(e: Expr, sizes: Sizes) -> int | None:
    """An extent in numbers: dimensions by name as `sizes` says, 1 where it says nothing."""
    known = int_value(e)
    if known is not None:
        return known
    by: dict[Var, Expr] = {v: IntImm(sizes.get(v.name, 1)) for v in free_vars(e)}
    return int_value(simplify(substitute(e, by)))


def flops(s: Stmt | None) -> float:
    """Floating point operations a statement executes; both branches of a condition count,
    and so does one round of a loop whose extent is known only at run time."""
    match s:
        case For(extent=extent, body=body):
            n = int_value(extent)
            return (1 if n is None else n) * flops(body)
        case Seq(stmts):
            return sum(map(flops, stmts))
        case Store(value=value):
            return _operations(value)
        case Let(_, value, body):
            return _operations(value) + flops(body)
        case If(_, then, orelse):
            return flops(then) + flops(orelse)
        case Alloc(body=body) | Block(body=body):
            return flops(body)
    return 0.0


def _operations(value: Expr) -> float:
    total = 0
    for x in walk(value):
        if isinstance(x, Binary | Unary | Intrin) and x.dtype.is_float:
            fma = isinstance(x, Intrin) and x.name == "fma"
            total += x.dtype.lanes * (2 if fma else 1)
    return float(total)


def call_counts(mod: IRModule) -> Counter[str]:
    """How often the graphs of a lowered module call each kernel."""
    counts: Counter[str] = Counter()
    for f in mod.graphs:
        counts.update(call.name for call in planned_graph(f, mod).calls)
    return counts


def arguments(f: PrimFunc, sizes: Sizes) -> list[Array | int] | None:
    """Something for every parameter, or None when a size cannot be told."""
    rng = np.random.default_rng(0)
    made: list[Array | int] = []
    for p in f.params:
        if not isinstance(p, Buffer):
            made.append(sizes.get(p.name, 1))
            continue
        shape = [size_of(d, sizes) for d in p.shape]
        if any(n is None or n < 0 for n in shape):
            return None
        array = aligned_empty(shape, dtype_named(p.dtype.name))  # type: ignore[arg-type]
        array[...] = rng.random(shape) if p.dtype.is_float else 1  # type: ignore[arg-type]
        made.append(array)
    return made


def least_time(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of many calls."""
    call()
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def time_kernels(
    lowered: IRModule,
    seconds: float = 0.05,
    threads: int = 1,
    sizes: Sizes | None = None,
    target: Target | None = None,
) -> list[KernelTime]:
    """Rows of all kernels of a lowered module, costliest first; `sizes` of symbolic dimensions."""
    counts = call_counts(lowered)
    kernels = tuple(replace(f, public=True) for f in lowered.prim_funcs)
    if not kernels:
        return []
    only = IRModule(kernels, lowered.name)
    lib = compile_module(only, target, relax_pipeline=None, tir_pipeline=None).jit()
    lib.set_num_threads(threads)
    rows = []
    for f in kernels:
        given = arguments(f, sizes or {})
        micros = math.nan
        if given is not None:
            micros = least_time(partial(lib[f.name], *given), seconds) * 1e6
        moved = float(sum(a.nbytes for a in given or () if isinstance(a, np.ndarray)))
        rows.append(KernelTime(f.name, f.op_class, counts[f.name], micros, flops(f.body), moved))
    return sorted(rows, key=lambda r: -np.nan_to_num(r.total))
