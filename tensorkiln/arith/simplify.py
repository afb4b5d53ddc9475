"""Queries about one expression: simplified form, bounds, proofs and affine form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorkiln.arith import poly as P
from tensorkiln.arith.emit import emit
from tensorkiln.arith.engine import is_index, mentions
from tensorkiln.arith.poly import Poly
from tensorkiln.arith.proof import lower_bound
from tensorkiln.arith.ranges import Bounds, Range
from tensorkiln.arith.scalar import TRUE, Simplifier
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value

BoundsLike = Mapping[Var, Range]
NOTHING_KNOWN = Bounds()


def as_bounds(bounds: BoundsLike) -> Bounds:
    """Return a mapping of ranges as `Bounds`; `Bounds` are returned unchanged."""
    return bounds if isinstance(bounds, Bounds) else Bounds(bounds)


def simplify(e: Expr, bounds: BoundsLike = NOTHING_KNOWN) -> Expr:
    """Return an expression equal to `e` for all values within `bounds`; `e` itself if nothing
    changes.

    Index arithmetic is assumed not to overflow, and symbolic divisors to be positive,
    unless they are known to end and might be 0.
    Floating-point expressions keep every operation; only the indices and conditions inside them
    change.
    """
    if isinstance(e, IntImm):
        return e
    assumptions = as_bounds(bounds)
    if not is_index(e.dtype):
        # hashing a large value expression costs more than the cache saves
        return Simplifier(assumptions).simplify(e)
    simplified = assumptions.cache.get(e)
    if simplified is None:
        scope = assumptions.scope_of(e)
        simplified = scope.cache.get(e)
        if simplified is None:
            simplified = Simplifier(scope).simplify(e)
            scope.remember(e, simplified)
        assumptions.remember(e, simplified)
    # the cached result may stem from an equal expression that is another object
    return e if simplified == e else simplified


def bound(e: Expr, bounds: BoundsLike = NOTHING_KNOWN) -> tuple[int | None, int | None]:
    """Return inclusive (lo, hi) of a scalar expression; None for a side without a finite bound. A
    float expression has neither."""
    s = Simplifier(as_bounds(bounds))
    if not is_index(e.dtype):
        lo, hi = s.range_of(e)
    else:
        p = s.norm(s.poly(e))
        lo, hi = s.interval(p)
        if s.symbolic(p):
            lo = max(lo, lower_bound(s, p))
            hi = min(hi, -lower_bound(s, P.scale(p, -1)))
    return (lo if s.finite(lo) else None), (hi if s.finite(hi) else None)


def prove(cond: Expr, bounds: BoundsLike = NOTHING_KNOWN) -> bool:
    """Whether `cond` provably holds for all values within `bounds`. False also means unknown."""
    return simplify(cond, bounds) == TRUE


def prove_equal(a: Expr, b: Expr, bounds: BoundsLike = NOTHING_KNOWN) -> bool:
    """Whether a and b provably have the same value, and the same dtype, for all values within
    `bounds`. False also means unknown."""
    if a.dtype != b.dtype:
        return False
    if not is_index(a.dtype):
        return simplify(a, bounds) == simplify(b, bounds)
    s = Simplifier(as_bounds(bounds))
    difference = s.norm(P.add(s.poly(a), s.poly(b), -1))
    return not difference or (s.nonneg(difference) and s.nonneg(P.scale(difference, -1)))


def affine(
    e: Expr, variables: Iterable[Var], bounds: BoundsLike = NOTHING_KNOWN
) -> tuple[dict[Var, int | Expr], Expr] | None:
    """Return (coefficients, remainder) with e = sum(coefficients[v] * v) + remainder; None if `e`
    is not of this form.

    Neither coefficients nor remainder contain any of `variables`. There is a coefficient for each
    of them, 0 if it does not occur; a constant coefficient is a Python int. `i*n + 2*j + 1` in
    (i, j) gives ({i: n, j: 2}, 1).
    """
    distinct = list(dict.fromkeys(variables))
    if not is_index(e.dtype):
        return None
    s = Simplifier(as_bounds(bounds))
    p = s.norm(s.poly(e))
    of_atom = {s.var_atom(v): v for v in distinct}
    parts: dict[Var, Poly] = {v: {} for v in distinct}
    other_terms: Poly = {}
    for mono, c in p.items():
        linear = [i for i in mono if i in of_atom]
        if len(linear) > 1:
            return None
        if linear:
            cofactor = P.without(mono, (linear[0],))
            assert cofactor is not None
            parts[of_atom[linear[0]]][cofactor] = c
        else:
            other_terms[mono] = c
    coefficients = {v: emit(s, q, e.dtype) for v, q in parts.items()}
    remainder = emit(s, other_terms, e.dtype)
    if any(mentions(x, distinct) for x in (*coefficients.values(), remainder)):
        return None
    out: dict[Var, int | Expr] = {}
    for v, x in coefficients.items():
        number = int_value(x)
        out[v] = x if number is None else number
    return out, remainder
