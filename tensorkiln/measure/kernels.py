"""Time each kernel of an executable alone.

Kernels are called by their C symbols through ctypes on operands that are in the cache, so a time
below a microsecond or two is mostly the call from Python. Operations are counted in the scheduled
program and bytes in its parameters: padding counts, cache reuse does not.
"""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.base.trust import private_temporary
from tensorkiln.executable import Executable
from tensorkiln.external import symbols
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import DOTS, TILE_DOTS, Binary, Expr, IntImm, Intrin, Unary, Var, int_value
from tensorkiln.ir.module import AnyFunction
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Alloc, Block, For, If, Let, PrimFunc, Seq, Stmt, Store, TensorProgram
from tensorkiln.ir.tiles import matrix_of
from tensorkiln.ir.visit import free_vars, substitute, walk, walk_stmt
from tensorkiln.runtime import load_module
from tensorkiln.runtime.tensor import Array, aligned_empty, dtype_named

Sizes = Mapping[str, int]
_ROUNDS = 64  # of a loop that decides the extent of another one: how many are counted


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel: calls per inference and, for one call, the least time in microseconds, the
    floating-point operations and the bytes of all operands. `micros` is NaN if the kernel could not
    be called."""

    name: str
    op_class: str
    calls: int
    micros: float
    flops: float
    moved: float

    @property
    def total(self) -> float:
        """Microseconds of all calls in one inference."""
        return self.calls * self.micros


def size_of(e: Expr, sizes: Sizes, loops: Mapping[Var, int] = MappingProxyType({})) -> int | None:
    """The value of `e` with symbolic dimensions from `sizes`, 1 for those not listed, and variables
    of loops from `loops`; None if it depends on other values."""
    number = int_value(e)
    if number is not None:
        return number
    by: dict[Var, Expr] = {v: IntImm(loops.get(v, sizes.get(v.name, 1))) for v in free_vars(e)}
    return int_value(simplify(substitute(e, by)))


def flops(s: Stmt | None, sizes: Sizes) -> float:
    """Floating-point operations that a statement executes. Both branches of a condition count.
    Where an inner loop's extent depends on an outer loop, that loop's rounds are summed, of more
    than `_ROUNDS` a sample of so many."""
    return _flops(s, sizes, {})


def _flops(s: Stmt | None, sizes: Sizes, loops: Mapping[Var, int]) -> float:
    """`flops` within loops whose variables have the values `loops`."""
    match s:
        case For(var=var, lo=lo, extent=extent, body=body):
            count = max(0, size_of(extent, sizes, loops) or 0)
            if not _decides_an_extent(var, body):
                return count * _flops(body, sizes, loops)
            first, rounds = size_of(lo, sizes, loops) or 0, min(count, _ROUNDS)
            values = (first + (2 * k + 1) * count // (2 * rounds) for k in range(rounds))
            total = sum(_flops(body, sizes, {**loops, var: v}) for v in values)
            return total * count / rounds if rounds else 0.0
        case Seq(stmts):
            return sum(_flops(x, sizes, loops) for x in stmts)
        case Store(value=value):
            return _operations(value)
        case Let(_, value, body):
            return _operations(value) + _flops(body, sizes, loops)
        case If(_, then_body, orelse):
            return _flops(then_body, sizes, loops) + _flops(orelse, sizes, loops)
        case Alloc(body=body) | Block(body=body):
            return _flops(body, sizes, loops)
    return 0.0


def _decides_an_extent(var: Var, body: Stmt) -> bool:
    """Whether the extent of a loop in `body` has the variable in it."""
    return any(isinstance(s, For) and var in free_vars(s.extent) for s in walk_stmt(body))


def _operations(value: Expr) -> float:
    total = 0
    for x in walk(value):
        if isinstance(x, Intrin) and x.name in DOTS:
            total += x.dtype.lanes * DOTS[x.name][1][1] * 2  # integer dot products count as well
        elif isinstance(x, Intrin) and x.name in TILE_DOTS:
            # Each element of the right factor is multiplied in every row of the left one.
            lhs, rhs = x.args[1], x.args[2]
            assert isinstance(lhs, Load)
            total += rhs.dtype.lanes * matrix_of(lhs.buffer)[0] * 2
        elif isinstance(x, Binary | Unary | Intrin) and x.dtype.is_float:
            fma = isinstance(x, Intrin) and x.name == "fma"
            total += x.dtype.lanes * (2 if fma else 1)
    return float(total)


def call_counts(exe: Executable) -> Counter[str]:
    """Calls of each kernel, by symbol, summed over all graph functions of an executable."""
    plans = (*exe.functions, *(exe.outer.helpers if exe.outer else ()))
    return Counter(c.symbol for f in plans if f.info.kind == "graph" for c in f.calls)


def operands(f: AnyFunction, sizes: Sizes) -> list[Array | int] | None:
    """Operands to call a kernel with, in the order of its C parameters: tensors, then sizes.

    Floats are random numbers from [0, 1), integers are 1; symbolic dimensions are taken from
    `sizes`, else 1. Returns None when a size is unknown or negative; raises MemoryError for a
    tensor that is too large.
    """
    if isinstance(f, TensorProgram):
        params: tuple[Buffer | Var, ...] = f.params
        scalars = [sizes.get(p.name, 1) for p in params if not isinstance(p, Buffer)]
        tensors = [(p.dtype, p.shape) for p in params if isinstance(p, Buffer)]
    else:
        assert isinstance(f.result, RVar)
        values = (*f.params, f.result)
        scalars = [sizes.get(v.name, 1) for v in symbols(f)]
        tensors = [(v.tensor.dtype, v.tensor.physical_shape) for v in values]
    rng = np.random.default_rng(0)
    arrays: list[Array | int] = []
    for dtype, dims in tensors:
        shape = [size_of(d, sizes) for d in dims]
        if any(n is None or n < 0 for n in shape):
            return None
        # NumPy's own error would not name the shape.
        if dtype.size(math.prod(n or 0 for n in shape)) >= sys.maxsize:
            raise MemoryError(f"no memory for an array of shape {tuple(shape)}")
        array = aligned_empty(shape, dtype_named(dtype.name))  # type: ignore[arg-type]
        array[...] = rng.random(shape) if dtype.is_float else 1  # type: ignore[arg-type]
        arrays.append(array)
    return arrays + scalars


def _call(kernel: Callable[..., object], operands: Sequence[Array | int]) -> Callable[[], object]:
    """A call of the kernel on the operands, which the caller keeps alive."""
    values = [
        ctypes.c_int64(x) if isinstance(x, int) else ctypes.c_void_p(x.ctypes.data)
        for x in operands
    ]
    return partial(kernel, *values)


def least_time(call: Callable[[], object], seconds: float) -> float:
    """The least seconds of one call, over at least `seconds` and three calls, after one untimed."""
    call()
    best, end, calls = math.inf, time.perf_counter() + seconds, 0
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        calls += 1
    return best


def time_kernels(
    exe: Executable, seconds: float = 0.05, threads: int = 1, sizes: Sizes = MappingProxyType({})
) -> list[KernelTime]:
    """Time all kernels of an executable; return them with the largest total time first.

    `seconds` is the time spent on each kernel, `sizes` are values of symbolic dimensions by name
    (1 for those not listed). The kernels are exported from a temporary library and called by
    symbol. Raises what loading the library raises, such as UserError for another processor.
    """
    mod = exe.module.with_programs()
    counts = call_counts(exe)
    names = [k.symbol for k in exe.kernels if counts[k.symbol]]
    rows = []
    with private_temporary("kiln-kernels-") as folder:
        path = exe.export_library(Path(folder) / "kernels.so", exports=names)
        lib = load_module(path)
        lib.set_num_threads(threads)
        for k in exe.kernels:
            f = mod[k.symbol]
            values = operands(f, sizes) if k.symbol in names else None
            micros, moved = math.nan, 0.0
            # C sources of externals are compiled with hidden visibility: no symbol to look up.
            kernel = getattr(lib.library.dll, k.symbol, None)
            if values is not None and kernel is not None:
                micros = least_time(_call(kernel, values), seconds) * 1e6
                moved = float(sum(a.nbytes for a in values if not isinstance(a, int)))
            work = flops(f.body, sizes) if isinstance(f, PrimFunc) else 0.0
            rows.append(KernelTime(k.symbol, k.kernel_class, counts[k.symbol], micros, work, moved))
    return sorted(rows, key=lambda r: -np.nan_to_num(r.total))
