"""Proofs of p >= 0 where numbers alone do not decide: bounds that are themselves symbolic.

To show p = c*x + rest >= 0, replace c*x by something that is never more: with c >= 0 a lower
bound of x, with c <= 0 an upper one. Atoms go innermost first (a loop variable before the
dimension that bounds it), until the numeric interval decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tensorkiln.arith import poly as P
from tensorkiln.arith.poly import Poly

if TYPE_CHECKING:
    from tensorkiln.arith.engine import Atom, Engine


def prove_nonneg(s: Engine, p: Poly) -> bool:
    """Whether p >= 0 could be shown. The interval of `p` did not decide."""
    outermost = s.begin_proof()
    try:
        return _prove(s, p)
    finally:
        if outermost:
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
    """What `p` may be, where it has a min or max that is bounded by one of its operands but not by
    both: it is one of them. All of these cases come before the choice of bounds for the others."""
    for number in sorted({i for mono in p for i in mono}):
        atom = s.atoms[number]
        split = P.coefficient(p, number) if atom.kind in ("min", "max") else None
        sign = P.constant_of(split[0]) if split else None
        if split and sign and (sign < 0) == (atom.kind == "max"):
            return [P.add(split[1], P.scale(side, sign)) for side in (atom.a, atom.b)]
    return []


def lower_bound(s: Engine, p: Poly) -> int:
    """The best numeric lower bound found by replacing atoms one after the other."""
    best = _numeric_bound(s, p)
    for _ in range(16):
        number = _innermost(s, p)
        weaker = next(_weaker(s, p, number), None) if number is not None else None
        if weaker is None:
            break
        p = weaker
        best = max(best, _numeric_bound(s, p))
    return best


def _numeric_bound(s: Engine, p: Poly) -> int:
    """The lower end of the interval of `p`, or of `p` less something known to be >= 0."""
    ends = [s.interval(p)[0]]
    for fact in s.facts():
        ends += [s.interval(P.add(p, fact, -k))[0] for k in _multiples(p, fact)]
    return max(ends)


def _multiples(p: Poly, fact: Poly) -> list[int]:
    """Factors k >= 1 for which p - k*fact may be simpler than p."""
    found = [1]
    for mono, c in fact.items():
        k, left = divmod(p.get(mono, 0), c)
        if mono and not left and k > 1 and k not in found:
            found.append(k)
    return found


def _innermost(s: Engine, p: Poly) -> int | None:
    """The atom whose bounds depend on the most others."""
    ranked = {i: s.atoms[i].rank for mono in p for i in mono}
    if not ranked:
        return None
    number = max(sorted(ranked), key=ranked.__getitem__)
    return number if ranked[number] else None


def _weaker(s: Engine, p: Poly, number: int) -> Iterator[Poly]:
    """Polynomials that are <= p everywhere and free of the atom."""
    split = P.coefficient(p, number)
    if split is None:
        return
    c, rest = split
    if s.nonneg(c):
        sign = 1
    elif s.nonneg(P.scale(c, -1)):
        sign = -1
    else:
        return
    for bound in _bounds_of(s, s.atoms[number], c, sign):
        yield P.add(rest, bound)


def _bounds_of(s: Engine, atom: Atom, c: Poly, sign: int) -> Iterator[Poly]:
    """Polynomials <= c*atom, the sign of c being `sign`."""
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
            # only one side of each is bounded by both operands
            if lower == (atom.kind == "max"):
                yield P.mul(c, atom.a)
                yield P.mul(c, atom.b)
    limit = atom.lo if lower else atom.hi
    if s.finite(limit):
        yield P.scale(c, limit)


def _div_bounds(s: Engine, atom: Atom, c: Poly, lower: bool) -> Iterator[Poly]:
    """x - d + 1 <= d*(x // d) <= x, and monotonicity of floor division."""
    x, d = atom.a, atom.b
    if not s.is_divisor(d):
        return
    k, left = P.divide(c, d)
    if k and not left:
        yield P.mul(k, _low_end(x, d) if lower else x)
    number = _innermost(s, x)
    if number is not None:
        outer = next(_weaker(s, x if lower else P.scale(x, -1), number), None)
        if outer is not None:
            yield P.mul(c, s.floordiv(outer if lower else P.scale(outer, -1), d))


def _low_end(x: Poly, d: Poly) -> Poly:
    return P.add(P.add(x, d, -1), {(): 1})
