"""Check whether a loop can be vectorized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorkiln.arith import Bounds, simplify
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import CallExtern, Expr, Var
from tensorkiln.ir.stmt import Alloc, Block, For, If, Let, Stmt, Store, While
from tensorkiln.ir.visit import free_vars, stmt_exprs, substitute, substmts, walk
from tensorkiln.schedule.tree.program import Place


def check_lanes(place: Place, s: For) -> None:
    """Raise ScheduleError where the iterations of a loop cannot be lanes of one vector."""
    bounds = place.bounds.with_loop(s.var, s.lo, s.extent)
    _Lanes(place, {s.var}).stmt(s.body, bounds, {})


class _Lanes:
    """Walks a body; `varying` are the variables that differ from lane to lane."""

    def __init__(self, place: Place, varying: set[Var]):
        self.at, self.varying = place, varying

    def stmt(self, s: Stmt, bounds: Bounds, values: Mapping[Var, Expr]) -> None:
        self.form(s, bounds, values)
        match s:
            case For(var, lo, extent):
                bounds = bounds.with_loop(var, lo, extent)
            case Block(_, iters):
                values = {**values, **{i.var: substitute(i.value, values) for i in iters}}
            case Let(var, value):
                if var.dtype.is_int and not any(isinstance(x, Load) for x in walk(value)):
                    values = {**values, var: substitute(value, values)}
                elif self.varies(value, bounds, values):
                    self.varying.add(var)
        for buffer, indices in _accesses(s):
            if any(e.dtype.lanes > 1 for e in indices):
                raise self.at.fail(
                    f"an access of {buffer.name!r} inside it has lanes already",
                    "vectorize a loop around scalars",
                )
            if sum(self.varies(e, bounds, values) for e in indices) > 1:
                text = f"it moves along two dimensions of {buffer.name!r} at once"
                raise self.at.fail(text, "vectorize a loop that moves along one")
        for t in substmts(s):
            self.stmt(t, bounds, values)

    def varies(self, e: Expr, bounds: Bounds, values: Mapping[Var, Expr]) -> bool:
        """Whether an expression differs from lane to lane."""
        e = substitute(e, values)
        if not self.varying.intersection(free_vars(e)):
            return False
        return bool(self.varying.intersection(free_vars(simplify(e, bounds))))

    def form(self, s: Stmt, bounds: Bounds, values: Mapping[Var, Expr]) -> None:
        """Raise ScheduleError for a statement that has no vector form."""
        fail = self.at.fail
        match s:
            case For(kind=kind) if kind not in ("serial", "unrolled"):
                raise fail(f"{s.var.name!r} inside it is {kind}", "vectorize the innermost loop")
            case For() if self.varies(s.lo, bounds, values) or self.varies(
                s.extent, bounds, values
            ):
                text = f"the range of {s.var.name!r} inside it depends on it"
                raise fail(text, "vectorize the inner loop")
            case If(cond) if self.varies(cond, bounds, values):
                raise fail("a condition inside it depends on it", 'split with tail="peel" instead')
            case Alloc(buffer):
                text = f"every lane would need its own {buffer.name!r}"
                raise fail(text, "vectorize loops inside the allocation")
        calls = any(isinstance(x, CallExtern) for e in stmt_exprs(s) for x in walk(e))
        if isinstance(s, While) or calls:
            text = "a while loop or a C call inside it has no vector form"
            raise fail(text, "vectorize a loop without it")


def _accesses(s: Stmt) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    if isinstance(s, Store):
        yield s.buffer, s.indices
    for e in stmt_exprs(s):
        for x in walk(e):
            if isinstance(x, Load):
                yield x.buffer, x.indices
