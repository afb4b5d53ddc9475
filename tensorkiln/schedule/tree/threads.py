"""Where programs for devices have memory that the threads of a block share."""

from __future__ import annotations

from tensorkiln.ir.stmt import THREAD_INDICES, Alloc, For, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.tree.errors import ScheduleError


def require_shared_by_block(f: PrimFunc, call: str) -> PrimFunc:
    """The function. ScheduleError if a shared buffer is allocated inside of a loop over threads: a
    block has one such buffer, which all of its threads use."""
    for s in walk_stmt(f.body):
        if not isinstance(s, For) or s.attrs.get("thread") not in THREAD_INDICES:
            continue
        for t in walk_stmt(s.body):
            if isinstance(t, Alloc) and t.buffer.scope == "shared":
                raise ScheduleError(
                    f"shared buffer {t.buffer.name!r} would be allocated inside of loop "
                    f"{s.var.name!r} over {s.attrs['thread']}",
                    where=call,
                    hint="allocate it around the loops over threadIdx, or make it local",
                )
    return f
