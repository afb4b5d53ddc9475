"""Primitives that cut, join and exchange loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.arith import prove, prove_equal, simplify
from tensorkiln.ir.attrs import NO_ATTRS
from tensorkiln.ir.expr import (
    Expr,
    ExprLike,
    IntImm,
    Var,
    as_expr,
    binary,
    const,
    int_value,
    maximum,
)
from tensorkiln.ir.stmt import For, If, PrimFunc, Stmt, seq
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.visit import free_vars
from tensorkiln.schedule.build import tiles
from tensorkiln.schedule.primitives.errors import ScheduleError
from tensorkiln.schedule.primitives.legality import require_order
from tensorkiln.schedule.primitives.names import names as names_in
from tensorkiln.schedule.primitives.program import (
    Place,
    normal,
    open_loop,
    path_to,
    unknown,
    with_loops,
)
from tensorkiln.schedule.primitives.rewrite import rewrite
from tensorkiln.schedule.primitives.surgery import renewed

Factors = int | Sequence[int | None]
TAILS = ("exact", "guard", "peel")


def split(
    f: PrimFunc,
    loop: str,
    factor: Factors,
    names: Sequence[str] | None = None,
    tail: str = "exact",
) -> PrimFunc:
    """Cut a loop into loops inside one another.

        for i in range(10):                 for i_0 in range(3):
            C[i] = A[i]            ->           for i_1 in range(4):
                                                    if i_0 * 4 + i_1 < 10:
                                                        C[i_0 * 4 + i_1] = A[i_0 * 4 + i_1]

    `factor` is the extent of the inner loop, or the extents of all, outermost first, with one
    None for the extent that follows. Where it does not divide, tail="exact" refuses,
    "guard" adds the condition above, and "peel" gives the rest a loop of its own, `i_tail`,
    with copies of the blocks.
    """
    at, s = open_loop(f, loop, "split")
    if tail not in TAILS:
        raise at.fail(f"tail={tail!r}", f"one of {', '.join(map(repr, TAILS))}")
    if s.kind == "thread":
        raise at.fail("the loop is bound to a thread index", "split first, then bind")
    sizes, step = _sizes(at, factor)
    if tail == "peel":
        whole = simplify(_count(at, s) // step * step, at.bounds)
        if int_value(whole) == 0:
            raise at.fail(f"a step of {_show(step)} is longer than the loop", 'use tail="guard"')
        if not _divides(at, s.extent, step):
            name = (loop, f"{loop}_tail")
            f = _cut(at, s, whole, name)
            return split(f, loop, factor, names)
    guard = not _divides(at, s.extent, step)
    if guard and tail == "exact":
        text = f"{_show(step)} does not divide the extent {_show(s.extent)}"
        raise at.fail(text, 'tail="guard" adds a condition, tail="peel" a loop for the rest')
    if guard and s.kind == "vectorized":
        raise at.fail("lanes cannot be guarded one by one", 'use tail="peel"')
    free = simplify((s.extent + step - 1) // step if guard else s.extent // step, at.bounds)
    extents = [free if size is None else const(size, s.extent.dtype) for size in sizes]
    return at.close(_nest(at, s, extents, _names(at, names, loop, len(sizes)), guard))


def split_even(
    f: PrimFunc, loop: str, largest: int, names: Sequence[str] | None = None
) -> PrimFunc:
    """Cut a loop into pieces of at most `largest` iterations and as equal as can be.

        for i in range(27):                 for i_0 in range(1):
            C[i] = A[i]            ->           for i_1 in range(14):
                                                    C[i_0 * 14 + i_1] = ...
                                            for i_tail_0 in range(1):
                                                for i_tail_1 in range(13):
                                                    C[i_tail_0 * 13 + i_tail_1 + 14] = ...

    Pieces of two sizes, never a short rest. Needs a constant extent. `names`: outer and inner of
    the first part.
    """
    at, s = open_loop(f, loop, "split_even")
    extent = int_value(s.extent)
    if extent is None:
        raise at.fail(f"the extent {_show(s.extent)} is not a number", 'use split, tail="guard"')
    if not isinstance(largest, int) or largest < 1:
        raise at.fail(f"largest={largest!r}", "a positive number")
    if extent < 1:
        raise at.fail("the loop does not run", "nothing to split")
    parts = tiles(extent, largest)
    if len(parts) == 1:
        return split(at.func, loop, parts[0][2], names)
    tail = f"{loop}_tail"
    f = _cut(at, s, const(parts[1][0], s.extent.dtype), (loop, tail))
    second = next(n for n in _new_names(at.func, f))
    return split(split(f, loop, parts[0][2], names), second, parts[1][2])


def partition(f: PrimFunc, loop: str, at: int, names: Sequence[str] | None = None) -> PrimFunc:
    """Cut a loop into two, one after the other; the first runs `at` times.

        for i in range(10):                 for i in range(8):
            C[i] = A[i]            ->           C[i] = A[i]
                                            for i_tail in range(8, 10):
                                                C[i_tail] = A[i_tail]

    The second loop holds copies of the blocks.
    """
    place, s = open_loop(f, loop, "partition")
    first = as_expr(at, s.extent.dtype)
    inside = prove(binary("ge", first, 0), place.bounds)
    if not inside or not prove(binary("le", first, s.extent), place.bounds):
        text = f"cannot prove that {_show(first)} lies in the extent {_show(s.extent)}"
        raise place.fail(text, 'split(..., tail="peel") cuts off a rest of any length')
    if int_value(first) == 0 or prove_equal(first, s.extent, place.bounds):
        raise place.fail("one of the two loops would be empty", "a place inside the loop")
    return _cut(place, s, first, tuple(names or (loop, f"{loop}_tail")))


peel = partition


def fuse(f: PrimFunc, *loops: str, name: str | None = None) -> PrimFunc:
    """Make one loop of loops directly inside one another, given outermost first.

    for i in range(4):                  for i_j in range(32):
        for j in range(8):     ->           C[i_j // 8, i_j % 8] = 0
            C[i, j] = 0
    """
    f = normal(f)
    if len(loops) < 2:
        raise ScheduleError(
            "fuse takes two loops or more", where="fuse()", hint="fuse(f, 'i', 'j')"
        )
    done = loops[0]
    for k, inner in enumerate(loops[1:], 2):
        last = k == len(loops)
        wanted = name if last and name is not None else f"{done}_{inner}"
        before = f
        f = _fuse(f, done, inner, wanted)
        done = next(n for n in _new_names(before, f))
    return f


def reorder(f: PrimFunc, *loops: str, check: bool = True) -> PrimFunc:
    """Exchange loops that are directly inside one another: outermost first as listed.

        for i in range(4):                  for j in range(8):
            for j in range(8):     ->           for i in range(4):
                C[i, j] = 0                         C[i, j] = 0

    Loops between them that are not listed keep their place; conditions between them move in.
    """
    f = normal(f)
    where = f"reorder({', '.join(map(repr, loops))})"
    if len(loops) < 2 or len(set(loops)) != len(loops):
        raise ScheduleError("reorder takes two different loops or more", where=where,
                            hint="reorder(f, 'j', 'i')")  # fmt: skip
    at, chain, guards, inner = _chain(f, loops, where)
    order = iter(loops)
    by_name = {s.var.name: s for s in chain}
    new = [by_name[next(order)] if s.var.name in loops else s for s in chain]
    if all(a is b for a, b in zip(new, chain, strict=True)):
        return f
    _bounds_in_order(at, new)
    body = inner
    for cond in reversed(guards):
        body = If(cond, body)
    for s in reversed(new):
        body = replace(s, body=body)
    after = at.close(body)
    if check:
        require_order(f, after, where)
    return after


def tile(
    f: PrimFunc, outer: str, inner: str, outer_factor: int, inner_factor: int,
    tail: str = "exact", check: bool = True,
) -> PrimFunc:  # fmt: skip
    """Cut two loops, directly inside one another, into rectangles.

    for i in range(8):                  for i_0 in range(2):
        for j in range(8):     ->           for j_0 in range(2):
            C[i, j] = 0                         for i_1 in range(4):
                                                    for j_1 in range(4):
                                                        C[i_0 * 4 + i_1, ...] = 0
    """
    if tail == "peel":
        hint = 'split each loop with tail="peel" and reorder the parts'
        raise ScheduleError('tail="peel" would make four nests', where="tile", hint=hint)
    before = normal(f)
    f = split(before, outer, outer_factor, tail=tail)
    o0, o1 = _new_names(before, f)
    middle = f
    f = split(f, inner, inner_factor, tail=tail)
    i0, i1 = _new_names(middle, f)
    return reorder(f, o0, i0, o1, i1, check=check)


# ---- split -------------------------------------------------------------------------------------


def _sizes(at: Place, factor: Factors) -> tuple[list[int | None], Expr]:
    """Extents with one None, and the product of the others."""
    s = at.stmt
    assert isinstance(s, For)
    sizes = [None, factor] if isinstance(factor, int) else list(factor)
    given = [n for n in sizes if n is not None]
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in given):
        raise at.fail(f"factor={factor!r}", "a positive number, or several with one None")
    if len(sizes) < 2 or len(sizes) - len(given) > 1:
        raise at.fail(f"factor={factor!r}: one extent may be None", "as (None, 4, 8)")
    step = 1
    for n in given:
        step *= n
    if len(given) == len(sizes):
        if int_value(s.extent) != step:
            text = f"{' * '.join(map(str, given))} = {step} is not the extent {_show(s.extent)}"
            raise at.fail(text, "leave one of them None")
        # any one of them follows from the others
        sizes[0] = None
        step //= given[0]
    return sizes, const(step, s.extent.dtype)


def _count(at: Place, s: For) -> Expr:
    """How often a loop runs: never less than 0 times, whatever its extent says."""
    if prove(binary("ge", s.extent, 0), at.bounds):
        return s.extent
    return maximum(s.extent, const(0, s.extent.dtype))


def _divides(at: Place, extent: Expr, step: Expr) -> bool:
    return int_value(simplify(extent % step, at.bounds)) == 0


def _names(at: Place, names: Sequence[str] | None, loop: str, count: int) -> list[str]:
    if names is not None and len(names) != count:
        raise at.fail(f"{len(names)} names for {count} loops", "one name for each")
    return [at.name(n) for n in names or [f"{loop}_{k}" for k in range(count)]]


def _nest(at: Place, s: For, extents: list[Expr], names: list[str], guard: bool) -> Stmt:
    """The loops of a split, around the body with the variable replaced."""
    variables = [Var(n, s.var.dtype) for n in names]
    zero = const(0, s.var.dtype)
    offset: Expr = zero
    known = at.bounds
    for v, extent in zip(variables, extents, strict=True):
        known = known.with_loop(v, zero, extent)
        offset = offset * extent + v
    offset = simplify(offset, known)
    if guard:
        known = known.given(binary("lt", offset, s.extent))
    body = rewrite(s.body, {s.var: simplify(s.lo + offset, known)}, known)
    if guard:
        body = If(binary("lt", offset, s.extent), body)
    kinds = _split_kinds(s.kind, len(names))
    for k in reversed(range(len(names))):
        attrs = s.attrs if k == 0 else NO_ATTRS
        body = For(variables[k], zero, extents[k], kinds[k], body, attrs)
    return body


def _split_kinds(kind: str, count: int) -> list[str]:
    """Lanes stay innermost, threads outermost; a loop that is repeated stays so as a whole."""
    if kind == "unrolled":
        return [kind] * count
    kinds = ["serial"] * count
    kinds[-1 if kind == "vectorized" else 0] = kind
    return kinds


def _cut(at: Place, s: For, first: Expr, names: Sequence[str]) -> PrimFunc:
    """Two loops in a row, the second with copies of the blocks."""
    if len(names) != 2:
        raise at.fail(f"{len(names)} names for 2 loops", "one name for each")
    own = names[0] if names[0] == s.var.name else at.name(names[0])
    head_var = s.var if own == s.var.name else Var(own, s.var.dtype)
    known = with_loops(at.bounds, (head_var, s.lo, first))
    body = s.body if head_var is s.var else rewrite(s.body, {s.var: head_var}, known)
    head = replace(s, var=head_var, extent=first, body=body)
    copy = renewed(s, lambda n: at.name(names[1] if n == s.var.name else n))
    assert isinstance(copy, For)
    lo = simplify(s.lo + first, at.bounds)
    rest = replace(copy, lo=lo, extent=simplify(_count(at, s) - first, at.bounds))
    return at.close(seq(head, rest))


def _new_names(before: PrimFunc, after: PrimFunc) -> list[str]:
    """Loops and blocks of `after` that `before` has not, in order."""
    old = set(names_in(before.body))
    return [n for n in names_in(after.body) if n not in old]


# ---- fuse and reorder --------------------------------------------------------------------------


def _fuse(f: PrimFunc, outer: str, inner: str, name: str) -> PrimFunc:
    at, s = open_loop(f, outer, "fuse")
    at.what = f"fuse({outer!r}, {inner!r})"
    t = s.body
    if not isinstance(t, For) or t.var.name != inner:
        if path_to(f.body, inner) is None:
            raise unknown(f, inner, at.what)
        text = f"{inner!r} is not directly inside {outer!r}"
        raise at.fail(text, "reorder or split so that nothing stands between them")
    if t.kind != s.kind:
        hint = "fuse first, then mark the loop that comes out"
        raise at.fail(f"{outer!r} is {s.kind} and {inner!r} is {t.kind}", hint)
    if s.kind == "thread":
        raise at.fail("loops bound to thread indices", "fuse first, then bind")
    if s.var in (*free_vars(t.lo), *free_vars(t.extent)):
        text = f"the range of {inner!r} depends on {outer!r}"
        raise at.fail(text, "give it the largest range and a condition")
    if s.var.dtype != t.var.dtype:
        raise at.fail(f"{outer!r} is {s.var.dtype} and {inner!r} is {t.var.dtype}")
    var = Var(at.name(name), s.var.dtype)
    zero, width = const(0, s.var.dtype), _count(at, t)
    extent = simplify(_count(at, s) * width, at.bounds)
    known = at.bounds.with_loop(var, zero, extent)
    values = {
        s.var: simplify(s.lo + var // width, known),
        t.var: simplify(t.lo + var % width, known),
    }
    attrs = type(s.attrs).of(**{**t.attrs, **s.attrs}) if t.attrs or s.attrs else NO_ATTRS
    return at.close(For(var, zero, extent, s.kind, rewrite(t.body, values, known), attrs))


def _chain(
    f: PrimFunc, loops: Sequence[str], where: str
) -> tuple[Place, list[For], list[Expr], Stmt]:
    """(place of the outermost, all loops to the innermost, conditions between, what is inside)."""
    places = {name: open_loop(f, name, "reorder")[0] for name in loops}
    at = min(places.values(), key=lambda p: len(p.path))
    at.what = where
    left = set(loops)
    chain: list[For] = []
    guards: list[Expr] = []
    s: Stmt = at.stmt
    while left:
        if isinstance(s, For):
            chain.append(s)
            left.discard(s.var.name)
            s = s.body
        elif isinstance(s, If) and s.orelse is None:
            guards.append(s.cond)
            s = s.then
        else:
            name = next(n for n in loops if n in left)
            text = f"{name!r} is not directly inside {chain[-1].var.name!r}"
            stands = type(s).__name__.lower()
            raise at.fail(f"{text}: a {stands} stands between", "split the nest around it first")
    return at, chain, guards, s


def _bounds_in_order(at: Place, chain: list[For]) -> None:
    """Refuse loops whose range needs a variable of a loop that is now inside."""
    later = {s.var for s in chain}
    for s in chain:
        needed = [v for e in (s.lo, s.extent) for v in free_vars(e) if v in later]
        if needed:
            text = f"the range of {s.var.name!r} depends on {needed[0].name!r}"
            raise at.fail(text, f"keep {needed[0].name!r} outside {s.var.name!r}")
        later.discard(s.var)


def _show(e: ExprLike) -> str:
    """An expression in an error message."""
    return str(e.value) if isinstance(e, IntImm) else TirPrinter().expr(as_expr(e))
