"""Strassen's products: register tiles of rows against panels of combined weights.

The program has its loops in their final order already; this schedule only unrolls and vectorizes
them. Threads share the panels. The program is in program.py.
"""

from __future__ import annotations

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.families.strassen.program import Parts, Strassen, parts_program, strassen_program
from tensorkiln.ops.strassen import PRODUCTS
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target

# Bytes of stack that the products of one panel may take.
_STACK = 900 << 10


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """strassen_linear and its elementwise epilogue, or strassen_parts. UnsupportedError where the
    operands do not suit either."""
    if group.main.op == "strassen_parts":
        return _schedule_parts(group, target, check)
    return _schedule_product(group, target, check)


def _schedule_product(group: Group, target: Target, check: bool) -> Schedule:
    """strassen_linear and its elementwise epilogue.

    Raises UnsupportedError if the operands are not packed in tiles and panels, if columns are no
    multiple of two panels, or if there are so many rows that the products exceed the stack.
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
    for role in ("term", "row", "vector"):
        for name in s.loops(role=role):
            s.unroll(name)
    s.set_scope("part", "register")
    if c.work > PARALLEL_WORK:
        share(s, s.loops(role="panel"))
    return s


def _schedule_parts(group: Group, target: Target, check: bool) -> Schedule:
    """The left operands of Strassen's products. UnsupportedError if these are not in tiles."""
    if group.out_type.layout is None:
        raise _unsupported(group)
    c = Parts(group, target)
    s = Schedule(parts_program(c), check=check)
    _lanes(s)
    if c.count * c.k * 4 > PARALLEL_WORK:
        share(s, s.loops(role="row"))
    return s


def _lanes(s: Schedule) -> None:
    for name in s.loops(role="lane"):
        s.vectorize(name)


def _unsupported(group: Group) -> UnsupportedError:
    return UnsupportedError(
        "Strassen's products need constant float32 weights of whole panels in each half, and a "
        f"constant number of rows, few enough for {_STACK} bytes of stack",
        where=group.name,
        hint="linear takes any operands; select_algorithms picks those that fit",
    )
