"""Primitives that fuse, reorder and tile nested loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.arith import simplify
from tensorkiln.ir.attrs import NO_ATTRS
from tensorkiln.ir.expr import Expr, Var, const
from tensorkiln.ir.stmt import For, If, PrimFunc, Stmt
from tensorkiln.ir.visit import free_vars
from tensorkiln.schedule.primitives.loops import split
from tensorkiln.schedule.primitives.results import Primitive, Tile
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.normalise import normal
from tensorkiln.schedule.tree.program import Place, count_of, open_loop, unknown
from tensorkiln.schedule.tree.rewrite import rewrite
from tensorkiln.schedule.tree.surgery import path_to


@Primitive
def fuse(f: PrimFunc, *loops: str, name: str | None = None) -> tuple[PrimFunc, str]:
    """Make one loop of perfectly nested loops, given outermost first.

    for i in range(4):                  for i_j in range(32):
        for j in range(8):     ->           C[i_j // 8, i_j % 8] = 0
            C[i, j] = 0
    """
    f = normal(f)
    if len(loops) < 2:
        raise ScheduleError(
            "fuse takes two loops or more", where="fuse()", hint="fuse(f, 'i', 'j')"
        )
    loop = loops[0]
    for k, inner in enumerate(loops[1:], 2):
        last = k == len(loops)
        fused_name = name if last and name is not None else f"{loop}_{inner}"
        f, loop = _fuse(f, loop, inner, fused_name)
    return f, loop


def reorder(f: PrimFunc, *loops: str, check: bool = True) -> PrimFunc:
    """Reorder nested loops, which are listed in their new order, outermost first.

        for i in range(4):                  for j in range(8):
            for j in range(8):     ->           for i in range(4):
                C[i, j] = 0                         C[i, j] = 0

    Only conditions and other loops may stand between them. Loops that are not listed keep their
    position; conditions move inside the nest.
    """
    f = normal(f)
    call = f"reorder({', '.join(map(repr, loops))})"
    if len(loops) < 2 or len(set(loops)) != len(loops):
        raise ScheduleError(
            "reorder takes two different loops or more", where=call, hint="reorder(f, 'j', 'i')"
        )
    place, chain, guards, inner = _chain(f, loops, call)
    order = iter(loops)
    by_name = {s.var.name: s for s in chain}
    new = [by_name[next(order)] if s.var.name in loops else s for s in chain]
    if all(a is b for a, b in zip(new, chain, strict=True)):
        return f
    _bounds_in_order(place, new)
    body = inner
    for cond in reversed(guards):
        body = If(cond, body)
    for s in reversed(new):
        body = replace(s, body=body)
    after = place.close(body)
    if check:
        require_order(f, after, call)
    return after


@Primitive
def tile(
    f: PrimFunc,
    outer: str,
    inner: str,
    outer_factor: int,
    inner_factor: int,
    tail: str = "exact",
    check: bool = True,
) -> tuple[PrimFunc, Tile]:
    """Cut two perfectly nested loops into rectangles.

    for i in range(8):                  for i_0 in range(2):
        for j in range(8):     ->           for j_0 in range(2):
            C[i, j] = 0                         for i_1 in range(4):
                                                    for j_1 in range(4):
                                                        C[i_0 * 4 + i_1, ...] = 0
    """
    if tail == "peel":
        hint = 'split each loop with tail="peel" and reorder the parts'
        raise ScheduleError('tail="peel" would make four nests', where="tile", hint=hint)
    f, rows = split.run(f, outer, outer_factor, tail=tail)
    f, columns = split.run(f, inner, inner_factor, tail=tail)
    tile_loops = Tile((rows.outer, columns.outer), (rows.inner, columns.inner))
    return reorder(f, *tile_loops.outer, *tile_loops.inner, check=check), tile_loops


def _fuse(f: PrimFunc, outer: str, inner: str, name: str) -> tuple[PrimFunc, str]:
    place, s = open_loop(f, outer, "fuse")
    place.what = f"fuse({outer!r}, {inner!r})"
    t = s.body
    if not isinstance(t, For) or t.var.name != inner:
        if path_to(f.body, inner) is None:
            raise unknown(f, inner, place.what)
        text = f"{inner!r} is not directly inside {outer!r}"
        raise place.fail(text, "reorder or split so that nothing stands between them")
    if t.kind != s.kind:
        hint = "fuse first, then mark the loop that comes out"
        raise place.fail(f"{outer!r} is {s.kind} and {inner!r} is {t.kind}", hint)
    if s.kind == "thread":
        raise place.fail("loops bound to thread indices", "fuse first, then bind")
    if s.var in (*free_vars(t.lo), *free_vars(t.extent)):
        text = f"the range of {inner!r} depends on {outer!r}"
        raise place.fail(text, "give it the largest range and a condition")
    if s.var.dtype != t.var.dtype:
        raise place.fail(f"{outer!r} is {s.var.dtype} and {inner!r} is {t.var.dtype}")
    var = Var(place.name(name), s.var.dtype)
    zero, width = const(0, s.var.dtype), count_of(place, t)
    extent = simplify(count_of(place, s) * width, place.bounds)
    bounds = place.bounds.with_loop(var, zero, extent)
    values = {
        s.var: simplify(s.lo + var // width, bounds),
        t.var: simplify(t.lo + var % width, bounds),
    }
    attrs = type(s.attrs).of(**{**t.attrs, **s.attrs}) if t.attrs or s.attrs else NO_ATTRS
    loop = For(var, zero, extent, s.kind, rewrite(t.body, values, bounds), attrs)
    return place.close(loop), var.name


def _chain(
    f: PrimFunc, loops: Sequence[str], call: str
) -> tuple[Place, list[For], list[Expr], Stmt]:
    """(place of the outermost listed loop, all loops down to the innermost listed one, conditions
    between them, body of the innermost)."""
    places = {name: open_loop(f, name, "reorder")[0] for name in loops}
    place = min(places.values(), key=lambda p: len(p.path))
    place.what = call
    pending = set(loops)
    chain: list[For] = []
    guards: list[Expr] = []
    s: Stmt = place.stmt
    while pending:
        if isinstance(s, For):
            chain.append(s)
            pending.discard(s.var.name)
            s = s.body
        elif isinstance(s, If) and s.orelse is None:
            guards.append(s.cond)
            s = s.then
        else:
            name = next(n for n in loops if n in pending)
            text = f"{name!r} is not directly inside {chain[-1].var.name!r}"
            stands = type(s).__name__.lower()
            raise place.fail(f"{text}: a {stands} stands between", "split the nest around it first")
    return place, chain, guards, s


def _bounds_in_order(place: Place, chain: list[For]) -> None:
    """Raise ScheduleError if the range of a loop depends on the variable of a loop inside it."""
    later = {s.var for s in chain}
    for s in chain:
        needed = [v for e in (s.lo, s.extent) for v in free_vars(e) if v in later]
        if needed:
            text = f"the range of {s.var.name!r} depends on {needed[0].name!r}"
            raise place.fail(text, f"keep {needed[0].name!r} outside {s.var.name!r}")
        later.discard(s.var)
