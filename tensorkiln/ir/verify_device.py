"""Verifier of programs for devices: loops over a grid, shared memory, barriers and launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.copies import ASYNCHRONOUS, other_than_copies
from tensorkiln.ir.device_instructions import (
    DEVICE_INSTRUCTIONS,
    SUBGROUP,
    WARP,
    WARP_THREADS,
    WARPGROUP,
    WARPGROUP_THREADS,
)
from tensorkiln.ir.expr import IntImm, Intrin, int_value
from tensorkiln.ir.hints import among
from tensorkiln.ir.launch import block_loops, thread_loops, thread_of
from tensorkiln.ir.malformed import Malformed, listed, step
from tensorkiln.ir.stmt import (
    BLOCK_INDICES,
    SYNC_SCOPES,
    THREAD_INDICES,
    THREADS,
    Alloc,
    CallKernel,
    For,
    If,
    Let,
    MatchBuffer,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Sync,
    While,
)
from tensorkiln.ir.visit import free_vars, has_load, stmt_exprs, substmts, walk, walk_stmt

_THREADS = {WARP: WARP_THREADS, WARPGROUP: WARPGROUP_THREADS}
_OUTSIDE = "outside of the loops over threadIdx"
_SPREAD = ("parallel", "vectorized")  # iterations that do not all run in one thread of a CPU


class DeviceNest:
    """The loops around the current place of a traversal that are bound to a device's indices."""

    def __init__(self) -> None:
        self._loop_names: dict[str, str] = {}  # index -> name of the loop that is bound to it
        self._spread: list[For] = []

    @contextmanager
    def loop(self, s: For) -> Iterator[None]:
        """Enter the body of a loop. Raise Malformed if it is bound where it cannot be."""
        if s.kind in _SPREAD:
            self._spread.append(s)
            yield
            self._spread.pop()
            return
        thread = str(s.attrs.get("thread", ""))
        if s.attrs.get(ASYNCHRONOUS):
            _check_copies(s, thread)
        if not thread:
            yield
            return
        self._check(s, thread)
        self._loop_names[thread] = s.var.name
        yield
        del self._loop_names[thread]

    def _check(self, s: For, thread: str) -> None:
        if thread not in THREADS:
            raise Malformed(f"no index {thread!r} of a device's grid", among(thread, THREADS))
        if thread in self._loop_names:
            message = f"loop {self._loop_names[thread]} around it is bound to {thread} too"
            raise Malformed(message, "bind it to another index, or fuse the two loops")
        if thread in BLOCK_INDICES and self._threads():
            message = f"a loop over {thread} inside of one over {self._threads()[0]}"
            raise Malformed(message, "loops over blockIdx are the outer ones")
        if self._spread:
            around = self._spread[-1]
            message = f"a loop over {thread} inside of one that is {around.kind}"
            raise Malformed(message, f"make {around.var.name} serial, or bind it")
        if thread in THREAD_INDICES and (int_value(s.extent) or 0) < 1:
            message = f"the number of iterations over {thread} is {s.extent!r}"
            raise Malformed(message, "blocks have a constant number of threads, 1 or more")

    def alloc(self, b: Buffer) -> None:
        """Raise Malformed if a shared buffer is allocated where it cannot be."""
        if b.scope != "shared":
            return
        self._in_block(f"shared buffer {b.name} is allocated")
        if any(int_value(e) is None for e in (*b.shape, *(b.strides_given or ()))):
            hint = "a number for each extent, or scope 'global'"
            raise Malformed("a shared buffer needs constant extents", hint)

    def sync(self, s: Sync) -> None:
        """Raise Malformed if a barrier stands where not all threads of a block reach it."""
        if s.scope not in SYNC_SCOPES:
            message = f"no threads {s.scope!r} that wait for each other"
            raise Malformed(message, among(s.scope, SYNC_SCOPES))
        if s.pending < 0 or (s.pending and s.scope != "copies"):
            message = f"a barrier of scope {s.scope!r} that leaves {s.pending} batches of copies"
            raise Malformed(message, "0, or more for scope 'copies'")
        self._in_block("a barrier stands")

    def _in_block(self, construct: str) -> None:
        """Raise Malformed unless the place is that of a whole block of threads."""
        hint = f"it belongs inside of a loop over blockIdx, and {_OUTSIDE}"
        if self._threads():
            index = self._threads()[0]
            raise Malformed(
                f"{construct} inside of loop {self._loop_names[index]} over {index}", hint
            )
        if self._spread:
            around = self._spread[-1]
            place = f"inside of loop {around.var.name}, which is {around.kind}"
            raise Malformed(f"{construct} {place}", hint)
        if not self._loop_names:
            raise Malformed(f"{construct} outside of the loops over blockIdx", hint)

    def _threads(self) -> list[str]:
        return [index for index in self._loop_names if index in THREAD_INDICES]


def _check_copies(s: For, thread: str) -> None:
    """Raise Malformed unless an asynchronous loop is a nest of threads that only copy."""
    if thread not in THREAD_INDICES:
        message = f"loop {s.var.name} is asynchronous, and no nest over threadIdx"
        raise Malformed(message, "copies of single threads may be asynchronous")
    stmt = next(other_than_copies(s), None)
    if stmt is not None:
        subject = f"a {type(stmt).__name__}"
        if isinstance(stmt, Store):
            subject = f"the store to {stmt.buffer.name}"
        raise Malformed(
            f"{subject} in loop {s.var.name}, which is asynchronous, is no copy",
            "copies store elements of global memory, or zeros, to shared memory",
        )


