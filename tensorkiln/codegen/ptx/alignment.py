"""Vector accesses to tensors that are known to be aligned only to their elements.

A GPU moves 16 bytes at once only at addresses that are multiples of 16, and LLVM splits an access
whose alignment it does not know. Tensors of callers may begin at any element, although most begin
at a multiple of 16. So a function that would gain has its body twice, for aligned tensors and for
any, and tests its parameters to choose.
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
    """Write the body of the function, twice where vector accesses gain from aligned tensors."""
    buffers = [b for b in w.func.buffers if b in _gaining(w.func)]
    if not buffers:
        w.statement(w.func.body)
        return
    # All addresses are tested at once: the bits below 16 of their disjunction.
    bits = ""
    for b in buffers:
        start = w.line(f"ptrtoint ptr {w.state.buffers[b]} to i64")
        bits = w.line(f"or i64 {bits}, {start}") if bits else start
    misalignment = w.line(f"and i64 {bits}, {_BYTES - 1}")
    aligned = w.line(f"icmp eq i64 {misalignment}, 0")
    yes, no, end = w.label(), w.label(), w.label()
    with w.scope():
        w.emit(f"  br i1 {aligned}, label %{yes}, label %{no}")
        for label, aligns in ((yes, dict.fromkeys(buffers, _BYTES)), (no, {})):
            with w.scope():
                w.enter(label)
                w.aligns = aligns
                w.statement(w.func.body)
                w.emit(f"  br label %{end}")
    w.enter(end)


def _gaining(f: PrimFunc) -> set[Buffer]:
    """The parameters whose vector accesses would take fewer instructions if they were aligned."""
    gaining: set[Buffer] = set()
    for s in walk_stmt(f.body):
        if isinstance(s, Store) and _gains(s.buffer, s.indices, s.value.dtype):
            gaining.add(s.buffer)
        for e in stmt_exprs(s):
            loads = (x for x in walk(e) if isinstance(x, Load))
            gaining |= {x.buffer for x in loads if _gains(x.buffer, x.indices, x.dtype)}
    return gaining & set(f.buffers)


def _gains(buffer: Buffer, indices: tuple[Expr, ...], dtype: DType) -> bool:
    if dtype.lanes == 1 or flat_offset(buffer, indices)[1] != 1:
        return False
    whole = min(_BYTES, dtype.lanes * dtype.bytes)
    return alignment(buffer, indices) < min(whole, alignment(buffer, indices, _BYTES))
