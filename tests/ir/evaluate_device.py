"""A direct evaluator of device functions, independent of the compiler's analyses.

The threads of a block run from one barrier to the next, in a given order; a thread runs all nests
of a phase before the next thread begins, or each nest is run by all threads before the next begins.
Both are legal, and so a program without races has the same result in all orders.

What threads touch is recorded as they run: two threads of a block that touch the same element of
shared or global memory in one phase, one of them for writing, are a race, and so are two blocks
that touch the same element of global memory, whenever that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorkiln.ir import expr as E
from tensorkiln.ir import stmt as S
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.launch import thread_of
from tensorkiln.ir.rings import producers_of
from tensorkiln.ir.visit import walk_stmt
from tests.ir.evaluate import LONGEST_WHILE, Machine
from tests.ir.numbers import Value

Index = tuple[int, int, int]
Nest = tuple[S.Stmt, dict[E.Var, Value]]
ORDERS = ("ascending", "descending", "shuffled", "by nest", "by nest, descending")


@dataclass(frozen=True)
class Race:
    """Two threads (or blocks) that touch an element, one of them for writing."""

    kind: str  # "race" or "blocks"
    buffer: str
    first: Index
    second: Index


@dataclass
class Cell:
    """Who read and wrote an element."""

    readers: set[Index] = field(default_factory=set)
    writers: set[Index] = field(default_factory=set)

    def other(self, who: Index, write: bool) -> Index | None:
        """Another who conflicts with this access."""
        against = self.readers | self.writers if write else self.writers
        return next((x for x in sorted(against) if x != who), None)

    def add(self, who: Index, write: bool) -> None:
        (self.writers if write else self.readers).add(who)


def launch(f: S.PrimFunc, arrays: Mapping[str, Any], order: str = "ascending") -> list[Race]:
    """Run a device function on arrays (and scalars) by parameter name; outputs are written in
    place. Returns the races. AssertionError for an index outside of its buffer."""
    machine = DeviceMachine(order)
    machine.function(f, [arrays[p.name] for p in f.params])
    return list(machine.races)


def run_host(
    mod: Mapping[str, Any], name: str, arrays: Mapping[str, Any], order: str
) -> list[Race]:
    """Run a program that launches device functions of a module."""
    machine = Launcher(mod, order)
    machine.function(mod[name], [arrays[p.name] for p in mod[name].params])
    return machine.found


class Launcher(Machine):
    """Runs launches: what split_device leaves of a program."""

    def __init__(self, mod: Mapping[str, Any], order: str):
        super().__init__(0, {}, mod, False)
        self.order, self.found = order, list[Race]()

    def stmt(self, s: S.Stmt) -> None:
        if not isinstance(s, S.CallKernel):
            super().stmt(s)
            return
        device = DeviceMachine(self.order)
        x, y, z = s.block
        device.grid, device.block = tuple(map(self.eval, s.grid)), (x, y, z)
        device.function(self.mod[s.name], [self.eval(a) for a in s.args])
        self.found += device.races


class DeviceMachine(Machine):
    def __init__(self, order: str):
        super().__init__(0, {}, {}, False)
        assert order in ORDERS
        self.order = order
        self.grid: tuple[Value, ...] = ()  # of the launch, if there is one
        self.block: Index = (1, 1, 1)
        self.blocks: dict[str, int] = {}
        self.thread: Index | None = None  # None: what all threads do together
        self.in_phase: dict[int, Cell] = {}
        self.in_launch: dict[int, Cell] = {}
        self.races: dict[Race, None] = {}

    def function(self, f: S.PrimFunc, given: list[Any]) -> None:
        extents = {"threadIdx.x": 1, "threadIdx.y": 1, "threadIdx.z": 1}
        for s in walk_stmt(f.body):
            if isinstance(s, S.For) and s.attrs.get("thread") in extents:
                index, extent = str(s.attrs["thread"]), E.int_value(s.extent)
                assert extent is not None
                extents[index] = max(extents[index], extent)
        # those who copy for a loop are behind all others
        extents["threadIdx.x"] += max(map(producers_of, walk_stmt(f.body)))
        block = tuple(extents.values())
        assert not self.grid or self.block == block, f"launched with {self.block}, has {block}"
        self.block = block  # type: ignore[assignment]
        super().function(f, given)

    # ---- blocks ------------------------------------------------------------------------------

    def stmt(self, s: S.Stmt) -> None:
        if self.thread is not None and isinstance(s, S.For):
            self._for(s)
        elif self.thread is not None:
            super().stmt(s)
        elif isinstance(s, S.For) and str(s.attrs.get("thread", "")).startswith("blockIdx"):
            self._blocks(s)
        else:
            self._block_runs(s)

    def _blocks(self, s: S.For) -> None:
        lo, extent, index = self.eval(s.lo), self.eval(s.extent), str(s.attrs["thread"])
        if self.grid:
            assert self.grid["xyz".index(index[-1])] == extent, f"{index}: {self.grid}"
        for k in self._ordered(range(max(extent, 0))):
            self.vars[s.var] = lo + k
            self.blocks[index] = k
            self.stmt(s.body)

    def _ordered(self, items: range) -> list[int]:
        found = list(items)
        if "descending" in self.order:
            found.reverse()
        elif self.order == "shuffled":
            self.rng.shuffle(found)
        return found

    def _block_runs(self, s: S.Stmt) -> None:
        """One block: phases, from one barrier to the next."""
        for b in {t.buffer for t in walk_stmt(s) if isinstance(t, S.Alloc)}:
            self.memory.pop(b, None)
        nests: list[Nest] = []
        for step in self._steps(s):
            if step is None:
                self._phase(nests)
                nests = []
            else:
                nests.append(step)
        self._phase(nests)

    def _steps(self, s: S.Stmt) -> Iterator[Nest | None]:
        """The nests that a block runs, each with the values of variables around it, and None for
        each barrier."""
        if isinstance(s, S.For) and s.kind == "thread":
            yield s, dict(self.vars)
        elif isinstance(s, S.Sync):
            yield None
        elif isinstance(s, S.Seq):
            for t in s.stmts:
                yield from self._steps(t)
        elif isinstance(s, S.For):
            lo, extent = self.eval(s.lo), self.eval(s.extent)
            for k in range(lo, lo + extent):
                self.vars[s.var] = k
                yield from self._steps(s.body)
        elif isinstance(s, S.If):
            branch = s.then if self.eval(s.cond) else s.orelse
            yield from () if branch is None else self._steps(branch)
        elif isinstance(s, S.While):
            for _ in range(LONGEST_WHILE):
                if not self.eval(s.cond):
                    return
                yield from self._steps(s.body)
            raise AssertionError("a while loop does not end")
        elif isinstance(s, S.Let):
            self.vars[s.var] = self.eval(s.value)
            yield from self._steps(s.body)
        elif isinstance(s, S.Alloc):
            if s.buffer not in self.memory:  # one memory for the whole block
                self._make(s.buffer)
            yield from self._steps(s.body)
        else:
            raise AssertionError(f"{type(s).__name__} for all threads")

    def _make(self, b: Buffer) -> None:
        shape = tuple(self.eval(d) for d in b.shape)
        poison = np.nan if b.dtype.is_float else 99
        self.memory[b] = np.full(shape, poison).astype(b.dtype.name)

    # ---- threads -----------------------------------------------------------------------------

    def _phase(self, nests: list[Nest]) -> None:
        threads = self._threads()
        if self.order.startswith("by nest"):
            steps = [(t, n) for n in nests for t in threads]
        else:
            steps = [(t, n) for t in threads for n in nests]
        before = dict(self.vars)
        for thread, (s, around) in steps:
            self.vars = dict(around)
            self.thread = thread
            missing = {*"xyz"} - {thread_of(t)[-1] for t in walk_stmt(s) if thread_of(t)}
            if not any(thread["xyz".index(axis)] for axis in missing):
                self.stmt(s)
        self.thread, self.vars = None, before
        self.in_phase = {}

    def _threads(self) -> list[Index]:
        x, y, z = self.block
        return [(k % x, k // x % y, k // (x * y)) for k in self._ordered(range(x * y * z))]

    def _for(self, s: S.For) -> None:
        if s.kind != "thread":
            steps = self.eval(s.lo), self.eval(s.extent)
            for k in range(steps[0], steps[0] + steps[1]):
                self.vars[s.var] = k
                self.stmt(s.body)
            return
        assert self.thread is not None
        mine = self.thread["xyz".index(str(s.attrs["thread"])[-1])]
        if mine < self.eval(s.extent):
            self.vars[s.var] = self.eval(s.lo) + mine
            self.stmt(s.body)

    def place(
        self, b: Buffer, indices: tuple[E.Expr, ...], write: bool = False
    ) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        array, index = super().place(b, indices, write)
        if b.scope in ("shared", "global"):
            start = array.__array_interface__["data"][0]
            for at in index:
                cell = start + sum(map(int.__mul__, at, array.strides))
                self._touch(b, cell, write)
        return array, index

    def _touch(self, b: Buffer, cell: int, write: bool) -> None:
        x, y, z = (self.blocks.get(f"blockIdx.{axis}", 0) for axis in "xyz")
        # what control flow outside of nests reads, each thread reads
        for who in self._threads() if self.thread is None else (self.thread,):
            self._note("race", b, self.in_phase.setdefault(cell, Cell()), who, write)
        if b.scope == "global":
            self._note("blocks", b, self.in_launch.setdefault(cell, Cell()), (x, y, z), write)

    def _note(self, kind: str, b: Buffer, cell: Cell, who: Index, write: bool) -> None:
        other = cell.other(who, write)
        if other is not None:
            self.races[Race(kind, b.name, *sorted((who, other)))] = None
        cell.add(who, write)
