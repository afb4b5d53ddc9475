"""Which parameters of a tensor program nothing writes to."""

from __future__ import annotations

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.stmt import MatchBuffer, PrimFunc, Store
from tensorkiln.ir.visit import walk_stmt


def only_read(func: PrimFunc) -> set[Buffer]:
    """The parameters that are inputs and that no statement writes to."""
    views: dict[Buffer, Buffer] = {}
    written: set[Buffer] = set()
    for s in walk_stmt(func.body):
        if isinstance(s, MatchBuffer):
            views[s.buffer] = s.source
        elif isinstance(s, Store):
            root = s.buffer
            while root in views:
                root = views[root]
            written.add(root)
    inputs = func.buffers[: len(func.buffers) - func.outputs]
    return {b for b in inputs if b not in written}
