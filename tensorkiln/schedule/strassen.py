"""Strassen's products: register tiles of rows against panels of combined weights.

The loops of a tile are written where they run, so what is left to say is which are unrolled and
which are vectors. Panels are the tasks of threads. The program is in strassen_program.py.
"""

from __future__ import annotations

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ops.strassen import PRODUCTS
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import is_role
from tensorkiln.schedule.strassen_program import Parts, Strassen, parts_program, strassen_program
from tensorkiln.target import Target

# What the products of one panel may take of the stack.
_STACK = 900 << 10


def schedule_strassen(group: Group, target: Target, check: bool = False) -> Schedule:
    """strassen_linear and its elementwise epilogue.

    Raises UnsupportedError where its operands do not lie in tiles and panels, or are too many rows.
    """
    assert group.anchor is not None
    parts, w = (a.type for a in group.anchor.args[:2])
    packed = parts.layout is not None and w.layout is not None  # type: ignore[union-attr]
    if not packed or group.out_type.layout is not None:
        raise _unsupported(group)
    c = Strassen(group, target)
    stack = (PRODUCTS * c.tiles * c.rows + c.chunk) * c.nr * c.dtype.bytes
    if c.n % (2 * c.nr) or stack > _STACK:
        raise _unsupported(group)
    s = Schedule(strassen_program(c), check=check)
    _lanes(s)
    for name in s.loops():
        if any(is_role(name, role) for role in ("k4", "row", "o")):
            s.unroll(name)
    s.set_scope("part", "register")
    if c.work > PARALLEL_WORK:
        s.parallel("panel")
    return s


def schedule_parts(group: Group, target: Target, check: bool = False) -> Schedule:
    """The left operands of Strassen's products; UnsupportedError where they do not lie in tiles."""
    if group.out_type.layout is None:
        raise _unsupported(group)
    c = Parts(group, target)
    s = Schedule(parts_program(c), check=check)
    _lanes(s)
    if c.count * c.k * 4 > PARALLEL_WORK and "row" in s.loops():
        s.parallel("row")
    return s


def _lanes(s: Schedule) -> None:
    for name in s.loops():
        if is_role(name, "l"):
            s.vectorize(name)


def _unsupported(group: Group) -> UnsupportedError:
    return UnsupportedError(
        "Strassen's products need constant float32 weights of whole panels in each half, and rows "
        "of known number",
        where=group.name,
        hint="linear takes any; select_strassen picks what fits",
    )
