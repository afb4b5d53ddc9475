"""Operators whose programs are scalar (trees, sorting, scattering), on a device: each thread runs
the program of a CPU for one row, one column or a few samples.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.families.coupled.schedule import coupled_program
from tensorkiln.families.forest.program import forest_program
from tensorkiln.families.scatter.schedule import scatter_program
from tensorkiln.families.top_k.schedule import top_k_program
from tensorkiln.ir.expr import IntImm, Var
from tensorkiln.schedule.build import around
from tensorkiln.schedule.gpu.grid import on_grid
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target

_PROGRAMS = {
    "top_k": lambda group: top_k_program(group, 1),
    "scatter": lambda group: scatter_program(group, 1),
    "tree_leaves": lambda group: forest_program(group, rows=False),
    "coupled": coupled_program,
}


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """The schedule of `top_k`, `scatter`, `tree_leaves` and `coupled`: each iteration of the outer
    loops is a thread."""
    assert group.anchor is not None
    f = _PROGRAMS[group.anchor.op](group)
    s = Schedule(replace(f, inplace=()), check)
    roles = ("row", "part", "chunk")
    nest = [n for n in s.loops() if s.role(n) in roles and _outermost(s, n, roles)]
    if not nest:
        body = around([(Var("one"), IntImm(1), "row")], f.body)
        s = Schedule(replace(f, body=body, inplace=()), check)
        nest = list(s.loops(role="row"))[:1]
    for name in s.loops(role="walk"):
        s.unroll(name)
    on_grid(s, nest, target)
    return s


def _outermost(s: Schedule, loop: str, roles: tuple[str, ...]) -> bool:
    """Whether only loops of these roles are around a loop, each with nothing else inside."""
    parent = s.parent(loop)
    while parent is not None:
        if s.role(parent) not in roles or len(s.children(parent)) != 1:
            return False
        parent = s.parent(parent)
    return True
