"""Asynchronous copies in LLVM IR for a GPU of NVIDIA: cp.async, of 4, 8 or 16 bytes.

Where a condition does not hold it copies no bytes and fills up with zeros: nothing is read then, so
the address may be any. A thread waits for all copies that it has begun, then at the barrier for the
other threads.
"""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.llvm.addresses import address, alignment, lane_pointers
from tensorkiln.codegen.llvm.writer import KernelWriter
from tensorkiln.ir.copies import Copy, copy_of
from tensorkiln.ir.stmt import If, Store

_WAIT = "void @llvm.nvvm.cp.async.wait.all()"
_SIZES = (16, 8)


def write_copy(w: KernelWriter, s: Store | If) -> None:
    """Begin a copy; what several lanes copy is in as few pieces as alignment allows."""
    copy = copy_of(s)
    if copy is None:
        raise InternalError(f"{w.func.name}: no copy in a loop that is asynchronous")
    cond = None if copy.cond is None else w.value(copy.cond)
    size, pieces = _pieces(w, copy)
    kind = "cg" if size == 16 else "ca"
    name = f"@llvm.nvvm.cp.async.{kind}.shared.global.{size}{'' if cond is None else '.s'}"
    count = "" if cond is None else ", i32"
    w.declares.add(f"declare void {name}(ptr addrspace(3), ptr addrspace(1){count})")
    if cond is not None:
        count = f", i32 {w.line(f'select i1 {cond}, i32 {size}, i32 0')}"
    w.state.written(None if w.aliases else copy.store.buffer)
    for into, source in pieces:
        shared = w.line(f"addrspacecast ptr {into} to ptr addrspace(3)")
        far = w.line(f"addrspacecast ptr {source} to ptr addrspace(1)")
        w.emit(f"  call void {name}(ptr addrspace(3) {shared}, ptr addrspace(1) {far}{count})")


def write_wait(w: KernelWriter) -> None:
    """Wait until all that this thread has begun to copy is there."""
    w.declares.add(f"declare {_WAIT}")
    w.emit(f"  call {_WAIT}")


def _pieces(w: KernelWriter, copy: Copy) -> tuple[int, list[tuple[str, str]]]:
    """(bytes of a piece, pointers to where each goes and where it comes from)."""
    into, load = copy.store, copy.load
    lanes, size = load.dtype.lanes, load.buffer.dtype.bytes
    to, to_stride = address(w, into.buffer, into.indices)
    source, stride = address(w, load.buffer, load.indices)
    if lanes == 1:
        return size, [(to, source)]
    if to_stride == 1 and stride == 1:
        align = min(
            alignment(b, indices, w.aligns.get(b, 0))
            for b, indices in ((into.buffer, into.indices), (load.buffer, load.indices))
        )
        whole = next((n for n in _SIZES if align >= n and lanes * size % n == 0), size)
        offsets = range(0, lanes * size, max(whole, size))
        return max(whole, size), [(_at(w, to, n), _at(w, source, n)) for n in offsets]
    each = (
        list(lane_pointers(w, b, indices, lanes))
        for b, indices in ((into.buffer, into.indices), (load.buffer, load.indices))
    )
    return size, list(zip(*each, strict=True))


def _at(w: KernelWriter, pointer: str, offset: int) -> str:
    return w.line(f"getelementptr inbounds i8, ptr {pointer}, i64 {offset}") if offset else pointer
