"""The fused groups of small graphs, as the schedules get them."""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.pipeline import relax_passes
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target


def groups_of(mod: IRModule, target: Target) -> Iterator[Group]:
    """Every group of a module, after the passes that come before scheduling."""
    for p in relax_passes(target):
        if isinstance(p, LowerGroups):
            break
        mod = p(mod)
    for f in mod.functions:
        if isinstance(f, Function) and f.is_primitive and not f.external:
            yield Group(f, f.name, target)