def check_launch(s: CallKernel) -> None:
    """Raise Malformed unless a call has three extents each for grid and block, or neither, and the
    number of threads of a block is constant."""
    if not s.grid and not s.block:
        return
    for name, extents in (("grid", s.grid), ("block", s.block)):
        if len(extents) != 3:
            message = f"{name} has {len(extents)} extents"
            raise Malformed(message, "a launch has grid=(x, y, z) and block=(x, y, z)")
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in s.block):
        message = f"a block of {listed(map(repr, s.block))} threads"
        raise Malformed(message, "numbers, 1 or more")


def check_instruction(e: Intrin) -> None:
    """Raise Malformed if a device instruction reads memory that its row of the table has not, or if
    its sub-groups have no constant size."""
    row = DEVICE_INSTRUCTIONS[e.name]
    for k, scopes in row.memory.items():
        a = e.args[k]
        if not isinstance(a, Load) or a.buffer.scope not in scopes:
            message = f"operand {k} of {e.name} is no load from {' or '.join(scopes)} memory"
            raise Malformed(message, "the instruction reads memory: give it the load itself", e)
    if row.participants == SUBGROUP:
        last = e.args[-1]
        size = last.value if isinstance(last, IntImm) else 0
        if size < 1 or size & (size - 1):
            message = f"{e.name} over a sub-group of {last!r} threads"
            raise Malformed(message, "a literal power of two: the target's thread_warp_size", e)


def _check_participants(nest: Stmt) -> None:
    """Raise Malformed if an instruction of several threads stands where not all of them come by."""
    loops, body = thread_loops(nest)
    along_x = next((s for s in loops if thread_of(s) == THREAD_INDICES[0]), None)
    threads = 1 if along_x is None else int_value(along_x.extent) or 1
    _check_all_there(body, threads, "")


def _check_all_there(s: Stmt, threads: int, apart: str) -> None:
    """Check the instructions of a statement that `threads` along x run; `apart`: what around it
    some of them may not run."""
    for row, size, group in _of_several(s):
        if apart:
            message = f"{row} stands in {apart}, which some threads of a {group} may not run"
            raise Malformed(message, "compute it before, and use the result there")
        if threads % size:
            message = f"{row} over {size} threads in a nest of {threads} along x"
            raise Malformed(message, f"a multiple of the {group}")
    if isinstance(s, If | While):
        apart = apart or ("a branch" if isinstance(s, If) else "a while loop")
    if isinstance(s, For) and (int_value(s.lo) is None or int_value(s.extent) is None):
        apart = apart or f"loop {s.var.name} of no constant length"
    for t in substmts(s):
        _check_all_there(t, threads, apart)


def _of_several(s: Stmt) -> Iterator[tuple[str, int, str]]:
    """The instructions of several threads in the expressions of a statement: with how many, and
    what these are."""
    for x in (x for e in stmt_exprs(s) for x in walk(e)):
        row = DEVICE_INSTRUCTIONS.get(x.name) if isinstance(x, Intrin) else None
        if isinstance(x, Intrin) and row is not None and row.participants == SUBGROUP:
            yield x.name, int_value(x.args[-1]) or 1, "sub-group"
        elif isinstance(x, Intrin) and row is not None and row.participants in _THREADS:
            yield x.name, _THREADS[row.participants], row.participants


# What all threads of a block go through together.
_TOGETHER = (Alloc, For, If, Let, MatchBuffer, Seq, Sync, While)


def check_device_function(f: PrimFunc) -> None:
    """Raise Malformed if a device function is not one launch nest, as `ir/launch.py` describes."""
    loops, body = block_loops(f.body)
    if not loops:
        hint = "one block is a loop over blockIdx.x of extent 1"
        raise Malformed(f"device function {f.name} begins with no loop over blockIdx", hint)
    block_vars = {s.var for s in loops}
    for s in loops:
        if has_load(s.extent) or not block_vars.isdisjoint(free_vars(s.extent)):
            message = f"the number of blocks along {thread_of(s)} depends on what is inside"
            with step(f".for({s.var.name})"):
                raise Malformed(message, "a number, or an expression of scalar parameters")
    _check_together(body)


def _check_together(s: Stmt) -> None:
    """Check a statement that all threads of a block go through."""
    index = thread_of(s)
    if index in THREAD_INDICES:
        for t in walk_stmt(thread_loops(s)[1]):
            if isinstance(t, CallKernel):
                raise Malformed("a device function calls another", "its body belongs here")
            if thread_of(t):
                message = f"a loop over {thread_of(t)} stands apart from those around it"
                hint = "loops over threadIdx stand one directly inside the other"
                raise Malformed(message, hint)
        _check_participants(s)
        return
    if index:
        message = f"a loop over {index} is not one of the outermost loops"
        raise Malformed(message, "the loops over blockIdx stand one directly inside the other")
    if isinstance(s, Alloc) and s.buffer.scope == "global":
        message = f"global buffer {s.buffer.name} is allocated for a whole block"
        hint = "a block has shared buffers; local ones and registers are each thread's own"
        raise Malformed(message, hint)
    if not isinstance(s, _TOGETHER):
        message = f"{type(s).__name__} {_OUTSIDE}: all threads would run it"
        raise Malformed(message, "a loop over threadIdx.x of extent 1 is one thread")
    for t in substmts(s):
        _check_together(t)
