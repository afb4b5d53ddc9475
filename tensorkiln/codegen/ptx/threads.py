"""Loops bound to thread indices, shared buffers and barriers, in LLVM IR for a GPU.

Every thread runs the whole function. So a loop bound to a thread index is printed as its body, with
the index of the thread for its variable; a nest that has fewer threads than the block is a branch.
Indices are read at the top of the function, so that addresses which depend on them alone are
computed there too, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tensorkiln.codegen.device_functions import instructions_in
from tensorkiln.codegen.host.tensor_maps import TensorMap
from tensorkiln.codegen.llvm import control, loops, memory
from tensorkiln.codegen.llvm.addresses import index
from tensorkiln.codegen.llvm.conversions import convert
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import KernelWriter
from tensorkiln.codegen.ptx.box_pieces import TensorMapBox
from tensorkiln.codegen.ptx.copies import write_batch, write_copy, write_wait
from tensorkiln.codegen.ptx.warpgroup import is_of_warpgroup, write_fence
from tensorkiln.ir.copies import copy_of, is_asynchronous
from tensorkiln.ir.dtype import INT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.launch import BARRIER_BYTES, Launch, launch_of, thread_of
from tensorkiln.ir.stmt import THREAD_INDICES, Alloc, For, If, Prefetch, Stmt, Store, Sync
from tensorkiln.ir.visit import walk_stmt

# Special registers of a thread (PTX ISA, "Special Registers"), by the index of a loop.
_REGISTERS = {"blockIdx": "ctaid", "threadIdx": "tid"}
_BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"


class DeviceWriter(KernelWriter):
    """Writes a device function."""

    helper_attributes = "nounwind"  # the kernel's say how many threads a block has
    constants_apart = True
    launch: Launch
    in_threads: bool = False
    for_products: bool = False  # warpgroups multiply what threads write to shared memory
    after_products: bool = False  # the ring in which they do is over
    copies: bool = False  # the nest of threads around is asynchronous
    copied_at_once: bool = False  # some of them by loads and stores
    batches: bool = False  # threads wait for some of their batches of copies
    registers: int = 0  # with which threads begin, where warpgroups leave some to others
    shared: str = ""  # where the memory of a block begins
    # The threads that run what is written, and how many are before them along x.
    of_block: tuple[int, int, int] = (1, 1, 1)
    behind: int = 0
    # By the identity of its nest: what is copied by hardware; and the parameter that each map is.
    boxes: Mapping[int, TensorMapBox]
    maps: Mapping[TensorMap, str]


def set_launch(w: DeviceWriter) -> None:
    """Find grid, block and shared buffers of the function, and declare the shared memory. Its size
    is given at the launch; each buffer has a fixed place in it."""
    w.launch = launch_of(w.func)
    w.of_block = w.launch.block
    w.for_products = any(map(is_of_warpgroup, instructions_in(w.func)))
    w.batches = any(isinstance(s, Sync) and s.pending for s in walk_stmt(w.func.body))
    if not w.launch.shared:
        return
    name = f"@{w.func.name}$shared"
    align = max(BARRIER_BYTES, *(b.align for b in w.launch.shared))
    if w.launch.ring is None:
        align = max(b.align for b in w.launch.shared)
    w.messages.append(f"{name} = external addrspace(3) global [0 x i8], align {align}")
    base = w.line(f"addrspacecast ptr addrspace(3) {name} to ptr")
    w.shared = base
    for buffer, start in w.launch.places.items():
        place = w.line(f"getelementptr inbounds i8, ptr {base}, i64 {start}") if start else base
        w.state.buffers[buffer] = place


def thread_register(w: DeviceWriter, thread: str) -> str:
    """The index of this thread along `threadIdx.x` or the like, an int32, read once per function.
    Within a ring, producers along x are counted from the first producer."""
    kind, _, axis = thread.partition(".")
    root = w.state.scopes[0]
    register = root.memo.get(thread)
    if register is None:
        call = f"i32 @llvm.nvvm.read.ptx.sreg.{_REGISTERS[kind]}.{axis}()"
        w.declares.add(f"declare {call}")
        register = root.memo[thread] = w.line(f"call {call}", root)
    if w.behind and thread == THREAD_INDICES[0]:
        key = thread, w.behind
        if key not in root.memo:
            root.memo[key] = w.line(f"sub i32 {register}, {w.behind}", root)
        register = root.memo[key]
    return register


def _for(w: DeviceWriter, s: For) -> None:
    if s.kind != "thread":
        loops.STATEMENTS[For](w, s)
        return
    outermost = thread_of(s) in THREAD_INDICES and not w.in_threads
    if not outermost:
        _index(w, s)
        return
    w.in_threads = True
    mine = {thread_of(t) for t in walk_stmt(s)}
    sizes = zip(THREAD_INDICES, w.of_block, strict=True)
    axes = [i for i, size in sizes if i not in mine and size > 1]
    w.copies = is_asynchronous(s)
    _guarded(w, [f"icmp eq i32 {thread_register(w, i)}, 0" for i in axes], s)
    # Only waits for all but some batches need to know where a batch ends.
    if w.copies and w.batches:
        write_batch(w)
    w.in_threads = w.copies = False


def _guarded(w: DeviceWriter, conditions: list[str], s: For) -> None:
    """The nest of threads `s` under all conditions: that the indices which it leaves out are 0."""
    if not conditions:
        _index(w, s)
        return
    cond = w.line(conditions[0])
    for condition in conditions[1:]:
        cond = w.line(f"and i1 {cond}, {w.line(condition)}")
    with branch(w, cond):
        _index(w, s)


@contextmanager
def branch(w: DeviceWriter, cond: str) -> Iterator[None]:
    """Code that runs only where a condition holds, in a scope of its own."""
    yes, end = w.label(), w.label()
    with w.scope():
        w.emit(f"  br i1 {cond}, label %{yes}, label %{end}")
        with w.scope():
            w.enter(yes)
            yield
            w.emit(f"  br label %{end}")
    w.enter(end)


def _index(w: DeviceWriter, s: For) -> None:
    """The body of a loop whose variable is an index of the thread, with a branch if the loop has
    fewer iterations than the block has threads."""
    st, thread = w.state, thread_of(s)
    lo, extent = int_value(s.lo), int_value(s.extent)
    # An index that does not depend on the place in the program is computed at the top, and shared.
    depth = 0 if lo is not None else len(st.scopes) - 1
    scope = st.scopes[depth]
    key = ("index", thread, lo, s.var.dtype, w.behind)
    place = scope.memo.get(key) if depth == 0 else None
    if place is None:
        place = _converted(w, thread_register(w, thread), s, depth)
        if depth == 0:
            scope.memo[key] = place
    st.vars[s.var], st.depths[s.var] = place, depth
    kind, _, axis = thread.partition(".")
    whole = w.of_block["xyz".index(axis)]
    if kind == "blockIdx" or extent == whole:
        w.statement(s.body)
        return
    limit = index(w, s.extent)
    count = w.line(f"zext i32 {thread_register(w, thread)} to i64")
    with branch(w, w.line(f"icmp slt i64 {count}, {limit}")):
        w.statement(s.body)


def _converted(w: DeviceWriter, register: str, s: For, depth: int) -> str:
    """The value of the loop's variable: what the register holds, counted from the loop's start."""
    t, scope = llvm_type(s.var.dtype), w.state.scopes[depth]
    value = register
    if s.var.dtype.bits > INT32.bits:
        value = w.line(f"zext i32 {value} to {t}", scope)
    elif s.var.dtype.bits < INT32.bits:
        value = w.line(f"trunc i32 {value} to {t}", scope)
    if int_value(s.lo) != 0:
        lo = str(int_value(s.lo))
        if int_value(s.lo) is None:
            lo = convert(w, w.value(s.lo), s.lo.dtype, s.var.dtype)
        value = w.line(f"add nsw {t} {value}, {lo}", scope)
    return value


def _alloc(w: DeviceWriter, s: Alloc) -> None:
    """Shared buffers have their places already (`set_launch`); others are those of the CPU's
    emitter."""
    if s.buffer.scope == "shared":
        w.statement(s.body)
    else:
        memory.STATEMENTS[Alloc](w, s)


def _written_as_copy(w: DeviceWriter, s: Store | If) -> bool:
    """Write a statement as an asynchronous copy; False if it is not one, and nothing is written
    then."""
    if not w.copies or copy_of(s) is None:
        return False
    going_on = write_copy(w, s)
    w.copied_at_once = w.copied_at_once or not going_on
    return going_on


def _store(w: DeviceWriter, s: Store) -> None:
    if not _written_as_copy(w, s):
        memory.STATEMENTS[Store](w, s)


def _if(w: DeviceWriter, s: If) -> None:
    if not _written_as_copy(w, s):
        control.STATEMENTS[If](w, s)


def _sync(w: DeviceWriter, s: Sync) -> None:
    """A barrier: from here on other threads may have changed any memory."""
    if s.scope == "copies":
        write_wait(w, s.pending)
    if (
        w.for_products and not w.after_products
    ):  # what is copied is there for them after this fence too
        write_fence(w)
    write_barrier(w)


def write_barrier(w: DeviceWriter) -> None:
    """Wait for all threads of the block."""
    w.declares.add(f"declare void @{_BARRIER}(i32)")
    w.emit(f"  call void @{_BARRIER}(i32 0)")
    w.state.written(None)


def _prefetch(w: DeviceWriter, s: Prefetch) -> None:
    """A hint for CPUs."""


STATEMENTS: dict[type[Stmt], Callable[[Any, Any], None]] = {
    For: _for,
    Alloc: _alloc,
    Store: _store,
    If: _if,
    Sync: _sync,
    Prefetch: _prefetch,
}
