"""The basis of primitives: a function in normal form, opened at a named place.

at = open_at(f, "i", "split")        at.stmt is the loop, at.bounds what holds there
at.close(new)                        the function with the loop replaced
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from tensorkiln.arith import Bounds, prove, simplify
from tensorkiln.base.errors import nearest
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, Unary, Var, as_expr, binary, const, maximum
from tensorkiln.ir.stmt import Block, For, If, PrimFunc, Stmt
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.visit import free_vars, has_load, walk_stmt
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.names import name_of, namer, names
from tensorkiln.schedule.tree.normalise import keep_normal, normal
from tensorkiln.schedule.tree.surgery import path_to, put


@dataclass
class Place:
    """A named statement of a function: `path` leads from the function's body to it. `what` is the
    `where` of error messages."""

    func: PrimFunc
    path: tuple[Stmt, ...]
    what: str

    @property
    def stmt(self) -> Stmt:
        """The statement at this place."""
        return self.path[-1]

    @cached_property
    def name(self) -> Callable[[str], str]:
        """Gives a free name like its argument, taken from then on."""
        return namer(self.func)

    @cached_property
    def bounds(self) -> Bounds:
        """Ranges of the variables bound around this place, and the conditions that hold at it."""
        return bounds_of(self.func, self.path)

    def close(self, new: Stmt) -> PrimFunc:
        """The function with `new` in this place."""
        body = put(self.path, new)
        keep_normal(body)
        return replace(self.func, body=body)

    def fail(self, message: str, hint: str = "") -> ScheduleError:
        """The error of this primitive at this place, for the caller to raise."""
        return ScheduleError(message, where=self.what, hint=hint)


def open_at(f: PrimFunc, name: str, primitive: str) -> Place:
    """The place of a loop or block. Raises ScheduleError for unknown names."""
    f = normal(f)
    where = f"{primitive}({name!r})"
    path = path_to(f.body, name) if isinstance(name, str) else None
    if path is None:
        raise unknown(f, name, where)
    return Place(f, path, where)


def open_loop(f: PrimFunc, name: str, primitive: str) -> tuple[Place, For]:
    """The place of a loop, and the loop."""
    at = open_at(f, name, primitive)
    if not isinstance(at.stmt, For):
        raise at.fail(f"{name!r} is a block, expected a loop", _listed("loops", f))
    return at, at.stmt


def open_block(f: PrimFunc, name: str, primitive: str) -> tuple[Place, Block]:
    """The place of a block, and the block."""
    at = open_at(f, name, primitive)
    if not isinstance(at.stmt, Block):
        raise at.fail(f"{name!r} is a loop, expected a block", _listed("blocks", f))
    return at, at.stmt


def unknown(f: PrimFunc, name: object, where: str) -> ScheduleError:
    """The error for a name that no loop or block has."""
    found = list(names(f.body))
    if not isinstance(name, str):
        message = f"a loop or block is named by a string, not {type(name).__name__}"
        return ScheduleError(message, where=where, hint=_listed("names", f))
    near = nearest(name, found)
    listed = f"{f.name} has {', '.join(found) or 'neither'}"
    return ScheduleError(f"no loop or block {name!r}; {listed}", where=where, hint=near)


def _listed(kind: str, f: PrimFunc) -> str:
    wanted = {"loops": For, "blocks": Block}.get(kind, Stmt)
    named = (name_of(t) for t in walk_stmt(normal(f).body) if isinstance(t, wanted))
    return f"{kind}: {', '.join(n for n in named if n is not None)}"


def dims_of(f: PrimFunc) -> tuple[Var, ...]:
    """Symbolic dimensions of the parameters, in order of first appearance."""
    return tuple(dict.fromkeys(v for b in f.buffers for d in b.shape for v in free_vars(d)))


def bounds_of(f: PrimFunc, path: tuple[Stmt, ...]) -> Bounds:
    """What holds at the end of a path: symbolic dimensions are not negative, loop and iteration
    variables are in range, conditions that read no memory are true."""
    known = Bounds.dims(dims_of(f))
    for s, inner in pairwise(path):
        match s:
            case For(var, lo, extent):
                known = known.with_loop(var, lo, extent)
            case If(cond, then) if not has_load(cond):
                holds = cond if then is inner else simplify(Unary("not", cond), known)
                known = known.given(holds)
            case Block(_, iters):
                for i in iters:
                    known = known.with_loop(i.var, 0, i.extent)
    return known


def count_of(at: Place, s: For) -> Expr:
    """The number of iterations of a loop: its extent, or max(extent, 0) if that may be negative."""
    if prove(binary("ge", s.extent, 0), at.bounds):
        return s.extent
    return maximum(s.extent, const(0, s.extent.dtype))


def whole_steps(at: Place, s: For, step: ExprLike) -> Expr:
    """How many of a loop's iterations are in whole steps: 8 of 10, for steps of 4."""
    return simplify(count_of(at, s) // step * step, at.bounds)


def show(e: ExprLike) -> str:
    """An expression as text, for an error message."""
    return str(e.value) if isinstance(e, IntImm) else TirPrinter().expr(as_expr(e))
