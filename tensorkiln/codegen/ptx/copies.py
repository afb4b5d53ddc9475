"""Asynchronous copies (`ir/copies.py`) in LLVM IR for a GPU of NVIDIA: cp.async of 4, 8 or 16
bytes.

Where the condition of a copy does not hold, the instruction copies 0 bytes and fills up with zeros.
It reads nothing then, so the address may be any. A thread waits for the copies that it began
itself, and then at the barrier for those of other threads. Copies of less than 4 bytes, or not
aligned to 4 bytes, are loads and stores.
"""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.expand.offsets import flat_offset
from tensorkiln.codegen.llvm.addresses import address, alignment_of, lane_pointers
from tensorkiln.codegen.llvm.writer import KernelWriter
from tensorkiln.ir.copies import LEAST, Copy, copy_of
from tensorkiln.ir.stmt import If, Store

_WAIT = "void @llvm.nvvm.cp.async.wait.all()"
_BATCH = "void @llvm.nvvm.cp.async.commit.group()"
_WAIT_BUT = "void @llvm.nvvm.cp.async.wait.group(i32)"
_SIZES = (16, 8, LEAST)


def write_copy(w: KernelWriter, s: Store | If) -> bool:
    """Begin a copy, in as large pieces as the alignment of both sides allows. False, and nothing is
    written, if the pieces are too small for cp.async."""
    copy = copy_of(s)
    if copy is None:
        raise InternalError(f"{w.func.name}: no copy in a loop that is asynchronous")
    size = _size(w, copy)
    if size < LEAST:
        return False
    cond = None if copy.cond is None else w.value(copy.cond)
    pieces = _pieces(w, copy, size)
    # Copies of 16 bytes can bypass the first-level cache (cg); smaller ones exist only through it
    # (ca).
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
    return True


def write_batch(w: KernelWriter) -> None:
    """End a batch: the copies that this thread began since the last batch."""
    w.declares.add(f"declare {_BATCH}")
    w.emit(f"  call {_BATCH}")


def write_wait(w: KernelWriter, pending: int) -> None:
    """Wait until at most the last `pending` batches of this thread are in flight."""
    wait = _WAIT_BUT if pending else _WAIT
    w.declares.add(f"declare {wait}")
    w.emit(f"  call {wait.replace('i32', f'i32 {pending}')}")


def _size(w: KernelWriter, copy: Copy) -> int:
    """Bytes of a piece: as many lanes at once as the alignment of both sides allows."""
    into, load = copy.store, copy.load
    lanes, size = load.dtype.lanes, load.buffer.dtype.bytes
    sides = ((into.buffer, into.indices), (load.buffer, load.indices))
    if lanes == 1 or any(flat_offset(b, indices)[1] != 1 for b, indices in sides):
        return size
    align = min(alignment_of(w, b, indices) for b, indices in sides)
    whole = next((n for n in _SIZES if align >= n and lanes * size % n == 0), size)
    return max(whole, size)


def _pieces(w: KernelWriter, copy: Copy, size: int) -> list[tuple[str, str]]:
    """For each piece of `size` bytes, the pointer to its destination and to its source."""
    into, load = copy.store, copy.load
    lanes, element = load.dtype.lanes, load.buffer.dtype.bytes
    to, to_stride = address(w, into.buffer, into.indices)
    source, stride = address(w, load.buffer, load.indices)
    if lanes == 1:
        return [(to, source)]
    if to_stride == 1 and stride == 1:
        return [(_at(w, to, n), _at(w, source, n)) for n in range(0, lanes * element, size)]
    pointers = (
        list(lane_pointers(w, b, indices, lanes))
        for b, indices in ((into.buffer, into.indices), (load.buffer, load.indices))
    )
    return list(zip(*pointers, strict=True))


def _at(w: KernelWriter, pointer: str, offset: int) -> str:
    return w.line(f"getelementptr inbounds i8, ptr {pointer}, i64 {offset}") if offset else pointer
