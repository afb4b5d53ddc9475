"""The variables and buffers that the body of a parallel loop uses from the function around it. The
body becomes a function of its own, which gets them in a struct.
"""

from __future__ import annotations

from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import Var
from tensorkiln.ir.stmt import MatchBuffer, Prefetch, Stmt, Store
from tensorkiln.ir.visit import distinct_exprs, walk, walk_stmt


def used_in(s: Stmt) -> set[Buffer | Var]:
    """Buffers and variables a statement mentions."""
    variables: set[Var] = set()
    buffers: set[Buffer] = set()
    for t in walk_stmt(s):
        if isinstance(t, (Store, Prefetch)):
            buffers.add(t.buffer)
        elif isinstance(t, MatchBuffer):
            buffers |= {t.buffer, t.source}
    for x in distinct_exprs(s):
        if isinstance(x, Var):
            variables.add(x)
        elif isinstance(x, (Load, AddressOf)):
            buffers.add(x.buffer)
    return {*variables, *buffers, *(v for b in buffers for v in _sizes(b))}


def _sizes(b: Buffer) -> set[Var]:
    """The variables in the shape and strides of a buffer."""
    sizes = (*b.shape, *(b.strides_given or ()))
    return {x for d in sizes for x in walk(d) if isinstance(x, Var)}
