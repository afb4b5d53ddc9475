"""From polynomials back to expressions, with few operations and in a canonical order of terms.

Terms are sorted by degree and absolute coefficient, largest first, then by name. Terms with a
common coefficient or symbolic factor share the multiplication: `b*S*768 + s*768 + h*64` becomes
`(b*S + s)*768 + h*64`.
"""

from __future__ import annotations

from tensorkiln.arith.engine import Engine
from tensorkiln.arith.poly import Monomial, Poly, without
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Binary, Expr, IntImm, Unary, Var

_OPERATION = {"div": "floordiv", "mod": "floormod", "min": "min", "max": "max"}
_ORDER = ("var", "div", "mod", "min", "max", "other")

Part = tuple[bool, Expr]  # (True to add, False to subtract; what to add or subtract)


def emit(s: Engine, p: Poly, dtype: DType) -> Expr:
    """Return a polynomial as an expression of type `dtype`."""
    constant = p.get((), 0)
    parts = _parts(s, {m: c for m, c in p.items() if m}, dtype) if constant else _parts(s, p, dtype)
    return _join(parts, constant, dtype)


def _join(parts: list[Part], constant: int, dtype: DType) -> Expr:
    first = next((i for i, (plus, _) in enumerate(parts) if plus), None)
    if first is not None:
        total = parts[first][1]
        summands = parts[:first] + parts[first + 1 :]
    elif constant or not parts:
        total, summands, constant = IntImm(constant, dtype), parts, 0
    else:
        total, summands = Unary("neg", parts[0][1]), parts[1:]
    for plus, e in summands:
        total = Binary("add" if plus else "sub", total, e)
    if constant:
        op = "add" if constant > 0 else "sub"
        total = Binary(op, total, IntImm(abs(constant), dtype))
    return total


def _parts(s: Engine, p: Poly, dtype: DType) -> list[Part]:
    """Return the summands of `p`, which has no constant term."""
    if len(p) == 1:
        ((mono, c),) = p.items()
        return [(c > 0, _product(s, mono, abs(c), dtype))]
    shared = _shared_atom(s, p)
    if shared is not None:
        inner: Poly = {}
        unshared: Poly = {}
        for mono, c in p.items():
            reduced = without(mono, (shared,))
            if reduced is None:
                unshared[mono] = c
            else:
                inner[reduced] = c
        return [_scaled(s, inner, atom_expr(s, shared, dtype), dtype), *_parts(s, unshared, dtype)]
    by_size: dict[int, Poly] = {}
    for mono in sorted(p, key=lambda m: _term_key(s, m, p[m])):
        by_size.setdefault(abs(p[mono]), {})[mono] = p[mono]
    parts: list[Part] = []
    for k, group in by_size.items():
        if k == 1 or len(group) == 1:
            parts += [(c > 0, _product(s, m, k, dtype)) for m, c in group.items()]
        else:
            unit = {m: c // k for m, c in group.items()}
            parts.append(_scaled(s, unit, IntImm(k, dtype), dtype))
    return parts


def _scaled(s: Engine, p: Poly, factor: Expr, dtype: DType) -> Part:
    """Return p * factor as one summand, to be subtracted if every term of `p` is negative."""
    plus = any(c > 0 for c in p.values())
    inner = emit(s, p if plus else {m: -c for m, c in p.items()}, dtype)
    if isinstance(inner, IntImm) and inner.value == 1:
        return plus, factor
    # Constants stand on the right.
    if isinstance(inner, IntImm):
        inner, factor = factor, inner
    return plus, Binary("mul", inner, factor)


def _shared_atom(s: Engine, p: Poly) -> int | None:
    """Return the atom that most terms contain; None if fewer than two terms share one, or if no
    term is a product, as then no multiplication is saved."""
    if all(len(mono) < 2 for mono in p):
        return None
    count: dict[int, int] = {}
    for mono in p:
        for number in dict.fromkeys(mono):
            count[number] = count.get(number, 0) + 1
    best = min(count, key=lambda i: (-count[i], _atom_key(s, i)))
    return best if count[best] > 1 else None


def _product(s: Engine, mono: Monomial, k: int, dtype: DType) -> Expr:
    if len(mono) == 1:
        total = atom_expr(s, mono[0], dtype)
    else:
        first, *factors = sorted(mono, key=lambda i: _atom_key(s, i))
        total = atom_expr(s, first, dtype)
        for number in factors:
            total = Binary("mul", total, atom_expr(s, number, dtype))
    return total if k == 1 else Binary("mul", total, IntImm(k, dtype))


def atom_expr(s: Engine, number: int, dtype: DType) -> Expr:
    """Return the expression that an atom stands for; memoised in the atom."""
    atom = s.atoms[number]
    if atom.expr is None:
        a, b = emit(s, s.norm(atom.a), dtype), emit(s, s.norm(atom.b), dtype)
        atom.expr = Binary(_OPERATION[atom.kind], a, b)
    return atom.expr


def _term_key(s: Engine, mono: Monomial, c: int) -> tuple[object, ...]:
    return (-len(mono), -abs(c), *sorted(_atom_key(s, i) for i in mono))


def _atom_key(s: Engine, number: int) -> tuple[int, str, str, int]:
    """Sort key: variables by name, then other atoms by kind; ties go by first appearance."""
    atom = s.atoms[number]
    name = atom.expr.name if isinstance(atom.expr, Var) else ""
    return (_ORDER.index(atom.kind), name.casefold(), name, number)
