"""Integer polynomials: the sum-of-products form in which index arithmetic is done.

    Poly = {monomial: coefficient}    no zero coefficients; {} is 0
    monomial = (atom, atom, ...)      atom numbers in rising order, repeated for powers; () is 1

3*x*x*y - 2 is {(0, 0, 1): 3, (): -2} for atoms x = 0 and y = 1. `engine.Engine` numbers the atoms.
A Poly is never changed after it is built.
"""

from __future__ import annotations

from math import gcd

Monomial = tuple[int, ...]
Poly = dict[Monomial, int]


def constant(value: int) -> Poly:
    """The polynomial of a number."""
    return {(): value} if value else {}


def constant_of(p: Poly) -> int | None:
    """Return the value of `p` if it is a constant, else None."""
    if not p:
        return 0
    return p.get(()) if len(p) == 1 else None


def add(p: Poly, q: Poly, k: int = 1) -> Poly:
    """p + k*q"""
    if not k:
        return p
    out = dict(p)
    for mono, c in q.items():
        value = out.get(mono, 0) + k * c
        if value:
            out[mono] = value
        else:
            del out[mono]
    return out


def scale(p: Poly, k: int) -> Poly:
    """k*p"""
    return {mono: c * k for mono, c in p.items()} if k else {}


def times(p: Poly, mono: Monomial, k: int) -> Poly:
    """p * k * mono"""
    if not mono:
        return scale(p, k)
    return {tuple(sorted(m + mono)): c * k for m, c in p.items()}


def mul(p: Poly, q: Poly) -> Poly:
    """p*q"""
    if len(p) < len(q):
        p, q = q, p
    out: Poly = {}
    for mono, c in q.items():
        out = add(out, times(p, mono, c)) if out else times(p, mono, c)
    return out


def without(mono: Monomial, part: Monomial) -> Monomial | None:
    """Return mono / part; None if `part` does not divide `mono`."""
    if not part:
        return mono
    quotient = list(mono)
    for atom in part:
        if atom not in quotient:
            return None
        quotient.remove(atom)
    return tuple(quotient)


def common(m: Monomial, n: Monomial) -> Monomial:
    """Return the greatest common divisor of two monomials."""
    atoms, out = list(n), []
    for atom in m:
        if atom in atoms:
            atoms.remove(atom)
            out.append(atom)
    return tuple(out)


def leading(d: Poly) -> tuple[Monomial, int]:
    """Return the monomial of highest degree, the first of several, and its coefficient."""
    mono = max(d, key=len)
    return mono, d[mono]


def divide(n: Poly, d: Poly) -> tuple[Poly, Poly]:
    """Return (q, r) with n = q*d + r: q holds the quotients of those terms of n that the leading
    term of d divides.

    If d is a constant, the constant term of r is in [0, d): 4*x + 7 by 4 is (x + 1, 3). If d has
    several terms and r no fewer than n, return ({}, n).
    """
    lead, k = leading(d)
    q: Poly = {}
    for mono, c in n.items():
        quotient = without(mono, lead)
        if quotient is not None and c % k == 0:
            q[quotient] = c // k
        elif not mono and not lead and c // k:
            q[()] = c // k
    if not q:
        return q, n
    r = add(n, mul(q, d), -1)
    if len(d) > 1 and len(r) >= len(n):
        return {}, n
    return q, r


def content(p: Poly) -> int:
    """Return the greatest common divisor of all coefficients but the constant term; 0 if there is
    no other term."""
    return gcd(*(c for mono, c in p.items() if mono))


def coefficient(p: Poly, atom: int) -> tuple[Poly, Poly] | None:
    """Return (c, remainder) with p = c*atom + remainder, both free of `atom`; None if p contains a
    higher power of it."""
    c: Poly = {}
    remainder: Poly = {}
    for mono, k in p.items():
        if atom not in mono:
            remainder[mono] = k
            continue
        reduced = without(mono, (atom,))
        if reduced is None or atom in reduced:
            return None
        c[reduced] = k
    return c, remainder
