"""The basis of primitives: a function in normal form, opened at a named place.

place = open_at(f, "i", "split")     place.stmt is the loop, place.bounds what holds there
place.close(new)                     the function with the loop replaced
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
    call = f"{primitive}({name!r})"
    path = path_to(f.body, name) if isinstance(name, str) else None
    if path is None:
        raise unknown(f, name, call)
    return Place(f, path, call)


def open_loop(f: PrimFunc, name: str, primitive: str) -> tuple[Place, For]:
    """The place of a loop, and the loop."""
    place = open_at(f, name, primitive)
    if not isinstance(place.stmt, For):
        raise place.fail(f"{name!r} is a block, expected a loop", _listed("loops", f))
    return place, place.stmt


def open_block(f: PrimFunc, name: str, primitive: str) -> tuple[Place, Block]:
    """The place of a block, and the block."""
    place = open_at(f, name, primitive)
    if not isinstance(place.stmt, Block):
        raise place.fail(f"{name!r} is a loop, expected a block", _listed("blocks", f))
    return place, place.stmt


def unknown(f: PrimFunc, name: object, call: str) -> ScheduleError:
    """The error for a name that no loop or block has."""
    all_names = list(names(f.body))
    if not isinstance(name, str):
        message = f"a loop or block is named by a string, not {type(name).__name__}"
        return ScheduleError(message, where=call, hint=_listed("names", f))
    near = nearest(name, all_names)
    listed = f"{f.name} has {', '.join(all_names) or 'neither'}"
    return ScheduleError(f"no loop or block {name!r}; {listed}", where=call, hint=near)


def _listed(kind: str, f: PrimFunc) -> str:
    node_type = {"loops": For, "blocks": Block}.get(kind, Stmt)
    named = (name_of(t) for t in walk_stmt(normal(f).body) if isinstance(t, node_type))
    return f"{kind}: {', '.join(n for n in named if n is not None)}"


def dims_of(f: PrimFunc) -> tuple[Var, ...]:
    """Symbolic dimensions of the parameters, in order of first appearance."""
    return tuple(dict.fromkeys(v for b in f.buffers for d in b.shape for v in free_vars(d)))


def bounds_of(f: PrimFunc, path: tuple[Stmt, ...]) -> Bounds:
    """What holds at the end of a path: symbolic dimensions are not negative, loop and iteration
    variables are in range, conditions that read no memory are true."""
    bounds = Bounds.dims(dims_of(f))
    for s, inner in pairwise(path):
        match s:
            case For(var, lo, extent):
                bounds = bounds.with_loop(var, lo, extent)
            case If(cond, then_body) if not has_load(cond):
                holds = cond if then_body is inner else simplify(Unary("not", cond), bounds)
                bounds = bounds.given(holds)
            case Block(_, iters):
                for i in iters:
                    bounds = bounds.with_loop(i.var, 0, i.extent)
    return bounds


def count_of(place: Place, s: For) -> Expr:
    """The number of iterations of a loop: its extent, or max(extent, 0) if that may be negative."""
    if prove(binary("ge", s.extent, 0), place.bounds):
        return s.extent
    return maximum(s.extent, const(0, s.extent.dtype))


def whole_steps(place: Place, s: For, step: ExprLike) -> Expr:
    """How many of a loop's iterations are in whole steps: 8 of 10, for steps of 4."""
    return simplify(count_of(place, s) // step * step, place.bounds)


def show(e: ExprLike) -> str:
    """An expression as text, for an error message."""
    return str(e.value) if isinstance(e, IntImm) else TirPrinter().expr(as_expr(e))
