"""Prove that threads of device functions do not disturb each other, and stay within their buffers.

For each device function it is proved that

- no two threads of a block access the same element of shared or global memory, one of them for
  writing, unless a barrier lies between;
- no two blocks access the same element of global memory, one of them for writing;
- every access is within its buffer.

What is wrong is a fault, with the element, the statements, and the threads for which it happens:

    s[0] is written by `s[t] = X[b, t]` in thread (0, 0, 0) and read by `Y[b, t] = s[3 - t]` in
    thread (3, 0, 0) of block (0, 0, 0) with no barrier in between (n = 1)

What cannot be proved, such as where an index is loaded from memory, is a doubt. `check_races`
raises a UserError for the first fault and warns of doubts (UnprovedWarning); `races_of` gives all
of them, and notes about accesses that are slow (`transform/device/lanes.py`). All operands of an
expression are computed, so only an `if` guards an access, not a `select`.

It runs on programs of users and kernels of other packages; tests prove the compiler's own.

Needs: split_device; insert_barriers for programs from schedules.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import BLOCK_INDICES, PrimFunc
from tensorkiln.ir.text.printer import print_expr
from tensorkiln.ir.visit import has_load
from tensorkiln.kernels.folders import built_in_families
from tensorkiln.transform.device.accesses import DeviceAccess, line_of
from tensorkiln.transform.device.conflicts import Conflict, Conflicts, Meeting, Values
from tensorkiln.transform.device.lanes import SlowAccess, slow_accesses
from tensorkiln.transform.device.phases import waited

Index = tuple[int, int, int]
_NAME = re.compile(r"\w+")  # in isl's text of an index


class UnprovedWarning(UserWarning):
    """A device function was compiled without proof that its threads do not disturb each other."""


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """A statement in one thread of one block."""

    statement: str
    write: bool
    block: Index
    thread: Index


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind`: "race" (two threads of a block), "copy" (an asynchronous copy and what its block does
    before it waits), "blocks" (two blocks) or "bounds" (`second` is None). `sizes`: values of
    symbolic sizes for which it happens."""

    kind: str
    kernel: str
    buffer: str
    element: tuple[int, ...]
    first: ThreadPlace
    second: ThreadPlace | None
    sizes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        a, b = self.first, self.second
        cell = f"{self.buffer}[{', '.join(map(str, self.element))}]"
        sizes = ", ".join(f"{k} = {v}" for k, v in self.sizes)
        tail = f" ({sizes})" if sizes else ""
        text = f"{cell} is {_done(a)} by `{a.statement}` in thread {a.thread}"
        if b is None:
            return f"{text} of block {a.block}, outside of its buffer{tail}"
        second_access = f"{_done(b)} by `{b.statement}` in thread {b.thread}"
        if self.kind == "blocks":
            return f"{text} of block {a.block} and {second_access} of block {b.block}{tail}"
        lack = "no wait for copies" if self.kind == "copy" else "no barrier"
        return f"{text} and {second_access} of block {a.block} with {lack} in between{tail}"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that could not be proved; `kind` and statements as in a fault."""

    kind: str
    kernel: str
    buffer: str
    first: str
    second: str

    def __str__(self) -> str:
        if self.kind == "bounds":
            return f"cannot prove that `{self.first}` stays within {self.buffer}"
        who = "blocks" if self.kind == "blocks" else "threads"
        return (
            f"cannot prove that {who} access different elements of {self.buffer} in "
            f"`{self.first}` and `{self.second}`"
        )


@dataclass(frozen=True, slots=True)
class Races:
    """What `races_of` found in one device function."""

    faults: tuple[Fault, ...]
    doubts: tuple[Doubt, ...]
    notes: tuple[SlowAccess, ...]

    @property
    def proved(self) -> bool:
        """Whether there are neither faults nor doubts."""
        return not self.faults and not self.doubts


@dataclass(frozen=True, slots=True)
class CheckRaces:
    """`scheduled`: whether to check kernels of the compiler's own schedules too, which takes a
    second for some. Those of each family are proved once, by tests."""

    scheduled: bool = False

    def __call__(self, mod: IRModule) -> IRModule:
        """Check device functions; the module is returned as it is. Raises as `check_races`."""
        for f in mod.prim_funcs:
            if self.scheduled or f.op_class not in _scheduled():
                _require_proved(f)
        return mod


@cache
def _scheduled() -> frozenset[str]:
    """The classes of kernels that schedules of this package make for devices."""
    return frozenset(row.op_class for row in built_in_families() if "cpu" not in row.devices)


def check_races(mod: IRModule) -> IRModule:
    """Check every device function; the module is returned as it is.

    Raises UserError (code `device-race`, or `out-of-bounds`) with the first fault.
    """
    return CheckRaces(scheduled=True)(mod)


def _require_proved(f: PrimFunc) -> None:
    """Raise UserError for the first fault of a device function, and warn of its doubts."""
    if f.is_device:
        races = races_of(f, notes=False)
        for fault in races.faults:
            tail = f"; {len(races.faults) - 1} more" if len(races.faults) > 1 else ""
            is_race = fault.kind != "bounds"
            hint = "threads that share memory need a barrier in between: insert_barriers"
            if fault.kind == "blocks":
                hint = "give each block elements of its own"
            raise UserError(
                f"{fault}{tail}",
                code="device-race" if is_race else "out-of-bounds",
                where=f.name,
                hint=hint if is_race else "an `if` around the access leaves these out",
            )
        for doubt in races.doubts:
            warnings.warn(f"{f.name}: {doubt}", UnprovedWarning, stacklevel=2)


def races_of(f: PrimFunc, notes: bool = True) -> Races:
    """All faults and doubts of a device function, and with `notes` what is slow."""
    check = _RaceCheck(f)
    check.run()
    slow = tuple(slow_accesses(check.conflicts.of)) if notes else ()
    faults, doubts = tuple(check.faults), tuple(check.doubts)
    return Races(faults, doubts, slow)


class _RaceCheck:
    """Collects the faults and doubts of one device function, each pair of statements once."""

    def __init__(self, f: PrimFunc):
        self.f, self.conflicts = f, Conflicts(f)
        self.faults: dict[Fault, None] = {}
        self.doubts: dict[Doubt, None] = {}
        self.fault_keys: set[tuple[object, ...]] = set()

    def run(self) -> None:
        for conflict in self._outside():
            self._add("bounds", conflict, not self._depends_on_data(conflict.m))
        barriers = self.conflicts.phases.barriers()
        for path in self.conflicts.meetings():
            if not path.sure & barriers:
                self._on_the_way(path, False, not path.maybe & barriers)
        pending = self.conflicts.phases.pending()
        for path in self.conflicts.from_copies():
            if not waited(path.sure_events, pending):
                self._on_the_way(path, True, not waited(path.maybe_events, pending))
        for conflict in self.conflicts.of_blocks():
            self._add("blocks", conflict, True)

    def _outside(self) -> Iterator[Conflict]:
        for accesses in self.conflicts.of.accesses.values():
            for m in accesses:
                conflict = self.conflicts.outside(m)
                if conflict is not None:
                    yield conflict

    def _depends_on_data(self, m: DeviceAccess) -> bool:
        """Whether an index of an access is computed from numbers in memory: of these callers may
        know that they are within bounds."""
        loaded = {name for e, name in self.conflicts.text.params.items() if has_load(e)}
        return any(loaded & set(_NAME.findall(index)) for index in m.index if index is not None)

    def _on_the_way(self, path: Meeting, late: bool, certain: bool) -> None:
        for conflict in self.conflicts.conflicts(path, late):
            self._add("copy" if late else "race", conflict, certain)

    def _add(self, kind: str, c: Conflict, certain: bool) -> None:
        sure = certain and c.certain and c.values is not None
        key = (kind, sure, c.m.home, *sorted((id(c.m.stmt), id(c.n.stmt))))
        if key in self.fault_keys:
            return
        self.fault_keys.add(key)
        name = c.m.buffer.name
        if not sure or c.values is None:
            self.doubts[Doubt(kind, self.f.name, name, line_of(c.m.stmt), line_of(c.n.stmt))] = None
            return
        element = tuple(self._value(i, "x", c.values) for i in c.m.index)
        second = None if kind == "bounds" else self._place(c.n, "y", c.values)
        first = self._place(c.m, "x", c.values)
        sizes = tuple(self._sizes(c.values))
        self.faults[Fault(kind, self.f.name, name, element, first, second, sizes)] = None

    def _place(self, m: DeviceAccess, letter: str, values: Values) -> ThreadPlace:
        dims = [self.conflicts.of.blocks.get(index) for index in BLOCK_INDICES]
        block = [0 if d is None else self._value(d, letter, values) for d in dims]
        thread = [self._value(t, letter, values) for t in m.threads]
        return ThreadPlace(line_of(m.stmt), m.write, _three(block), _three(thread))

    def _value(self, text: str | None, letter: str, values: Values) -> int:
        assert text is not None
        return self.conflicts.value(text, letter, values)

    def _sizes(self, values: Values) -> Iterator[tuple[str, int]]:
        for e, name in self.conflicts.text.params.items():
            yield e.name if isinstance(e, Var) else print_expr(e), values[name]


def _three(values: list[int]) -> Index:
    x, y, z = values
    return x, y, z


def _done(place: ThreadPlace) -> str:
    return "written" if place.write else "read"


__all__ = [
    "CheckRaces",
    "Doubt",
    "Fault",
    "Races",
    "ThreadPlace",
    "UnprovedWarning",
    "check_races",
    "races_of",
]
