"""Vectors from scalars, from lanes of other vectors, and their reduction to a scalar."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.codegen.llvm.arithmetic import binary
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter
from tensorkiln.ir.expr import Broadcast, IntImm, Ramp, Shuffle, VectorReduce


def _broadcast(w: KernelWriter, e: Broadcast) -> str:
    return w.splat(w.value(e.a), e.a.dtype, e.lanes)


def _ramp(w: KernelWriter, e: Ramp) -> str:
    scalar, t = e.base.dtype, llvm_type(e.dtype)
    start = w.splat(w.value(e.base), scalar, e.lanes)
    step = w.splat(w.value(e.stride), scalar, e.lanes)
    counts = "<" + ", ".join(f"{llvm_type(scalar)} {i}" for i in range(e.lanes)) + ">"
    return w.line(f"add {t} {start}, {w.line(f'mul {t} {step}, {counts}')}")


def _shuffle(w: KernelWriter, e: Shuffle) -> str:
    x, y = w.value(e.a), w.value(e.b)
    t, count = llvm_type(e.a.dtype), e.a.dtype.lanes
    if len(e.lanes) == 1 and count > 1:  # a scalar
        (lane,) = e.lanes
        return w.line(f"extractelement {t} {x if lane < count else y}, i32 {lane % count}")
    return _lanes(w, x, y, t, e.lanes)


def _lanes(w: KernelWriter, x: str, y: str, t: str, lanes: Sequence[int]) -> str:
    """Lanes of the vectors x and y of type `t`, those of y counted after those of x."""
    mask = ", ".join(f"i32 {i}" for i in lanes)
    return w.line(f"shufflevector {t} {x}, {t} {y}, <{len(lanes)} x i32> <{mask}>")


def _vector_reduce(w: KernelWriter, e: VectorReduce) -> str:
    """Combine the halves of the vector until one lane is left: one order for all targets."""
    x, dtype = w.value(e.a), e.a.dtype
    op, lanes = {"sum": "add", "prod": "mul"}.get(e.op, e.op), dtype.lanes
    while lanes > 2:
        t, half = llvm_type(dtype.with_lanes(lanes)), lanes // 2
        low = _lanes(w, x, "poison", t, range(half))
        high = _lanes(w, x, "poison", t, range(half, lanes))
        x, lanes = binary(w, op, low, high, dtype.with_lanes(half), IntImm(0)), half
    pair = llvm_type(dtype.with_lanes(2))
    a, b = (w.line(f"extractelement {pair} {x}, i32 {lane}") for lane in range(2))
    return binary(w, op, a, b, dtype.element, IntImm(0))


EXPRESSIONS: Expressions = {
    Broadcast: _broadcast,
    Ramp: _ramp,
    Shuffle: _shuffle,
    VectorReduce: _vector_reduce,
}
