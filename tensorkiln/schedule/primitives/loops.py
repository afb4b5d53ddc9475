"""Primitives that cut loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.arith import prove, prove_equal, simplify
from tensorkiln.ir.expr import Expr, Var, as_expr, binary, const, int_value, minimum
from tensorkiln.ir.stmt import For, If, PrimFunc, Stmt, seq
from tensorkiln.kernels.tiles import tiles
from tensorkiln.schedule.primitives.results import Partition, Primitive, Split, SplitEven
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.roles import role_of, with_role
from tensorkiln.schedule.tree.program import Place, count_of, open_loop, show, whole_steps
from tensorkiln.schedule.tree.rewrite import rewrite
from tensorkiln.schedule.tree.surgery import renewed

Factors = int | Sequence[int | None]
TAILS = ("exact", "guard", "peel", "overlap")


@Primitive
def split(
    f: PrimFunc,
    loop: str,
    factor: Factors,
    names: Sequence[str] | None = None,
    tail: str = "exact",
    roles: Sequence[str] | None = None,
    check: bool = True,
) -> tuple[PrimFunc, Split]:
    """Cut a loop into nested loops.

        for i in range(10):                 for i_0 in range(3):
            C[i] = A[i]            ->           for i_1 in range(4):
                                                    if i_0 * 4 + i_1 < 10:
                                                        C[i_0 * 4 + i_1] = A[i_0 * 4 + i_1]

    `factor` is the extent of the inner loop, or the extents of all loops, outermost first; one of
    these may be None and follows from the others. If the factor does not divide the extent,
    tail="exact" is refused, "guard" adds the condition above, "peel" gives the iterations that are
    left over a loop of their own, `i_tail`, with copies of the blocks, and "overlap" lets the last
    piece begin earlier, at iteration 6 here: some iterations run twice, so they must be idempotent.
    `names` and `roles` of the new loops follow from the loop's own unless given.
    """
    place, s = open_loop(f, loop, "split")
    if tail not in TAILS:
        raise place.fail(f"tail={tail!r}", f"one of {', '.join(map(repr, TAILS))}")
    if s.kind == "thread":
        raise place.fail("the loop is bound to a thread index", "split first, then bind")
    sizes, step = _sizes(place, factor)
    if tail == "peel":
        whole = whole_steps(place, s, step)
        if int_value(whole) == 0:
            raise place.fail(f"a step of {show(step)} is longer than the loop", 'use tail="guard"')
        if not _divides(place, s.extent, step):
            f, pair = _cut(place, s, whole, (loop, f"{loop}_tail"))
            f, pieces = split.run(f, loop, factor, names, roles=roles)
            return f, replace(pieces, tail=pair.rest)
    mode = "" if _divides(place, s.extent, step) else tail
    if mode == "exact":
        text = f"{show(step)} does not divide the extent {show(s.extent)}"
        raise place.fail(text, 'tail="guard" adds a condition, tail="peel" a loop for the rest')
    if mode == "guard" and s.kind == "vectorized":
        raise place.fail("lanes cannot be guarded one by one", 'use tail="peel"')
    if mode == "overlap":
        _require_pieces(place, s, sizes, step)
    free = simplify((s.extent + step - 1) // step if mode else s.extent // step, place.bounds)
    extents = [free if size is None else const(size, s.extent.dtype) for size in sizes]
    loops = _names(place, names, loop, len(sizes))
    after = place.close(_nest(place, s, extents, loops, _roles(place, roles, len(sizes)), mode))
    if mode == "overlap" and check:
        require_order(place.func, after, place.what)
    return after, Split(tuple(loops))


@Primitive
def split_even(
    f: PrimFunc, loop: str, largest: int, names: Sequence[str] | None = None
) -> tuple[PrimFunc, SplitEven]:
    """Cut a loop into pieces of at most `largest` iterations that are as equal as possible.

        for i in range(27):                 for i_0 in range(1):
            C[i] = A[i]            ->           for i_1 in range(14):
                                                    C[i_0 * 14 + i_1] = ...
                                            for i_tail_0 in range(1):
                                                for i_tail_1 in range(13):
                                                    C[i_tail_0 * 13 + i_tail_1 + 14] = ...

    There are at most two sizes of pieces, which differ by 1. Needs a constant extent. `names`: of
    the outer and inner loop of the first part.
    """
    place, s = open_loop(f, loop, "split_even")
    extent = int_value(s.extent)
    if extent is None:
        raise place.fail(f"the extent {show(s.extent)} is not a number", 'use split, tail="guard"')
    if not isinstance(largest, int) or largest < 1:
        raise place.fail(f"largest={largest!r}", "a positive number")
    if extent < 1:
        raise place.fail("the loop does not run", "nothing to split")
    parts = tiles(extent, largest)
    if len(parts) == 1:
        f, only = split.run(place.func, loop, parts[0][2], names)
        return f, SplitEven((only,))
    f, pair = _cut(place, s, const(parts[1][0], s.extent.dtype), (loop, f"{loop}_tail"))
    f, large = split.run(f, loop, parts[0][2], names)
    f, small = split.run(f, pair.rest, parts[1][2])
    return f, SplitEven((large, small))


@Primitive
def partition(
    f: PrimFunc, loop: str, at: int, names: Sequence[str] | None = None
) -> tuple[PrimFunc, Partition]:
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
        text = f"cannot prove that {show(first)} lies in the extent {show(s.extent)}"
        raise place.fail(text, 'split(..., tail="peel") cuts off a rest of any length')
    if int_value(first) == 0 or prove_equal(first, s.extent, place.bounds):
        raise place.fail("one of the two loops would be empty", "a place inside the loop")
    return _cut(place, s, first, tuple(names or (loop, f"{loop}_tail")))


# ---- split -------------------------------------------------------------------------------------


def _sizes(place: Place, factor: Factors) -> tuple[list[int | None], Expr]:
    """(the extents of the new loops with one None, the product of the others)."""
    s = place.stmt
    assert isinstance(s, For)
    sizes = [None, factor] if isinstance(factor, int) else list(factor)
    fixed = [n for n in sizes if n is not None]
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in fixed):
        raise place.fail(f"factor={factor!r}", "a positive number, or several with one None")
    if len(sizes) < 2 or len(sizes) - len(fixed) > 1:
        raise place.fail(f"factor={factor!r}: one extent may be None", "as (None, 4, 8)")
    step = 1
    for n in fixed:
        step *= n
    if len(fixed) == len(sizes):
        if int_value(s.extent) != step:
            text = f"{' * '.join(map(str, fixed))} = {step} is not the extent {show(s.extent)}"
            raise place.fail(text, "leave one of them None")
        # any one of them follows from the others
        sizes[0] = None
        step //= fixed[0]
    return sizes, const(step, s.extent.dtype)


def _divides(place: Place, extent: Expr, step: Expr) -> bool:
    return int_value(simplify(extent % step, place.bounds)) == 0


def _names(place: Place, names: Sequence[str] | None, loop: str, count: int) -> list[str]:
    if names is not None and len(names) != count:
        raise place.fail(f"{len(names)} names for {count} loops", "one name for each")
    return [place.name(n) for n in names or [f"{loop}_{k}" for k in range(count)]]


def _roles(place: Place, roles: Sequence[str] | None, count: int) -> list[str]:
    if roles is not None and len(roles) != count:
        raise place.fail(f"{len(roles)} roles for {count} loops", "one role for each")
    loop_role = role_of(place.stmt)
    return list(roles or [loop_role] + [loop_role and f"{loop_role}.inner"] * (count - 1))


def _require_pieces(place: Place, s: For, sizes: list[int | None], step: Expr) -> None:
    """Raise ScheduleError for tail="overlap" if pieces run concurrently, or one may be longer than
    the loop."""
    if s.kind in ("parallel", "thread"):
        raise place.fail(
            f"the loop is {s.kind}: pieces that overlap would run at once", 'use tail="peel"'
        )
    if sizes[0] is not None:
        raise place.fail('only the outermost extent may follow with tail="overlap"', "as (None, 4)")
    if not prove(binary("ge", s.extent, step), place.bounds):
        text = f"cannot prove that a step of {show(step)} is not longer than the loop"
        raise place.fail(text, 'use tail="guard"')


def _nest(
    place: Place, s: For, extents: list[Expr], names: list[str], roles: list[str], tail: str
) -> Stmt:
    """The loops of a split, around the body with the variable replaced. `tail`: the way in which
    the last iterations are treated if the steps do not divide the extent; empty if they do."""
    variables = [Var(n, s.var.dtype) for n in names]
    zero = const(0, s.var.dtype)
    inner: Expr = zero
    step: Expr = const(1, s.var.dtype)
    bounds = place.bounds
    for v, extent in zip(variables, extents, strict=True):
        bounds = bounds.with_loop(v, zero, extent)
    for v, extent in reversed([*zip(variables[1:], extents[1:], strict=True)]):
        inner = v * step + inner
        step = step * extent
    first = variables[0] * step
    if tail == "overlap":
        first = minimum(first, s.extent - step)
    offset = simplify(first + inner, bounds)
    if tail == "guard":
        bounds = bounds.given(binary("lt", offset, s.extent))
    body = rewrite(s.body, {s.var: simplify(s.lo + offset, bounds)}, bounds)
    if tail == "guard":
        body = If(binary("lt", offset, s.extent), body)
    kinds = _split_kinds(s.kind, len(names))
    for k in reversed(range(len(names))):
        attrs = with_role(roles[k], s.attrs) if k == 0 else with_role(roles[k])
        body = For(variables[k], zero, extents[k], kinds[k], body, attrs)
    return body


def _split_kinds(kind: str, count: int) -> list[str]:
    """The kinds of the loops of a split: a vectorized loop's innermost part stays vectorized, a
    parallel loop's outermost part parallel, and all parts of an unrolled loop are unrolled."""
    if kind == "unrolled":
        return [kind] * count
    kinds = ["serial"] * count
    kinds[-1 if kind == "vectorized" else 0] = kind
    return kinds


def _cut(place: Place, s: For, first: Expr, names: Sequence[str]) -> tuple[PrimFunc, Partition]:
    """Two loops, one after the other, the first of `first` iterations, the second with copies of
    the blocks."""
    if len(names) != 2:
        raise place.fail(f"{len(names)} names for 2 loops", "one name for each")
    head_name = names[0] if names[0] == s.var.name else place.name(names[0])
    head_var = s.var if head_name == s.var.name else Var(head_name, s.var.dtype)
    bounds = place.bounds.with_loop(head_var, s.lo, first)
    body = s.body if head_var is s.var else rewrite(s.body, {s.var: head_var}, bounds)
    head = replace(s, var=head_var, extent=first, body=body)
    copy = renewed(s, lambda n: place.name(names[1] if n == s.var.name else n))
    assert isinstance(copy, For)
    lo = simplify(s.lo + first, place.bounds)
    tail_loop = replace(copy, lo=lo, extent=simplify(count_of(place, s) - first, place.bounds))
    return place.close(seq(head, tail_loop)), Partition(head_name, copy.var.name)
