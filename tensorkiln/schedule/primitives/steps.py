"""The nodes of the dependence check: steps, their execution times and their memory accesses."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Var

UNORDERED = ("parallel", "vectorized", "thread")


@dataclass(frozen=True, slots=True)
class Loop:
    """One dimension of time: `dim` as isl text. A loop over a symbolic product n * m has two.
    `ordered`: iterations run one after the other."""

    name: str
    var: Var
    dim: str
    ordered: bool


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a step, indices as isl text; an index of None is the whole dimension. `conds`:
    conditions on the access, `exists`: variables that are existential in them."""

    buffer: Buffer | str
    write: bool
    index: tuple[str | None, ...]
    conds: tuple[str, ...] = ()
    exists: tuple[str, ...] = ()
    update: str = ""  # the operation of an update, whose order does not matter
    own: tuple[Loop, ...] = ()  # loops each iteration of which has its own copy of the buffer
    home: Buffer | str = ""  # the allocation; copies of a nest have different ones


@dataclass(slots=True)
class Step:
    """A step. `name` is that of its original block, shared by the steps of all its copies; `title`
    is that of this copy, for messages. `domain`: the affine conditions under which it runs."""

    name: str
    title: str
    time: tuple[int | Loop, ...]
    domain: tuple[str, ...]
    opaque: tuple[object, ...]  # keys of the other conditions, which are not affine
    identity: tuple[str | None, ...] | None  # values of the block's iteration variables
    accesses: list[Access] = field(default_factory=list)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops around, outermost first."""
        return tuple(t for t in self.time if isinstance(t, Loop))


# The fictitious buffer that a C call or an assertion writes, so that no access is moved past it.
BARRIER = "everything"
