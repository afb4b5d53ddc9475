"""`python -m bench.kernels MODEL.onnx [DIM=N ...]`: each kernel of a model, timed alone.

Kernels are called through the public library interface on warm operands, so a number below some
microseconds is mostly the call. Arithmetic and bytes are counted in the scheduled program and in
its parameters: padded channels count, caches do not.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import tensorkiln as tk
from tensorkiln.ir.expr import Binary, Intrin, Unary, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, GlobalRef
from tensorkiln.ir.stmt import Alloc, For, If, Let, PrimFunc, Seq, Stmt, Store
from tensorkiln.ir.visit import walk
from tensorkiln.runtime.tensor import aligned_empty, dtype_named


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel: calls per inference, least time of one call, floating point operations, bytes."""

    name: str
    op_class: str
    calls: int
    micros: float
    flops: float
    moved: float

    @property
    def total(self) -> float:
        return self.calls * self.micros


def flops(s: Stmt | None) -> float:
    """Floating point operations a statement executes; both branches of a condition count,
    and so does one round of a loop whose extent is known only at run time."""
    match s:
        case For(_, _, extent, _, body):
            n = int_value(extent)
            return (1 if n is None else n) * flops(body)
        case Seq(stmts):
            return sum(map(flops, stmts))
        case Store(_, _, value, _):
            return _operations(value)
        case Let(_, value, body):
            return _operations(value) + flops(body)
        case If(_, then, orelse):
            return flops(then) + flops(orelse)
        case Alloc(_, body):
            return flops(body)
    return 0.0


def _operations(value: object) -> float:
    total = 0
    for x in walk(value):  # type: ignore[arg-type]
        if isinstance(x, Binary | Unary | Intrin) and x.dtype.is_float:
            fma = isinstance(x, Intrin) and x.name == "fma"
            total += x.dtype.lanes * (2 if fma else 1)
    return float(total)


def call_counts(mod: IRModule) -> Counter[str]:
    """How often the graphs of a lowered module call each kernel."""
    counts: Counter[str] = Counter()
    for f in mod.graphs:
        for b in f.bindings:
            if isinstance(b.value, Call) and isinstance(b.value.callee, GlobalRef):
                counts[b.value.callee.name] += 1
    return counts


def operands(f: PrimFunc) -> list[np.ndarray] | None:
    """Arrays for every parameter, or None when an extent is symbolic."""
    rng, arrays = np.random.default_rng(0), []
    for b in f.buffers:
        shape = [int_value(d) for d in b.shape]
        if None in shape:
            return None
        array = aligned_empty(shape, dtype_named(b.dtype.name))  # type: ignore[arg-type]
        array[...] = rng.random(shape) if b.dtype.is_float else 1  # type: ignore[arg-type]
        arrays.append(array)
    return None if f.scalars else arrays


def least_time(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of many calls."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def time_kernels(lowered: IRModule, seconds: float = 0.05, threads: int = 1) -> list[Row]:
    """Rows of all kernels of a lowered module, costliest first."""
    counts = call_counts(lowered)
    kernels = tuple(replace(f, public=True) for f in lowered.prim_funcs)
    only = IRModule(kernels, lowered.name)
    lib = tk.compile(only, relax_pipeline=None, tir_pipeline=None).jit()
    lib.set_num_threads(threads)
    rows = []
    for f in kernels:
        arrays = operands(f)
        micros = float("nan")
        if arrays is not None:
            micros = least_time(partial(lib[f.name], *arrays), seconds) * 1e6
        moved = sum(a.nbytes for a in arrays or ())
        rows.append(Row(f.name, f.op_class, counts[f.name], micros, flops(f.body), moved))
    return sorted(rows, key=lambda r: -np.nan_to_num(r.total))


def table(rows: list[Row], limit: int) -> str:
    """Aligned text, one line per kernel."""
    lines = [f"{'kernel':44} {'class':18} {'calls':>5} {'min us':>9} {'total us':>9} "
             f"{'GFLOP/s':>8} {'GB/s':>7}"]  # fmt: skip
    for r in rows[:limit]:
        rates = f"{r.flops / r.micros / 1e3:8.1f} {r.moved / r.micros / 1e3:7.1f}"
        lines.append(
            f"{r.name[:44]:44} {r.op_class:18} {r.calls:5} {r.micros:9.1f} {r.total:9.1f} {rates}"
        )
    total = sum(np.nan_to_num(r.total) for r in rows)
    return "\n".join([*lines, f"{len(rows)} kernels, {total / 1e3:.2f} ms of calls"])


def main(arguments: list[str] | None = None) -> None:
    """Compile, time, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("dims", nargs="*", help="symbolic dimensions: NAME=N")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--top", type=int, default=30, help="rows to show")
    parser.add_argument("--seconds", type=float, default=0.05, help="time per kernel")
    options = parser.parse_args(arguments)
    freeze = {name: int(n) for name, n in (d.split("=") for d in options.dims)}
    exe = tk.compile(tk.frontend.from_onnx(options.model, freeze=freeze or None))
    rows = time_kernels(exe.module, options.seconds, options.threads)
    print(table(rows, options.top))


if __name__ == "__main__":
    main()
