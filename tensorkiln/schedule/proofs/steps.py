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
class StepAccess:
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
class ProgramStep:
    """A step. `name` is that of its original block, shared by the steps of all its copies; `title`
    is that of this copy, for messages. `domain`: the affine conditions under which it runs."""

    name: str
    title: str
    time: tuple[int | Loop, ...]
    domain: tuple[str, ...]
    opaque: tuple[object, ...]  # keys of the other conditions, which are not affine
    identity: tuple[str | None, ...] | None  # values of the block's iteration variables
    accesses: list[StepAccess] = field(default_factory=list)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops around, outermost first."""
        return tuple(t for t in self.time if isinstance(t, Loop))


# The fictitious buffer that a C call or an assertion writes, so that no access is moved past it.
BARRIER = "everything"


@dataclass(frozen=True, slots=True)
class Pair:
    """Access `m` of step `a` and access `n` of step `b`, which may be dependent in the order a, b;
    a2, m2, b2 and n2 are the same steps and accesses after the transformation."""

    a: ProgramStep
    m: StepAccess
    b: ProgramStep
    n: StepAccess
    a2: ProgramStep
    m2: StepAccess
    b2: ProgramStep
    n2: StepAccess

    @property
    def updates(self) -> bool:
        """Whether both are updates of one block by the same operation."""
        return bool(self.m.update) and self.m.update == self.n.update and self.a.name == self.b.name

    @property
    def flow(self) -> bool:
        """Whether this is a flow dependence: the second reads or updates what the first writes."""
        return self.m.write and (not self.n.write or bool(self.n.update))

    @property
    def moved(self) -> bool:
        """Whether the copy of a buffer that an access refers to is determined by other loops than
        before. A buffer that is allocated in a loop has a copy per iteration."""
        return (copies_of(self.m), copies_of(self.n)) != (copies_of(self.m2), copies_of(self.n2))


def copies_of(m: StepAccess) -> tuple[object, ...]:
    """What determines the copy of a buffer that an access refers to."""
    return (m.home, *sorted(loop.dim for loop in m.own))
