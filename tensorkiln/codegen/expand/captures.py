"""What the body of a parallel loop needs of the function around it."""

from __future__ import annotations

from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import Var
from tensorkiln.ir.stmt import MatchBuffer, Prefetch, Stmt, Store
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt


def used_in(s: Stmt) -> set[Buffer | Var]:
    """Buffers and variables a statement mentions."""
    used: set[Buffer | Var] = set()
    for t in walk_stmt(s):
        if isinstance(t, (Store, Prefetch)):
            used |= _of_buffer(t.buffer)
        elif isinstance(t, MatchBuffer):
            used |= _of_buffer(t.buffer) | _of_buffer(t.source)
        for e in stmt_exprs(t):
            for x in walk(e):
                if isinstance(x, Var):
                    used.add(x)
                elif isinstance(x, Load | AddressOf):
                    used |= _of_buffer(x.buffer)
    return used


def _of_buffer(b: Buffer) -> set[Buffer | Var]:
    """A buffer, and the variables in its shape and strides."""
    sizes = (*b.shape, *(b.strides_given or ()))
    return {b, *(x for d in sizes for x in walk(d) if isinstance(x, Var))}
