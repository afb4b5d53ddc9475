"""Query a tensor program: its loops and blocks by name."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import Block, For, PrimFunc, Stmt
from tensorkiln.ir.visit import substmts, walk_stmt
from tensorkiln.schedule.roles import role_of
from tensorkiln.schedule.tree.names import name_of
from tensorkiln.schedule.tree.normalise import normal
from tensorkiln.schedule.tree.program import open_at, open_block, open_loop, whole_steps


def loops(f: PrimFunc, role: str | None = None) -> tuple[str, ...]:
    """Names of all loops, or of those with a role; each before those inside it."""
    for_loops = (s for s in walk_stmt(normal(f).body) if isinstance(s, For))
    return tuple(s.var.name for s in for_loops if role is None or role_of(s) == role)


def role(f: PrimFunc, name: str) -> str:
    """The role of a loop; empty if it has none, and for a block."""
    return role_of(open_at(f, name, "role").stmt)


def blocks(f: PrimFunc) -> tuple[str, ...]:
    """Names of all blocks, in order."""
    return tuple(s.name for s in walk_stmt(normal(f).body) if isinstance(s, Block))


def loops_of(f: PrimFunc, block: str) -> tuple[str, ...]:
    """Names of the loops around a block, outermost first."""
    place, _ = open_block(f, block, "loops_of")
    return tuple(s.var.name for s in place.path if isinstance(s, For))


def parent(f: PrimFunc, name: str) -> str | None:
    """The nearest loop or block around `name`; None at the top."""
    around = [n for s in open_at(f, name, "parent").path[:-1] if (n := name_of(s)) is not None]
    return around[-1] if around else None


def children(f: PrimFunc, name: str) -> tuple[str, ...]:
    """The outermost loops and blocks inside `name`, in order."""
    return tuple(n for t in substmts(open_at(f, name, "children").stmt) for n in _outermost(t))


def _outermost(s: Stmt) -> tuple[str, ...]:
    name = name_of(s)
    if name is not None:
        return (name,)
    return tuple(n for t in substmts(s) for n in _outermost(t))


def loop(f: PrimFunc, name: str) -> For:
    """The loop of this name. ScheduleError if there is none."""
    return open_loop(f, name, "loop")[1]


def reaches(f: PrimFunc, loop: str, count: int) -> bool:
    """Whether a loop may run `count` times or more. False only if it certainly runs less often:
    then `split` by `count` with tail="peel" is refused."""
    place, s = open_loop(f, loop, "reaches")
    return int_value(whole_steps(place, s, count)) != 0


def block(f: PrimFunc, name: str) -> Block:
    """The block of this name. ScheduleError if there is none."""
    return open_block(f, name, "block")[1]
