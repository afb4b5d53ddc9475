"""Rings (`ir/rings.py`) in LLVM IR for a GPU of NVIDIA: producer warps copy to shared memory, ahead
of the warps that compute.

Each part of the shared buffers has two barriers in shared memory (mbarrier). At *full*, the copies
arrive by themselves as they complete; consumers wait there. At *free*, each consumer warp arrives
when it has finished with the part; producers wait there before they fill it again. A barrier tells
its rounds apart by parity; to wait for the parity before the first round returns at once, so
producers begin without waiting.

Tensor cores see what was copied only after a fence (`fence.proxy.async`) of the threads that waited
for it.

Boxes of tensors (`boxes.py`) are copied by TMA. One producer thread arrives at *full* with the
number of bytes to expect, and starts the copies, which count their bytes there. TMA writes by the
same way that tensor cores read, so its data needs no fence; but the barriers, and what threads
wrote to shared memory before, must be made visible to TMA by a fence. If a tensor does not begin at
a multiple of 16 bytes, the other body of the function runs (`alignment.py`), in which threads copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.llvm import loops
from tensorkiln.codegen.llvm.addresses import address, index
from tensorkiln.codegen.ptx import threads
from tensorkiln.codegen.ptx.box_pieces import SOURCE_ALIGN, TensorMapBox
from tensorkiln.codegen.ptx.copies import write_wait
from tensorkiln.codegen.ptx.threads import DeviceWriter, branch, thread_register, write_barrier
from tensorkiln.codegen.ptx.warpgroup import write_fence
from tensorkiln.ir.device_instructions import WARP_THREADS, WARPGROUP_THREADS
from tensorkiln.ir.dtype import INT16, INT32, INT64
from tensorkiln.ir.expr import cast, int_value
from tensorkiln.ir.launch import BARRIER_BYTES, launch_of, thread_of
from tensorkiln.ir.rings import Ring, producers_of, ring_of
from tensorkiln.ir.stmt import THREAD_INDICES, For, PrimFunc, Stmt, While
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.target.gpus import capability_of

CAPABILITY = 90  # the least that has waits for a parity which need no loop of their own
_BARRIER = "ptr addrspace(3)"
_INIT = f"void @llvm.nvvm.mbarrier.init.shared({_BARRIER}, i32)"
_ARRIVE = f"i64 @llvm.nvvm.mbarrier.arrive.shared({_BARRIER})"
_COPIED = f"void @llvm.nvvm.cp.async.mbarrier.arrive.noinc.shared({_BARRIER})"
_TRY = f"i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta({_BARRIER}, i32)"
_WARP = "void @llvm.nvvm.bar.warp.sync(i32)"
_EXPECT = f"i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta({_BARRIER}, i32)"
# Registers of a multiprocessor, and how a warpgroup may share them out (setmaxnreg of sm_90a).
_REGISTERS, _REGISTER_UNIT, _MOST_REGISTERS, _OF_PRODUCER = 65536, 8, 240, 40


def require_ring(f: PrimFunc, archs: tuple[str, ...]) -> None:
    """Raise UnsupportedError for a ring on an architecture without such barriers, in another loop
    or beside another ring, or whose threads are not whole warps along x."""
    rings = [s for s in walk_stmt(f.body) if isinstance(s, For) and ring_of(s) is not None]
    if not rings:
        return
    launch = launch_of(f)
    x, y, z = launch.block
    fault, hint = "", ""
    old = next((a for a in archs if capability_of(a) < CAPABILITY), None)
    if old is not None:
        fault = f"{old} does not have barriers at which copies arrive by themselves"
        hint = f"sm_{CAPABILITY} or newer, for arch and each of also; or no producers"
    elif len(rings) > 1 or _is_repeated(f, rings[0]):
        fault, hint = "a loop with producers inside of a loop, or beside another one", "one for all"
    elif (x, y, z) != (x, 1, 1) or x % WARP_THREADS or producers_of(rings[0]) % WARP_THREADS:
        fault = f"{x} x {y} x {z} threads, {producers_of(rings[0])} of which copy"
        hint = f"multiples of {WARP_THREADS}, along x"
    if fault:
        raise UnsupportedError(fault, where=f.name, hint=hint)


def _is_repeated(f: PrimFunc, ring: For) -> bool:
    """Whether a ring stands in a loop other than those over blocks."""
    around = [s for s in walk_stmt(f.body) if isinstance(s, For | While) and s is not ring]
    serial = [s for s in around if not thread_of(s)]
    return any(t is ring for s in serial for t in walk_stmt(s))


def _for(w: DeviceWriter, s: For) -> None:
    ring = ring_of(s)
    if ring is None:
        threads.STATEMENTS[For](w, s)
    else:
        _write(w, ring)


def _write(w: DeviceWriter, ring: Ring) -> None:
    block, w.after_products = w.launch.block, False
    consumers = block[0] - ring.producers
    tid = thread_register(w, THREAD_INDICES[0])
    boxes = _boxes(w, ring)
    # One arrival for each producer thread whose copies arrive by themselves, and one for the thread
    # that announces the bytes of TMA.
    by_threads = len(boxes) < len(ring.copies)
    fills = ring.producers * by_threads + bool(boxes)
    first = w.line(f"getelementptr inbounds i8, ptr {w.shared}, i64 {w.launch.barriers}")
    with branch(w, w.line(f"icmp eq i32 {tid}, 0")):
        w.declares.add(f"declare {_INIT}")
        for k in range(2 * ring.parts):
            count = fills if k < ring.parts else consumers // WARP_THREADS
            barrier = _shared(w, first, str(k * BARRIER_BYTES))
            w.emit(f"  call {_INIT.partition('(')[0]}({_BARRIER} {barrier}, i32 {count})")
    # TMA must see the barriers as initialized.
    if boxes:
        write_fence(w)
    # Nobody uses a barrier before it is initialized.
    write_barrier(w)
    copies, uses, end = w.label(), w.label(), w.label()
    behind = w.line(f"icmp uge i32 {tid}, {consumers}")
    # Values that both sides use are computed before the branch, in this scope.
    with w.scope():
        w.emit(f"  br i1 {behind}, label %{copies}, label %{uses}")
        for label, producer in ((copies, True), (uses, False)):
            with w.scope():
                w.enter(label)
                w.of_block = (ring.producers if producer else consumers, 1, 1)
                w.behind = consumers if producer else 0
                shares = _register_shares(w, ring.producers, consumers)
                if shares:
                    _set_registers(w, shares[producer], producer)
                _rounds(w, ring, first, producer, boxes)
                if producer and (boxes or shares):
                    _meet(w)  # threads come to the next barrier of the block together
                if shares:
                    w.registers = _at_entry(block[0])
                    _set_registers(w, w.registers, not producer)
                w.emit(f"  br label %{end}")
    w.of_block, w.behind = block, 0
    w.after_products = True
    w.enter(end)
    w.state.written(None)


def _at_entry(threads: int) -> int:
    """The most registers of each thread of a block with which it begins."""
    return _REGISTERS // threads // _REGISTER_UNIT * _REGISTER_UNIT


def _register_shares(w: DeviceWriter, producers: int, consumers: int) -> tuple[int, int] | None:
    """How many registers a consumer and a producer have while a ring turns, where whole warpgroups
    copy: these leave most of theirs to the others. None if each keeps what it has."""
    if not w.for_products or producers % WARPGROUP_THREADS or consumers % WARPGROUP_THREADS:
        return None
    threads = producers + consumers
    if not _OF_PRODUCER < _at_entry(threads) < _MOST_REGISTERS:
        return None
    pool = _at_entry(threads) * threads - _OF_PRODUCER * producers
    share = pool // consumers // _REGISTER_UNIT * _REGISTER_UNIT
    return min(share, _MOST_REGISTERS), _OF_PRODUCER


def _set_registers(w: DeviceWriter, count: int, fewer: bool) -> None:
    """Change how many registers the threads of a warpgroup have."""
    name = f"void @llvm.nvvm.setmaxnreg.{'dec' if fewer else 'inc'}.sync.aligned.u32"
    w.declares.add(f"declare {name}(i32)")
    w.emit(f"  call {name}(i32 {count})")


def _boxes(w: DeviceWriter, ring: Ring) -> list[TensorMapBox]:
    """The boxes of a ring that TMA copies: all of them, or none if a tensor may be unaligned."""
    boxes = [w.boxes[id(nest)] for nest in ring.copies if id(nest) in w.boxes]
    aligned = (max(b.source.align, w.aligns.get(b.source, 0)) >= SOURCE_ALIGN for b in boxes)
    return boxes if all(aligned) else []


def _rounds(
    w: DeviceWriter, ring: Ring, first: str, producer: bool, boxes: Sequence[TensorMapBox]
) -> None:
    """The loop as producers run it, or as consumers do."""
    s, size = ring.loop, BARRIER_BYTES
    by_threads = [n for n in ring.copies if not (boxes and id(n) in w.boxes)]
    number = cast(s.var - s.lo, INT64)
    lo, hi = index(w, s.lo), index(w, cast(s.lo, INT64) + cast(s.extent, INT64))

    def body() -> None:
        part, turn = index(w, number % ring.parts), index(w, number // ring.parts)
        offset = w.line(f"mul nsw i64 {part}, {size}")
        full = _shared(w, first, offset)
        free = _shared(w, first, w.line(f"add nsw i64 {offset}, {ring.parts * size}"))
        parity = w.line(f"and i32 {w.line(f'trunc i64 {turn} to i32')}, 1")
        if producer:
            parity = w.line(f"xor i32 {parity}, 1")  # of the turn before
        _wait(w, free if producer else full, parity)
        # What cp.async or threads wrote is visible to tensor cores only after this fence; what TMA
        # wrote already is.
        if not producer and w.for_products and by_threads:
            write_fence(w)
        w.state.written(None)
        w.copied_at_once = False
        if producer and boxes:
            with branch(w, w.line(f"icmp eq i32 {thread_register(w, THREAD_INDICES[0])}, 0")):
                _copy_boxes(w, boxes, full)
        for nest in by_threads if producer else ring.consumers:
            w.statement(nest)
        if not producer:
            _hand_back(w, free)
        elif not by_threads:
            return
        elif w.copied_at_once:  # what the thread itself has stored does not arrive with its copies
            write_wait(w, 0)
            _arrive(w, full)
        else:
            w.declares.add(f"declare {_COPIED}")
            w.emit(f"  call {_COPIED.partition('(')[0]}({_BARRIER} {full})")

    loops.counted(w, s.var, lo, hi, body, guard=int_value(s.extent) is None)


def _copy_boxes(w: DeviceWriter, boxes: Sequence[TensorMapBox], full: str) -> None:
    """Arrive at `full` with the bytes of all boxes of a round, and start their copies."""
    w.declares.add(f"declare {_EXPECT}")
    count = sum(b.count * b.box_bytes for b in boxes)
    w.emit(f"  {w.fresh()} = call {_EXPECT.partition('(')[0]}({_BARRIER} {full}, i32 {count})")
    for b in boxes:
        to, _ = address(w, b.into, b.place)
        *outer, inner = (w.value(cast(i, INT32)) for i in b.start)
        for k in range(b.count):
            indices = [*reversed(outer)]
            across = k * b.map.box[0]
            indices.insert(0, w.line(f"add i32 {inner}, {across}") if across else inner)
            _copy_box(w, b, _shared(w, to, str(k * b.box_bytes)), indices, full)


def _copy_box(
    w: DeviceWriter, box: TensorMapBox, to: str, indices: Sequence[str], full: str
) -> None:
    """Start the copy of the box at `indices` of the tensor, the innermost first."""
    rank = len(indices)
    places = ", ".join(f"${k + 2}" for k in range(rank))
    # The tap of windows: columns come first.
    taps = [f"i16 {w.value(cast(e, INT16))}" for e in reversed(box.offsets)]
    offsets = ", ".join(f"${k + rank + 3}" for k in range(len(taps)))
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global"
        f"{'.im2col' * bool(taps)}.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {{{places}}}], [${rank + 2}]{f', {{{offsets}}}' * bool(taps)};"
    )
    bounds = ",".join(["r", "l", *["r"] * rank, "r", *["h"] * len(taps), "~{memory}"])
    args = [
        f"{_BARRIER} {to}",
        f"ptr {w.maps[box.map]}",
        *(f"i32 {x}" for x in indices),
        f"{_BARRIER} {full}",
        *taps,
    ]
    w.emit(f'  call void asm sideeffect "{text}", "{bounds}"({", ".join(args)})')


def _shared(w: DeviceWriter, first: str, offset: str) -> str:
    """The pointer `offset` bytes after `first`, as one to shared memory."""
    pointer = w.line(f"getelementptr inbounds i8, ptr {first}, i64 {offset}")
    return w.line(f"addrspacecast ptr {pointer} to ptr addrspace(3)")


def _wait(w: DeviceWriter, barrier: str, parity: str) -> None:
    """Wait until the round of this parity is complete at a barrier."""
    again, end = w.label(), w.label()
    w.declares.add(f"declare {_TRY}")
    w.emit(f"  br label %{again}")
    w.enter(again)
    # The instruction waits for a while by itself, and returns false when that time is over.
    is_complete = w.fresh()
    w.emit(f"  {is_complete} = call {_TRY.partition('(')[0]}({_BARRIER} {barrier}, i32 {parity})")
    w.emit(f"  br i1 {is_complete}, label %{end}, label %{again}")
    w.enter(end)


def _meet(w: DeviceWriter) -> None:
    """Wait for the other threads of the warp."""
    w.declares.add(f"declare {_WARP}")
    w.emit(f"  call {_WARP.partition('(')[0]}(i32 -1)")


def _hand_back(w: DeviceWriter, barrier: str) -> None:
    """Let one thread of each warp arrive at a barrier once all threads of the warp are there."""
    _meet(w)
    lane = w.line(f"and i32 {thread_register(w, THREAD_INDICES[0])}, {WARP_THREADS - 1}")
    with branch(w, w.line(f"icmp eq i32 {lane}, 0")):
        _arrive(w, barrier)


def _arrive(w: DeviceWriter, barrier: str) -> None:
    w.declares.add(f"declare {_ARRIVE}")
    w.emit(f"  {w.fresh()} = call {_ARRIVE.partition('(')[0]}({_BARRIER} {barrier})")


STATEMENTS: dict[type[Stmt], Callable[[Any, Any], None]] = {**threads.STATEMENTS, For: _for}
__all__ = ["CAPABILITY", "STATEMENTS", "require_ring"]
