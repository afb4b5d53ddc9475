"""Questions about one expression: its simplest form, its range, its truth, its linear form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorkiln.arith import poly as P
from tensorkiln.arith.emit import emit
from tensorkiln.arith.engine import is_index
from tensorkiln.arith.poly import Poly
from tensorkiln.arith.proof import lower_bound
from tensorkiln.arith.ranges import Bounds, Range
from tensorkiln.arith.scalar import TRUE, Simplifier
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.visit import walk

BoundsLike = Mapping[Var, Range]
NOTHING_KNOWN = Bounds()


def as_bounds(bounds: BoundsLike) -> Bounds:
    """Bounds of a plain mapping; Bounds pass through."""
    return bounds if isinstance(bounds, Bounds) else Bounds(bounds)


def simplify(e: Expr, bounds: BoundsLike = NOTHING_KNOWN) -> Expr:
    """An expression equal to `e` wherever `bounds` hold; `e` itself when nothing changed.

    Index arithmetic is assumed not to overflow and divisors to be positive. Floating-point
    expressions keep every operation; only the indices and conditions inside them change.
    """
    known = as_bounds(bounds)
    if not is_index(e.dtype):
        # large values are not worth hashing; what is inside them is small
        return Simplifier(known).simplify(e)
    found = known.cache.get(e)
    if found is None:
        found = Simplifier(known).simplify(e)
        known.remember(e, found)
    # what is remembered may be for an equal expression, not this object
    return e if found == e else found


def bound(e: Expr, bounds: BoundsLike = NOTHING_KNOWN) -> tuple[int | None, int | None]:
    """Inclusive (lo, hi) of an integer expression; None where no finite bound is known."""
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
    """True when `cond` certainly holds; False when it does not, or is not known to."""
    return simplify(cond, bounds) == TRUE


def prove_equal(a: Expr, b: Expr, bounds: BoundsLike = NOTHING_KNOWN) -> bool:
    """True when both have the same value wherever `bounds` hold."""
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
    """(coefficients, rest) with e = sum(coefficients[v] * v) + rest, or None.

    Coefficients (0 where a variable does not occur) and rest are free of `variables`; a
    coefficient that is a number is a Python int.
    """
    wanted = list(dict.fromkeys(variables))
    if not is_index(e.dtype):
        return None
    s = Simplifier(as_bounds(bounds))
    p = s.norm(s.poly(e))
    of_atom = {s.var_atom(v): v for v in wanted}
    parts: dict[Var, Poly] = {v: {} for v in wanted}
    rest: Poly = {}
    for mono, c in p.items():
        linear = [i for i in mono if i in of_atom]
        if len(linear) > 1:
            return None
        if linear:
            left = P.without(mono, (linear[0],))
            assert left is not None
            parts[of_atom[linear[0]]][left] = c
        else:
            rest[mono] = c
    coefficients = {v: emit(s, q, e.dtype) for v, q in parts.items()}
    remainder = emit(s, rest, e.dtype)
    if any(_contains(x, wanted) for x in (*coefficients.values(), remainder)):
        return None
    out: dict[Var, int | Expr] = {}
    for v, x in coefficients.items():
        number = int_value(x)
        out[v] = x if number is None else number
    return out, remainder


def _contains(e: Expr, variables: list[Var]) -> bool:
    return any(x in variables for x in walk(e) if isinstance(x, Var))
