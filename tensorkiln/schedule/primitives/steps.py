"""The nodes of the order check: steps, when they run, and which memory they touch."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Var

UNORDERED = ("parallel", "vectorized", "thread")


@dataclass(frozen=True, slots=True)
class Loop:
    """One dimension of time: `dim` in set notation; a loop over a symbolic product has two."""

    name: str
    var: Var
    dim: str
    ordered: bool


@dataclass(frozen=True, slots=True)
class Access:
    """One place that a step reads or writes; an index of None is the whole dimension."""

    buffer: Buffer | str
    write: bool
    index: tuple[str | None, ...]
    conds: tuple[str, ...] = ()
    exists: tuple[str, ...] = ()
    update: str = ""  # the operation of an update, whose order does not matter
    own: tuple[Loop, ...] = ()  # each iteration of these has its own copy of the buffer
    home: Buffer | str = ""  # the buffer as it is called here; copies of code have copies of it


@dataclass(slots=True)
class Step:
    """A step: its name, loops and time, the conditions that hold, and what it touches."""

    name: str
    title: str
    time: tuple[int | Loop, ...]
    domain: tuple[str, ...]
    opaque: tuple[object, ...]  # conditions that the domain does not say
    identity: tuple[str | None, ...] | None  # values of iteration variables
    accesses: list[Access] = field(default_factory=list)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops around, outermost first."""
        return tuple(t for t in self.time if isinstance(t, Loop))


# The memory that is touched by what nothing may pass: a C call, an assertion.
BARRIER = "everything"
