"""Brings integer expressions into polynomials over numbered atoms, and reasons about them.

An atom is what a polynomial cannot look into: a variable, `x // d`, `x % d`, `min`, `max` of
polynomials, or any other expression (a load, a cast). Every call of the public functions makes
a new engine, so that results depend on nothing but their arguments: atoms are numbered by first
appearance in the expression.

Index arithmetic is assumed not to overflow; divisors are assumed positive (the IR's rule).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from tensorkiln.arith import poly as P
from tensorkiln.arith import rules
from tensorkiln.arith.poly import Poly
from tensorkiln.arith.proof import prove_nonneg
from tensorkiln.arith.ranges import Bounds, Limit
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Load, Select, Unary, Var
from tensorkiln.ir.visit import walk

# Infinity as an integer: bounds then need no case analysis. Finite bounds stay far below HALF.
INF = 1 << 512
HALF = 1 << 511
_MAX_TERMS = 64
_PROOF_FUEL = 40
INDEX_TYPES = ("int64", "int32")


def is_index(dtype: DType) -> bool:
    """Only scalars of these types are reassociated."""
    return dtype.name in INDEX_TYPES and dtype.lanes == 1


@dataclass(slots=True)
class Atom:
    """`kind` is var, div, mod, min, max or other; the middle four have operands `a` and `b`.

    `rank` is 0 where [lo, hi] says all there is, else above the ranks of what bounds it.
    """

    kind: str
    lo: int
    hi: int
    a: Poly = field(default_factory=dict)
    b: Poly = field(default_factory=dict)
    expr: Expr | None = None
    rank: int = 0
    sym_lo: Poly | None = None
    sym_hi: Poly | None = None


class Engine(ABC):
    """Polynomials, intervals and proofs for one expression under given bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.atoms: list[Atom] = []
        self._ids: dict[object, int] = {}
        self._memo: dict[int, tuple[Expr, Poly]] = {}
        self._facts: list[Poly] | None = None
        self._open: list[Var] = []
        self._fuel = 0
        self._proving = False
        self.has_divisions = False

    # --- from expressions -------------------------------------------------------------------

    def poly(self, e: Expr) -> Poly:
        """The polynomial of an index expression."""
        if isinstance(e, IntImm):
            return {(): e.value} if e.value else {}
        if isinstance(e, Var):
            return self._var(e)
        known = self._memo.get(id(e))
        if known is None:
            # the expression is kept so that its id is not given to another
            known = self._memo[id(e)] = (e, self._poly(e))
        return known[1]

    def _poly(self, e: Expr) -> Poly:
        match e:
            case Binary(op, a, b):
                return self._binary(op, a, b, e)
            case Unary("neg", a):
                return P.scale(self.poly(a), -1)
            case Unary("abs", a):
                return self._abs(a, e)
        return self._other(e)

    def _binary(self, op: str, a: Expr, b: Expr, e: Expr) -> Poly:
        match op:
            case "add":
                return P.add(self.poly(a), self.poly(b))
            case "sub":
                return P.add(self.poly(a), self.poly(b), -1)
            case "mul":
                p, q = self.poly(a), self.poly(b)
                small = len(p) * len(q) <= _MAX_TERMS
                return P.mul(p, q) if small else self._other(e)
            case "floordiv":
                return self.floordiv(self.poly(a), self.poly(b))
            case "floormod":
                return self.floormod(self.poly(a), self.poly(b))
            case "min" | "max":
                return self.extremum(op, self.poly(a), self.poly(b))
            case "shl" | "shr":
                shift = P.constant_of(self.poly(b))
                if shift is not None and 0 <= shift < 31:
                    power = P.constant(1 << shift)
                    p = self.poly(a)
                    return P.mul(p, power) if op == "shl" else self.floordiv(p, power)
        return self._other(e)

    def _abs(self, a: Expr, e: Expr) -> Poly:
        p = self.poly(a)
        if self.nonneg(p):
            return p
        negated = P.scale(p, -1)
        return negated if self.nonneg(negated) else self._other(e)

    def _var(self, v: Var) -> Poly:
        number = self._ids.get(v)
        if number is None:
            number = self._new_var(v)
        atom = self.atoms[number]
        if atom.lo == atom.hi:
            return P.constant(atom.lo)
        return {(number,): 1}

    def var_atom(self, v: Var) -> int:
        """The number of a variable's atom."""
        self._var(v)
        return self._ids[v]

    def _new_var(self, v: Var) -> int:
        lo, hi = self.bounds.get(v, (None, None))
        atom = Atom("var", -INF, INF, expr=v)
        self._open.append(v)
        atom.sym_lo, atom.lo = self._limit(lo, 0)
        atom.sym_hi, atom.hi = self._limit(hi, 1)
        self._open.pop()
        for sym in (atom.sym_lo, atom.sym_hi):
            if sym is not None:
                atom.rank = max(atom.rank, 1 + self.rank(sym))
        return self._intern(v, atom)

    def _limit(self, limit: Limit, side: int) -> tuple[Poly | None, int]:
        """A limit as a polynomial where it is symbolic, and as a number."""
        unbounded = INF if side else -INF
        if limit is None:
            return None, unbounded
        if isinstance(limit, int):
            return None, limit
        if _mentions(limit, self._open):
            return None, unbounded  # a range that refers to itself says nothing
        p = self.norm(self.poly(limit))
        return p, self.interval(p)[side]

    def _other(self, e: Expr) -> Poly:
        """An expression that is not looked into, with its children simplified."""
        new = self.rewrite_children(e)
        if type(new) is not type(e):
            return self.poly(new)
        number = self._ids.get(new)
        if number is None:
            lo, hi = self._other_range(new)
            number = self._intern(new, Atom("other", lo, hi, expr=new))
        return {(number,): 1}

    @abstractmethod
    def rewrite_children(self, e: Expr) -> Expr:
        """`e` with simplified children; the class that knows statements of truth fills it in."""

    def _other_range(self, e: Expr) -> tuple[int, int]:
        match e:
            case Cast(a, dtype):
                lo, hi = self.range_of(a)
                least, most = _dtype_range(dtype)
                # a value that does not fit wraps, and may then be anything
                return (lo, hi) if least <= lo and hi <= most else (least, most)
            case Load():
                return _dtype_range(e.dtype)
            case Select(_, a, b):
                (alo, ahi), (blo, bhi) = self.range_of(a), self.range_of(b)
                return min(alo, blo), max(ahi, bhi)
            case Unary("abs", a):
                lo, hi = self.range_of(a)
                return 0, max(-lo, hi)
            case Binary("bitand", _, IntImm(mask)) if mask >= 0:
                return 0, mask
        return -INF, INF

    def range_of(self, e: Expr) -> tuple[int, int]:
        """Numeric range of any scalar expression."""
        if is_index(e.dtype):
            return self.interval(self.poly(e))
        if isinstance(e, Cast) and not e.dtype.is_float:
            return self._other_range(e)
        return _dtype_range(e.dtype)

    def _intern(self, key: object, atom: Atom) -> int:
        number = self._ids[key] = len(self.atoms)
        self.atoms.append(atom)
        return number

    # --- division, minimum ------------------------------------------------------------------

    def floordiv(self, n: Poly, d: Poly) -> Poly:
        """n // d"""
        if P.constant_of(d) == 1:
            return n
        if not self.is_divisor(d):
            return self._operation("div", n, d)
        q, r = P.divide(self.norm(n), d)
        if not r:
            return q
        for rule in rules.DIV:
            found = rule.apply(self, r, d)
            if found is not None:
                return P.add(q, found)
        return P.add(q, self._operation("div", r, d))

    def floormod(self, n: Poly, d: Poly) -> Poly:
        """n % d"""
        if P.constant_of(d) == 1:
            return {}
        if not self.is_divisor(d):
            return self._operation("mod", n, d)
        r = P.divide(self.norm(n), d)[1]
        if not r:
            return {}
        for rule in rules.MOD:
            found = rule.apply(self, r, d)
            if found is not None:
                return found
        return self._operation("mod", r, d)

    def extremum(self, op: str, a: Poly, b: Poly) -> Poly:
        """min or max"""
        a, b = self.norm(a), self.norm(b)
        difference = P.add(b, a, -1)
        if self.nonneg(difference):
            return a if op == "min" else b
        if self.nonneg(P.scale(difference, -1)):
            return b if op == "min" else a
        if (op, _key(b), _key(a)) in self._ids:
            a, b = b, a
        return self._operation(op, a, b)

    def _operation(self, kind: str, a: Poly, b: Poly) -> Poly:
        key = (kind, _key(a), _key(b))
        number = self._ids.get(key)
        if number is None:
            lo, hi = self._operation_range(kind, a, b)
            rank = max(self.rank(a), self.rank(b))
            numeric = kind == "mod" and P.constant_of(b) is not None
            atom = Atom(kind, lo, hi, a, b, rank=0 if numeric else rank + 1)
            self.has_divisions |= kind in ("div", "mod")
            number = self._intern(key, atom)
        return {(number,): 1}

    def _operation_range(self, kind: str, a: Poly, b: Poly) -> tuple[int, int]:
        (alo, ahi), (blo, bhi) = self.interval(a), self.interval(b)
        if kind == "min":
            return min(alo, blo), min(ahi, bhi)
        if kind == "max":
            return max(alo, blo), max(ahi, bhi)
        if bhi <= 0:
            return -INF, INF
        blo = max(blo, 1)
        if kind == "mod":
            return 0, min(ahi, bhi - 1) if alo >= 0 else bhi - 1
        quotients = [_quotient(x, y) for x in (alo, ahi) for y in (blo, bhi)]
        return min(quotients), max(quotients)

    def norm(self, p: Poly) -> Poly:
        """The sum with divisions and remainders that belong together united."""
        if not self.has_divisions or len(p) < 2:
            return p
        changed = True
        while changed and len(p) > 1:
            changed = False
            for rule in rules.SUM:
                new = rule.apply(self, p)
                if new is not None:
                    p, changed = new, True
                    break
        return p

    # --- questions the rules ask ------------------------------------------------------------

    def parts(self, number: int, kind: str) -> tuple[Poly, Poly] | tuple[None, None]:
        """Numerator and divisor of an atom of this kind."""
        atom = self.atoms[number]
        if atom.kind != kind or not self.is_divisor(atom.b):
            return None, None
        return atom.a, atom.b

    def single(
        self, p: Poly, kind: str, allow_constant: bool = False
    ) -> tuple[Poly, Poly, int] | None:
        """(numerator, divisor, c) where `p` is one division or remainder plus a constant c."""
        c = p.get((), 0)
        if len(p) != (2 if c else 1) or (c and not allow_constant):
            return None
        mono = next(m for m in p if m) if any(p) else ()
        if len(mono) != 1 or p[mono] != 1:
            return None
        a, b = self.parts(mono[0], kind)
        return None if a is None or b is None else (a, b, c)

    def moduli_of(self, p: Poly) -> Iterator[Poly]:
        """Every b for which p % b occurs."""
        for atom in list(self.atoms):
            if atom.kind == "mod" and atom.a == p:
                yield atom.b

    def minus_one(self, p: Poly) -> Poly:
        """p - 1"""
        return P.add(p, {(): -1})

    @staticmethod
    def is_divisor(d: Poly) -> bool:
        """Whether `d` may divide: symbolic divisors are positive, by the IR's rule."""
        value = P.constant_of(d)
        return value is None or value > 0

    @staticmethod
    def finite(value: int) -> bool:
        """Whether a limit says something (it is not INF or -INF)."""
        return -HALF < value < HALF

    def symbolic(self, p: Poly) -> bool:
        """Whether a proof can know more about `p` than its interval."""
        return bool(self.bounds.facts) or self.rank(p) > 0

    def rank(self, p: Poly) -> int:
        """The highest rank of an atom of `p`."""
        atoms = self.atoms
        return max((atoms[i].rank for mono in p for i in mono), default=0)

    def interval(self, p: Poly) -> tuple[int, int]:
        """Numeric bounds of a polynomial, from those of its atoms."""
        lo = hi = 0
        for mono, c in p.items():
            low, high = self._product_range(mono)
            if c > 0:
                lo, hi = lo + c * low, hi + c * high
            else:
                lo, hi = lo + c * high, hi + c * low
        return (lo if lo > -HALF else -INF), (hi if hi < HALF else INF)

    def _product_range(self, mono: tuple[int, ...]) -> tuple[int, int]:
        if not mono:
            return 1, 1
        atom = self.atoms[mono[0]]
        lo, hi = atom.lo, atom.hi
        for number in mono[1:]:
            atom = self.atoms[number]
            ends = (lo * atom.lo, lo * atom.hi, hi * atom.lo, hi * atom.hi)
            lo, hi = min(ends), max(ends)
        return lo, hi

    # --- proofs -----------------------------------------------------------------------------

    def nonneg(self, p: Poly) -> bool:
        """Whether p >= 0 is certain."""
        lo, hi = self.interval(p)
        if lo >= 0:
            return True
        if hi < 0 or not self.symbolic(p):
            return False
        return prove_nonneg(self, p)

    def spend(self) -> bool:
        """One step of the proof in progress; False when it has had enough."""
        self._fuel -= 1
        return self._fuel >= 0

    def begin_proof(self) -> bool:
        """Grant fuel to an outermost proof; False inside another one."""
        if self._proving:
            return False
        self._proving, self._fuel = True, _PROOF_FUEL
        return True

    def end_proof(self) -> None:
        """The outermost proof is over."""
        self._proving = False

    def facts(self) -> list[Poly]:
        """Polynomials known to be >= 0 because a condition holds."""
        if self._open:
            return []  # a variable whose limits are being read has no number yet
        if self._facts is None:
            self._facts = []  # while they are read, they are not used
            fuel, self._fuel = self._fuel, _PROOF_FUEL
            self._facts = [p for cond in self.bounds.facts for p in self._fact(cond)]
            self._fuel = fuel
        return self._facts

    def _fact(self, cond: Expr) -> Iterator[Poly]:
        match cond:
            case Binary("and", a, b):
                yield from self._fact(a)
                yield from self._fact(b)
            case Binary(op, a, b) if op in COMPARE and is_index(a.dtype):
                yield from self.compare(op, self.poly(a), self.poly(b))

    def compare(self, op: str, a: Poly, b: Poly) -> list[Poly]:
        """Polynomials that are all >= 0 exactly where `a op b` holds (not for ne)."""
        match op:
            case "lt":
                return [self.minus_one(P.add(b, a, -1))]
            case "le":
                return [P.add(b, a, -1)]
            case "gt":
                return [self.minus_one(P.add(a, b, -1))]
            case "ge":
                return [P.add(a, b, -1)]
        return [P.add(a, b, -1), P.add(b, a, -1)] if op == "eq" else []


COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")


def _key(p: Poly) -> frozenset[tuple[tuple[int, ...], int]]:
    return frozenset(p.items())


def _quotient(x: int, y: int) -> int:
    if y >= HALF:
        return 0 if x >= 0 else -1 if x > -HALF else -INF
    if x >= HALF:
        return INF
    return x // y if x > -HALF else -INF


def _dtype_range(dtype: DType) -> tuple[int, int]:
    if dtype == BOOL:
        return 0, 1
    if not dtype.is_int or dtype.bits == 64:
        return -INF, INF
    if dtype.is_unsigned:
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def _mentions(e: Expr, names: list[Var]) -> bool:
    return any(x in names for x in walk(e) if isinstance(x, Var))
