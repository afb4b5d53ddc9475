"""The rules of index arithmetic, one row each: the law, its condition, and how it is applied.

`law` and `condition` are Python expressions over integers, LOGIC rows over booleans; tests check
every row by brute force. DIV, MOD and SUM work on polynomials: `apply` takes the engine and the
operands and returns the rewritten polynomial, or None if the row does not apply. LOGIC rows are
patterns, in which a lower-case name matches any expression; `match.py` applies them.

Multiples of `d` have been removed from `n` before DIV and MOD rows are applied: for (4*x + r) // 4
they get n = r and d = 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from tensorkiln.arith import poly as P
from tensorkiln.arith.engine import DivisionRule, Engine, SumRule
from tensorkiln.arith.poly import Monomial, Poly


@dataclass(frozen=True, slots=True)
class Logic:
    """A law of booleans and selects: what matches `before` is rewritten to `after`."""

    before: str
    after: str


def _constant_quotient(s: Engine, n: Poly, d: Poly) -> int | None:
    """Return a constant k with k*d <= n < (k+1)*d, so that n // d is k; None if none is proved."""
    dc = P.constant_of(d)
    if dc is not None:
        lo, hi = s.interval(n)
        if s.finite(lo) and lo // dc == hi // dc:
            return lo // dc
        if not s.symbolic(n):
            return None
    if s.nonneg(n) and s.nonneg(s.minus_one(P.add(d, n, -1))):
        return 0
    negative = s.nonneg(s.minus_one(P.scale(n, -1)))
    return -1 if negative and s.nonneg(P.add(n, d)) else None


def _common_factors(n: Poly, d: Poly) -> list[tuple[Monomial, int]]:
    """Return factors of `d` that some term of `n` has too, as (monomial, coefficient), largest
    first; none unless `d` is a single term."""
    if len(d) != 1:
        return []
    ((dm, dc),) = d.items()
    factors: dict[tuple[Monomial, int], None] = {}
    for mono, c in n.items():
        g = (P.common(dm, mono), gcd(dc, c))
        if mono and g != ((), 1) and g != (dm, dc):
            factors.setdefault(g)
    return sorted(factors, key=lambda g: (-len(g[0]), -g[1]))


def _factored(s: Engine, n: Poly, d: Poly) -> tuple[Poly, Poly, Poly, Poly] | None:
    """Return (g, x, r, c) with n = g*x + r, 0 <= r < g and d = g*c; None if none is found."""
    for mono, k in _common_factors(n, d):
        g = {mono: k}
        x, r = P.divide(n, g)
        if x and s.nonneg(r) and s.nonneg(s.minus_one(P.add(g, r, -1))):
            return g, x, r, P.divide(d, g)[0]
    return None


def _div_decided(s: Engine, n: Poly, d: Poly) -> Poly | None:
    k = _constant_quotient(s, n, d)
    return None if k is None else P.constant(k)


def _mod_decided(s: Engine, n: Poly, d: Poly) -> Poly | None:
    k = _constant_quotient(s, n, d)
    return None if k is None else P.add(n, d, -k)


def _div_of_div(s: Engine, n: Poly, d: Poly) -> Poly | None:
    parts = s.single(n, "div", allow_constant=True)
    if parts is None:
        return None
    x, a, c = parts
    return s.floordiv(P.add(x, a, c), P.mul(a, d))


def _div_of_mod(s: Engine, n: Poly, d: Poly) -> Poly | None:
    parts = s.single(n, "mod")
    if parts is None:
        return None
    x, m, _ = parts
    b, remainder = P.divide(m, d)
    return s.floormod(s.floordiv(x, d), b) if b and not remainder else None


def _div_factor(s: Engine, n: Poly, d: Poly) -> Poly | None:
    parts = _factored(s, n, d)
    return s.floordiv(parts[1], parts[3]) if parts else None


def _mod_factor(s: Engine, n: Poly, d: Poly) -> Poly | None:
    parts = _factored(s, n, d)
    if not parts:
        return None
    g, x, r, c = parts
    return P.add(P.mul(g, s.floormod(x, c)), r)


def _mod_residue(s: Engine, n: Poly, d: Poly) -> Poly | None:
    dc = P.constant_of(d)
    if dc is None or all(-dc < c < dc for c in n.values()):
        return None
    small = {m: (c % dc if c > 0 else -(-c % dc)) for m, c in n.items()}
    return s.floormod({m: c for m, c in small.items() if c}, d)


def _operations(
    s: Engine, p: Poly, kind: str
) -> Iterator[tuple[Monomial, int, Poly, Poly, Poly, Monomial]]:
    """Yield (term, k, q, x, c, cofactor) for each q = x // c or x % c, as `kind` says, in the terms
    k*q*cofactor of `p`."""
    for mono, k in p.items():
        for atom in mono:
            x, c = s.parts(atom, kind)
            cofactor = P.without(mono, (atom,))
            if x is not None and c is not None and cofactor is not None:
                yield mono, k, {(atom,): 1}, x, c, cofactor


