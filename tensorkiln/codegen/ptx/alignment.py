"""Vectors of tensors that are known to be aligned to their elements only.

A GPU moves 16 bytes at once from and to addresses that are multiples of 16, and LLVM splits an
access of which that is not known. Tensors of callers, and parts of others, may begin at any
element, while most do at a multiple of 16: a function whose vectors would gain has two bodies, and
asks its parameters which of them runs.
"""

from __future__ import annotations

from tensorkiln.codegen.expand.offsets import flat_offset
from tensorkiln.codegen.llvm.addresses import alignment
from tensorkiln.codegen.ptx.threads import DeviceWriter
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.stmt import PrimFunc, Store
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt

_BYTES = 16  # the most that a thread moves at once


def write_body(w: DeviceWriter) -> None:
    """Write what the function does, twice where vectors gain from aligned buffers."""
    found = [b for b in w.func.buffers if b in _gaining(w.func)]
    if not found:
        w.statement(w.func.body)
        return
    bits = ""
    for b in found:
        start = w.line(f"ptrtoint ptr {w.state.buffers[b]} to i64")
        bits = w.line(f"or i64 {bits}, {start}") if bits else start
    rest = w.line(f"and i64 {bits}, {_BYTES - 1}")
    aligned = w.line(f"icmp eq i64 {rest}, 0")
    yes, no, end = w.label(), w.label(), w.label()
    with w.scope():
        w.emit(f"  br i1 {aligned}, label %{yes}, label %{no}")
        for label, aligns in ((yes, dict.fromkeys(found, _BYTES)), (no, {})):
            with w.scope():
                w.enter(label)
                w.aligns = aligns
                w.statement(w.func.body)
                w.emit(f"  br label %{end}")
    w.enter(end)


def _gaining(f: PrimFunc) -> set[Buffer]:
    """The parameters with vectors that would be moved in fewer pieces if they were aligned."""
    found: set[Buffer] = set()
    for s in walk_stmt(f.body):
        if isinstance(s, Store) and _gains(s.buffer, s.indices, s.value.dtype):
            found.add(s.buffer)
        for e in stmt_exprs(s):
            loads = (x for x in walk(e) if isinstance(x, Load))
            found |= {x.buffer for x in loads if _gains(x.buffer, x.indices, x.dtype)}
    return found & set(f.buffers)


def _gains(buffer: Buffer, indices: tuple[Expr, ...], dtype: DType) -> bool:
    if dtype.lanes == 1 or flat_offset(buffer, indices)[1] != 1:
        return False
    whole = min(_BYTES, dtype.lanes * (1 if dtype.is_bool else dtype.bytes))
    return alignment(buffer, indices) < min(whole, alignment(buffer, indices, _BYTES))
