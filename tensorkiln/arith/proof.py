"""Proofs of p >= 0 for polynomials whose atoms have symbolic bounds.

To show p = c*x + r >= 0, replace x by a lower bound of it if c >= 0, or by an upper bound if
c <= 0: the result is never more than p. Atoms are eliminated innermost first, a loop variable
before the dimension that bounds it, until numeric bounds decide: n - 1 - i becomes 0 by i <= n - 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.arith import poly as P
from tensorkiln.arith.engine import Atom, Engine, polynomial_key
from tensorkiln.arith.poly import Poly


def prove_nonneg(s: Engine, p: Poly) -> bool:
    """Whether p >= 0 can be proved, for a `p` whose interval does not decide. Memoised for the
    outermost proofs, whose fuel does not depend on another one."""
    if not s.begin_proof():
        return _prove(s, p)
    try:
        key = polynomial_key(p)
        proved = s.proofs.get(key)
        if proved is None:
            proved = _prove(s, p)
            if s.is_complete:
                s.proofs[key] = proved
        return proved
    finally:
        s.end_proof()


def _prove(s: Engine, p: Poly) -> bool:
    if _numeric_bound(s, p) >= 0:
        return True
    if not s.spend():
        return False
    number = _innermost(s, p)
    if number is None:
        return False
    cases = _cases(s, p)
    if cases and all(_prove(s, q) for q in cases):
        return True
    return any(_prove(s, q) for q in _weaker(s, p, number))


def _cases(s: Engine, p: Poly) -> list[Poly]:
    """Return two polynomials, one of which equals `p`; none if `p` has no term to split.

    A min with positive or a max with negative constant factor is split: neither operand bounds such
    a term from below, but it equals one of them. `_prove` splits before it replaces other atoms by
    bounds."""
    for number in sorted({i for mono in p for i in mono}):
        atom = s.atoms[number]
        split = P.coefficient(p, number) if atom.kind in ("min", "max") else None
        sign = P.constant_of(split[0]) if split else None
        if split and sign and (sign < 0) == (atom.kind == "max"):
            return [P.add(split[1], P.scale(side, sign)) for side in (atom.a, atom.b)]
    return []


def lower_bound(s: Engine, p: Poly) -> int:
    """Return the best numeric lower bound of `p` found by replacing atoms one after the other."""
    best = _numeric_bound(s, p)
    # Each step removes an atom, but its bound may bring in others: a limit makes sure of an end.
    for _ in range(16):
        number = _innermost(s, p)
        weaker = next(_weaker(s, p, number), None) if number is not None else None
        if weaker is None:
            break
        p = weaker
        best = max(best, _numeric_bound(s, p))
    return best


def _numeric_bound(s: Engine, p: Poly) -> int:
    """Return the best lower end of the intervals of `p` and of p - k*fact, for facts >= 0."""
    ends = [s.interval(p)[0]]
    for fact in s.facts():
        ends += [s.interval(P.add(p, fact, -k))[0] for k in _multiples(p, fact)]
    return max(ends)


def _multiples(p: Poly, fact: Poly) -> list[int]:
    """Return factors k >= 1 to try in p - k*fact: 1, and those that cancel a term of p."""
    factors = [1]
    for mono, c in fact.items():
        k, remainder = divmod(p.get(mono, 0), c)
        if mono and not remainder and k > 1 and k not in factors:
            factors.append(k)
    return factors


def _innermost(s: Engine, p: Poly) -> int | None:
    """Return the atom of highest rank, the lowest number of several; None if all have rank 0."""
    ranked = {i: s.atoms[i].rank for mono in p for i in mono}
    if not ranked:
        return None
    number = max(sorted(ranked), key=ranked.__getitem__)
    return number if ranked[number] else None


def _weaker(s: Engine, p: Poly, number: int) -> Iterator[Poly]:
    """Yield polynomials that are never more than p and do not contain the atom; none unless p is
    linear in it and the sign of its factor is known."""
    split = P.coefficient(p, number)
    if split is None:
        return
    c, remainder = split
    if s.nonneg(c):
        sign = 1
    elif s.nonneg(P.scale(c, -1)):
        sign = -1
    else:
        return
    for limit in _bounds_of(s, s.atoms[number], c, sign):
        yield P.add(remainder, limit)


def _bounds_of(s: Engine, atom: Atom, c: Poly, sign: int) -> Iterator[Poly]:
    """Yield polynomials that are never more than c*atom; `sign` is the sign of c."""
    lower = sign > 0
    match atom.kind:
        case "var":
            sym = atom.sym_lo if lower else atom.sym_hi
            if sym is not None:
                yield P.mul(c, sym)
        case "div":
            yield from _div_bounds(s, atom, c, lower)
        case "mod":
            yield P.mul(c, {} if lower else s.minus_one(atom.b))
        case "min" | "max":
            # max(a, b) >= a, b and min(a, b) <= a, b; for the other two directions see `_cases`
            if lower == (atom.kind == "max"):
                yield P.mul(c, atom.a)
                yield P.mul(c, atom.b)
    limit = atom.lo if lower else atom.hi
    if s.finite(limit):
        yield P.scale(c, limit)


def _div_bounds(s: Engine, atom: Atom, c: Poly, lower: bool) -> Iterator[Poly]:
    """As `_bounds_of`, for x // d: by x - d + 1 <= d*(x // d) <= x, and by y // d for y that bounds
    x, as floor division is monotonic."""
    x, d = atom.a, atom.b
    if not s.is_divisor(d):
        return
    k, remainder = P.divide(c, d)
    if k and not remainder:
        yield P.mul(k, _low_end(x, d) if lower else x)
    number = _innermost(s, x)
    if number is not None:
        outer = next(_weaker(s, x if lower else P.scale(x, -1), number), None)
        if outer is not None:
            yield P.mul(c, s.floordiv(outer if lower else P.scale(outer, -1), d))


def _low_end(x: Poly, d: Poly) -> Poly:
    return P.add(P.add(x, d, -1), {(): 1})
