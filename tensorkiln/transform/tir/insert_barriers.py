"""Insert the barriers that device functions need, and no others.

    for t in T.thread_binding(32, thread="threadIdx.x"):
        tile[t] = X[b, t]
                                                                  ->  T.sync("block")
    for t in T.thread_binding(32, thread="threadIdx.x"):
        Y[b, t] = tile[31 - t]

A barrier is needed where a thread accesses an element of shared or global memory that another
thread of its block accesses later, and one of the two accesses is a write: between nests over
threadIdx, or from one iteration of a loop around them to the next. Each such dependence can be
satisfied by a barrier in any of the gaps on the path (`transform/device/phases.py`). Barriers are
placed at the gaps that are executed least often (`transform/device/hitting_set.py`); barriers of
the program count. Where a dependence cannot be excluded, it is assumed.

If the first access is an asynchronous copy (`ir/copies.py`), the barrier must also wait for copies.
It leaves as many of the last batches in flight as no dependence needs yet.

Threads that conflict within one nest cannot be separated by a barrier: `check_races` reports them.

Needs: split_device, and allocate_shared: a shared buffer has one memory in all rounds of a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.base.errors import UserError
from tensorkiln.base.text import listed
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc, Stmt
from tensorkiln.transform.device.conflicts import Conflicts, Meeting
from tensorkiln.transform.device.hitting_set import cheapest
from tensorkiln.transform.device.phases import BlockPhases, Point, waited

_MOST_PENDING = 8  # batches of copies that may be in flight after a barrier

# How many iterations a loop is assumed to have when the costs of barriers are compared.
_ROUNDS = 16


def insert_barriers(mod: IRModule) -> IRModule:
    """Insert barriers into every device function that needs some."""
    return mod.map_bodies(with_barriers)


def require_barriers(mod: IRModule) -> None:
    """Raise UserError (code `barriers`) that names the device functions of a lowered module that
    lack barriers: their results would depend on which thread comes first."""
    lacking = [f.name for f in mod.prim_funcs if with_barriers(f) is not f]
    if lacking:
        raise UserError(
            f"threads of {listed(lacking, 4)} read what others write, with no barrier in between",
            code="barriers",
            where="tir_pipeline",
            hint="insert_barriers goes behind async_copies, as in pipeline.tir_passes",
        )


def with_barriers(f: PrimFunc) -> PrimFunc:
    """A device function with the barriers that it needs; `f` itself if it needs none, or is another
    function."""
    if not f.is_device:
        return f
    conflicts = Conflicts(f)
    costs = _costs(conflicts.phases)
    ways = [w for w in conflicts.meetings() if w.sure]
    late, ordinary = (_needed(conflicts, ways, is_late) for is_late in (True, False))
    points = dict.fromkeys(cheapest(_least([*late, *ordinary]), costs), "block")
    points.update(dict.fromkeys(cheapest([gaps & points.keys() for gaps in late], costs), "copies"))
    if not points:
        return f
    new_function = _with_body(f, conflicts, conflicts.phases.with_barriers(points))
    return _relaxed(new_function) if "copies" in points.values() else new_function


def _with_body(f: PrimFunc, conflicts: Conflicts, body: Stmt) -> PrimFunc:
    for loop in reversed(conflicts.of.launch.loops):
        body = replace(loop, body=body)
    return replace(f, body=body)


def _relaxed(f: PrimFunc) -> PrimFunc:
    """The function whose barriers for copies leave as many batches in flight as no dependence needs
    yet."""
    conflicts = Conflicts(f)
    if conflicts.parts <= 2:  # only the copies of one round are in flight
        return f
    ways = (w for w in conflicts.from_copies() if not w.at_once)
    needs = [w.sure_events for w in ways if conflicts.may_conflict(w)]
    pending = conflicts.phases.pending()
    for point in pending:
        for count in range(_MOST_PENDING, 0, -1):
            if all(waited(pieces, {**pending, point: count}) for pieces in needs):
                pending[point] = count
                break
    if not any(pending.values()):
        return f
    return _with_body(f, conflicts, conflicts.phases.with_pending(pending))


def _needed(conflicts: Conflicts, ways: Sequence[Meeting], late: bool) -> list[frozenset[Point]]:
    """For each dependence that no barrier satisfies yet, the gaps one of which must get one.
    `late`: those of asynchronous copies, else all others."""
    if late and not conflicts.any_late:
        return []
    if late:
        pending = conflicts.phases.pending()
        ways = [w for w in ways if not waited(w.sure_events, pending)]
    else:
        barriers = conflicts.phases.barriers()
        ways = [w for w in ways if not w.sure & barriers]
    conflict_sets: set[frozenset[Point]] = set()
    # A set that contains another is hit whenever that one is, so isl need not be asked about it.
    for path in sorted(ways, key=lambda w: len(w.sure)):
        if any(s <= path.sure for s in conflict_sets):
            continue
        if conflicts.any_conflict(path, late):
            conflict_sets.add(path.sure)
    return [s for s in dict.fromkeys(w.sure for w in ways) if s in conflict_sets]


def _least(sets: Sequence[frozenset[Point]]) -> list[frozenset[Point]]:
    """The sets that contain no other set: the others are hit whenever these are."""
    distinct_sets = dict.fromkeys(sets)
    return [s for s in distinct_sets if not any(subset < s for subset in distinct_sets)]


def _costs(phases: BlockPhases) -> dict[Point, int]:
    """How often a barrier in each gap would be executed."""
    return {
        Point(s.number, k): _ROUNDS**s.loops
        for s in phases.sequences
        for k in range(len(s.stmts), -1, -1)
    }


__all__ = ["insert_barriers", "require_barriers", "with_barriers"]