def _mod_of_mod(s: Engine, n: Poly, d: Poly) -> Poly | None:
    for mono, k, _, x, m, cofactor in _operations(s, n, "mod"):
        q, remainder = P.divide(P.times(m, cofactor, k), d)
        if q and not remainder:
            other_terms = {o: c for o, c in n.items() if o != mono}
            return s.floormod(P.add(other_terms, P.times(x, cofactor, k)), d)
    return None


def _sum_whole(s: Engine, p: Poly) -> Poly | None:
    for _, k, q, x, c, cofactor in _operations(s, p, "mod"):
        change = P.add(P.add(x, P.mul(c, s.floordiv(x, c)), -1), q, -1)
        new = P.add(p, P.times(change, cofactor, k))
        if len(new) < len(p):
            return new
    return None


def _sum_mods(s: Engine, p: Poly) -> Poly | None:
    for _, k, r, x, a, cofactor in _operations(s, p, "mod"):
        q = s.floordiv(x, a)
        for b in s.moduli_of(q):
            change = P.add(s.floormod(x, P.mul(a, b)), r, -1)
            change = P.add(change, P.mul(a, s.floormod(q, b)), -1)
            new = P.add(p, P.times(change, cofactor, k))
            if len(new) < len(p):
                return new
    return None


def _sum_rest(s: Engine, p: Poly) -> Poly | None:
    for _, k, q, x, c, cofactor in _operations(s, p, "div"):
        f, remainder = P.divide(P.times({(): 1}, cofactor, k), c)
        if not f or remainder:
            continue
        # k*cofactor*q = f*c*q with q = x // c: if p also has -f*x, both sum to -f*(x % c)
        change = P.add(P.add(s.floormod(x, c), P.mul(c, q)), x, -1)
        new = P.add(p, P.mul(P.scale(f, -1), change))
        if len(new) < len(p):
            return new
    return None


DIV: tuple[DivisionRule, ...] = (
    DivisionRule("n // d == k", "k*d <= n < (k + 1)*d", _div_decided),
    DivisionRule("(x // a + c) // d == (x + c*a) // (a*d)", "a > 0", _div_of_div),
    DivisionRule("(x % (d*b)) // d == (x // d) % b", "b > 0", _div_of_mod),
    DivisionRule("(g*x + r) // (g*c) == x // c", "0 <= r < g and c > 0", _div_factor),
)

MOD: tuple[DivisionRule, ...] = (
    DivisionRule("n % d == n - k*d", "k*d <= n < (k + 1)*d", _mod_decided),
    DivisionRule("(c*x + n) % d == ((c - k*d)*x + n) % d", "True", _mod_residue),
    DivisionRule("(c*(x % m) + n) % d == (c*x + n) % d", "m > 0 and (c*m) % d == 0", _mod_of_mod),
    DivisionRule("(g*x + r) % (g*c) == g*(x % c) + r", "0 <= r < g and c > 0", _mod_factor),
)

SUM: tuple[SumRule, ...] = (
    SumRule("k*c*(x // c) + k*(x % c) == k*x", "c > 0", _sum_whole),
    SumRule("k*a*((x // a) % b) + k*(x % a) == k*(x % (a*b))", "a > 0 and b > 0", _sum_mods),
    SumRule("k*x - k*c*(x // c) == k*(x % c)", "c > 0", _sum_rest),
)

LOGIC: tuple[Logic, ...] = (
    Logic("x and x", "x"),
    Logic("x and not x", "False"),
    Logic("not x and x", "False"),
    Logic("(x and y) and x", "x and y"),
    Logic("(x and y) and y", "x and y"),
    Logic("x and (x and y)", "x and y"),
    Logic("y and (x and y)", "x and y"),
    Logic("x and (x or y)", "x"),
    Logic("x or True", "True"),
    Logic("True or x", "True"),
    Logic("x or False", "x"),
    Logic("False or x", "x"),
    Logic("x or x", "x"),
    Logic("x or not x", "True"),
    Logic("not x or x", "True"),
    Logic("(x or y) or x", "x or y"),
    Logic("(x or y) or y", "x or y"),
    Logic("x or (x or y)", "x or y"),
    Logic("y or (x or y)", "x or y"),
    Logic("x or (x and y)", "x"),
    Logic("not True", "False"),
    Logic("not False", "True"),
    Logic("not not x", "x"),
    Logic("select(c, x, x)", "x"),
    Logic("select(not c, x, y)", "select(c, y, x)"),
    Logic("select(c, True, False)", "c"),
    Logic("select(c, False, True)", "not c"),
)
