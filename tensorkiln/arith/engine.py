"""Converts integer expressions to polynomials over numbered atoms, and proves facts about them.

An atom is an indeterminate of the polynomials: a variable; `x // d`, `x % d`, `min` or `max` of
polynomials; or any other expression, such as a load or a cast. `i + 4*(n // 4)` is the polynomial
a + 4*b over the atoms a = i and b = n // 4. Atoms are numbered by first appearance. Each call of a
public function makes a new engine, so results depend on the arguments alone.

Index arithmetic is assumed not to overflow, and symbolic divisors are assumed to be positive;
`tame.py` finds the expressions of a program for which both hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tensorkiln.arith import poly as P
from tensorkiln.arith.poly import Poly
from tensorkiln.arith.ranges import Bounds, Limit
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Select, Unary, Var
from tensorkiln.ir.visit import walk

# Infinity as an integer, so that arithmetic on bounds needs no special case. Values from HALF on
# count as infinite; finite bounds stay far below it.
INF = 1 << 512
HALF = 1 << 511
# A product of more terms stays a single atom, so that polynomials stay small.
_MAX_TERMS = 64
# Steps of one proof, so that one that does not succeed ends soon.
_PROOF_FUEL = 40
INDEX_TYPES = ("int64", "int32")


def is_index(dtype: DType) -> bool:
    """Whether expressions of this type are index arithmetic: int64 and int32 scalars. Operations
    of other types are never reordered."""
    return dtype.name in INDEX_TYPES and dtype.lanes == 1


@dataclass(slots=True)
class Atom:
    """An indeterminate of polynomials. `kind` is var, div, mod, min, max or other; div, mod, min
    and max have operands `a` and `b`. `expr` is the expression it stands for; these four have none
    until they are emitted.

    [lo, hi] is its numeric range; variables may also have symbolic limits `sym_lo` and `sym_hi`.
    `rank` is 0 if nothing is known beyond [lo, hi], else greater than the ranks of all atoms in its
    symbolic limits or operands.
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


@dataclass(frozen=True, slots=True)
class DivisionRule:
    """A law of n // d or n % d: `apply(engine, n, d)` is the rewritten polynomial or None."""

    law: str
    condition: str
    apply: Callable[[Engine, Poly, Poly], Poly | None]


@dataclass(frozen=True, slots=True)
class SumRule:
    """A law of sums: `apply(engine, sum)` is the rewritten polynomial or None."""

    law: str
    condition: str
    apply: Callable[[Engine, Poly], Poly | None]


class Engine(ABC):
    """Polynomials, intervals and proofs for one expression under given bounds.

    What is written in terms of the engine (rules, proofs, conditions) is left to `Simplifier`.
    """

    div_rules: tuple[DivisionRule, ...]
    mod_rules: tuple[DivisionRule, ...]
    sum_rules: tuple[SumRule, ...]

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.atoms: list[Atom] = []
        self._ids: dict[object, int] = {}
        self._memo: dict[int, tuple[Expr, Poly]] = {}
        self._facts: list[Poly] | None = None
        self._converting_facts = False
        self.proofs: dict[frozenset[tuple[P.Monomial, int]], bool] = {}  # by `polynomial_key`
        self._open: list[Var] = []
        self._fuel = 0
        self._proving = False
        self.has_divisions = False

    # --- from expressions -------------------------------------------------------------------

    def poly(self, e: Expr) -> Poly:
        """Return the polynomial of an index expression; memoised by identity of `e`."""
        if isinstance(e, IntImm):
            return {(): e.value} if e.value else {}
        if isinstance(e, Var):
            return self._var(e)
        entry = self._memo.get(id(e))
        if entry is None:
            # a reference to `e` is kept, so that no other object can get its id
            entry = self._memo[id(e)] = (e, self._poly(e))
        return entry[1]

    def _poly(self, e: Expr) -> Poly:
        match e:
            case Binary(op, a, b):
                return self._binary(op, a, b, e)
            case Unary("neg", a):
                return P.scale(self.poly(a), -1)
            case Unary("abs", a):
                return self._abs(a, e)
        return self._single_atom(e)

    def _binary(self, op: str, a: Expr, b: Expr, e: Expr) -> Poly:
        match op:
            case "add":
                return P.add(self.poly(a), self.poly(b))
            case "sub":
                return P.add(self.poly(a), self.poly(b), -1)
            case "mul":
                p, q = self.poly(a), self.poly(b)
                small = len(p) * len(q) <= _MAX_TERMS
                return P.mul(p, q) if small else self._single_atom(e)
            case "floordiv":
                return self.floordiv(self.poly(a), self.poly(b))
            case "floormod":
                return self.floormod(self.poly(a), self.poly(b))
            case "min" | "max":
                return self.extremum(op, self.poly(a), self.poly(b))
            case "shl" | "shr":
                shift = P.constant_of(self.poly(b))
                # Within the range of both int32 and int64, where a shift is a product.
                if shift is not None and 0 <= shift < 31:
                    power = P.constant(1 << shift)
                    p = self.poly(a)
                    return P.mul(p, power) if op == "shl" else self.floordiv(p, power)
        return self._single_atom(e)

    def _abs(self, a: Expr, e: Expr) -> Poly:
        p = self.poly(a)
        if self.nonneg(p):
            return p
        negated = P.scale(p, -1)
        return negated if self.nonneg(negated) else self._single_atom(e)

    def _var(self, v: Var) -> Poly:
        number = self._ids.get(v)
        if number is None:
            number = self._new_var(v)
        return self._value_of(number)

    def _value_of(self, number: int) -> Poly:
        """The polynomial of an atom, which may have one value alone."""
        atom = self.atoms[number]
        return P.constant(atom.lo) if atom.lo == atom.hi else {(number,): 1}

    def var_atom(self, v: Var) -> int:
        """Return the number of a variable's atom, which is made if it does not exist."""
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
        """Return (polynomial, number) for the lower (`side` 0) or upper (1) limit of a variable;
        the polynomial is None if the limit is a number or absent."""
        unbounded = INF if side else -INF
        if limit is None:
            return None, unbounded
        if isinstance(limit, int):
            return None, limit
        if mentions(limit, self._open):
            return None, unbounded  # a limit in terms of its own variable says nothing
        p = self.norm(self.poly(limit))
        return p, self.interval(p)[side]

    def _single_atom(self, e: Expr) -> Poly:
        """Return `e`, with its children simplified, as a single atom; or the polynomial of what
        that simplifies to, if it is no longer of the same class."""
        new = self.rewrite_children(e)
        if type(new) is not type(e):
            return self.poly(new)
        number = self._ids.get(new)
        if number is None:
            lo, hi = self._other_range(new)
            number = self._intern(new, Atom("other", lo, hi, expr=new))
        return self._value_of(number)

    @abstractmethod
    def rewrite_children(self, e: Expr) -> Expr:
        """Return `e` with simplified children. Abstract because children may be conditions, which
        only `Simplifier` handles."""

    def _other_range(self, e: Expr) -> tuple[int, int]:
        match e:
            case Cast(a, dtype):
                lo, hi = self.range_of(a)
                dtype_lo, dtype_hi = _dtype_range(dtype)
                # a value out of range wraps around, and may then be any value of the dtype
                return (lo, hi) if dtype_lo <= lo and hi <= dtype_hi else (dtype_lo, dtype_hi)
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
            case Binary("bitxor", a, b):
                (alo, ahi), (blo, bhi) = self.range_of(a), self.range_of(b)
                if min(alo, blo) >= 0 and max(ahi, bhi) < INF:
                    # one is below 2**k: it changes the k low bits of the other
                    k = min(ahi, bhi).bit_length()
                    return 0, max(ahi, bhi) | ((1 << k) - 1)
        return -INF, INF

    def range_of(self, e: Expr) -> tuple[int, int]:
        """Return inclusive numeric bounds of any scalar expression, +-INF where there is none."""
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
        """Return n // d, simplified by `div_rules`."""
        if P.constant_of(d) == 1:
            return n
        if not self.is_divisor(d):
            return self._operation("div", n, d)
        q, r = P.divide(self.norm(n), d)
        if not r:
            return q
        for rule in self.div_rules:
            quotient = rule.apply(self, r, d)
            if quotient is not None:
                return P.add(q, quotient)
        return P.add(q, self._operation("div", r, d))

    def floormod(self, n: Poly, d: Poly) -> Poly:
        """Return n % d, simplified by `mod_rules`."""
        if P.constant_of(d) == 1:
            return {}
        if not self.is_divisor(d):
            return self._operation("mod", n, d)
        r = P.divide(self.norm(n), d)[1]
        if not r:
            return {}
        for rule in self.mod_rules:
            remainder = rule.apply(self, r, d)
            if remainder is not None:
                return remainder
        return self._operation("mod", r, d)

    def extremum(self, op: str, a: Poly, b: Poly) -> Poly:
        """Return min or max (`op`) of a and b; one of them if it is provably the result."""
        a, b = self.norm(a), self.norm(b)
        difference = P.add(b, a, -1)
        if self.nonneg(difference):
            return a if op == "min" else b
        if self.nonneg(P.scale(difference, -1)):
            return b if op == "min" else a
        # min(a, b) and min(b, a) become the same atom.
        if (op, polynomial_key(b), polynomial_key(a)) in self._ids:
            a, b = b, a
        return self._operation(op, a, b)

    def _operation(self, kind: str, a: Poly, b: Poly) -> Poly:
        key = (kind, polynomial_key(a), polynomial_key(b))
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
        # A divisor is positive (`is_divisor`), whatever its interval says.
        blo = max(blo, 1)
        if kind == "mod":
            return 0, min(ahi, bhi - 1) if alo >= 0 else bhi - 1
        quotients = [_quotient(x, y) for x in (alo, ahi) for y in (blo, bhi)]
        return min(quotients), max(quotients)

    def norm(self, p: Poly) -> Poly:
        """Combine divisions and remainders in a sum by `sum_rules` until no rule applies:
        4*(x // 4) + x % 4 becomes x."""
        if not self.has_divisions or len(p) < 2:
            return p
        changed = True
        while changed and len(p) > 1:
            changed = False
            for rule in self.sum_rules:
                new = rule.apply(self, p)
                if new is not None:
                    p, changed = new, True
                    break
        return p

    # --- queries that the rules make --------------------------------------------------------

    def parts(self, number: int, kind: str) -> tuple[Poly, Poly] | tuple[None, None]:
        """Return numerator and divisor of an atom; (None, None) unless it is of this kind, div or
        mod, and its divisor is not a constant of 0 or less."""
        atom = self.atoms[number]
        if atom.kind != kind or not self.is_divisor(atom.b):
            return None, None
        return atom.a, atom.b

    def single(
        self, p: Poly, kind: str, allow_constant: bool = False
    ) -> tuple[Poly, Poly, int] | None:
        """Return (numerator, divisor, c) if `p` is one division or remainder, as `kind` says, plus
        a constant c, which must be 0 unless `allow_constant`; else None."""
        c = p.get((), 0)
        if len(p) != (2 if c else 1) or (c and not allow_constant):
            return None
        mono = next(m for m in p if m) if any(p) else ()
        if len(mono) != 1 or p[mono] != 1:
            return None
        a, b = self.parts(mono[0], kind)
        return None if a is None or b is None else (a, b, c)

    def moduli_of(self, p: Poly) -> Iterator[Poly]:
        """Yield every b for which an atom p % b exists."""
        for atom in list(self.atoms):
            if atom.kind == "mod" and atom.a == p:
                yield atom.b

    def minus_one(self, p: Poly) -> Poly:
        """p - 1"""
        return P.add(p, {(): -1})

    def is_divisor(self, d: Poly) -> bool:
        """Whether laws of division may be applied for divisor `d`. A constant must be positive. A
        symbolic divisor is assumed to be, as sizes are, unless it has a finite upper limit and may
        be 0, as loop variables do."""
        value = P.constant_of(d)
        if value is not None:
            return value > 0
        lo, hi = self.interval(d)
        return lo > 0 or not self.finite(hi)

    @staticmethod
    def finite(value: int) -> bool:
        """Whether a bound is a number, not INF or -INF."""
        return -HALF < value < HALF

    def symbolic(self, p: Poly) -> bool:
        """Whether a proof can show more about `p` than its interval: there are facts, or atoms with
        symbolic bounds."""
        return bool(self.bounds.facts) or self.rank(p) > 0

    def rank(self, p: Poly) -> int:
        """Return the highest rank of the atoms in `p`; 0 if it is a constant."""
        atoms = self.atoms
        return max((atoms[i].rank for mono in p for i in mono), default=0)

    def interval(self, p: Poly) -> tuple[int, int]:
        """Return numeric bounds of a polynomial by interval arithmetic on its atoms, +-INF where
        there is none."""
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
        """Whether p >= 0 is proved. False does not mean that p is negative."""
        lo, hi = self.interval(p)
        if lo >= 0:
            return True
        if hi < 0 or not self.symbolic(p):
            return False
        return self.prove_nonneg(p)

    @abstractmethod
    def prove_nonneg(self, p: Poly) -> bool:
        """Whether p >= 0 can be proved, for a `p` whose interval does not decide."""

    def spend(self) -> bool:
        """Use up one unit of fuel; return False if none is left and the proof must give up."""
        self._fuel -= 1
        return self._fuel >= 0

    def begin_proof(self) -> bool:
        """Start a proof with fresh fuel and return True; return False inside another proof, whose
        fuel is then shared."""
        if self._proving:
            return False
        self._proving, self._fuel = True, _PROOF_FUEL
        return True

    def end_proof(self) -> None:
        """End the outermost proof."""
        self._proving = False

    def facts(self) -> list[Poly]:
        """Return polynomials that are >= 0 because the conditions `bounds.facts` hold; memoised."""
        if self._open:
            return []  # a variable whose limits are being converted has no atom yet
        if self._facts is None:
            self._facts = []  # converting facts must not use facts: it would recurse
            self._converting_facts = True
            fuel, self._fuel = self._fuel, _PROOF_FUEL
            self._facts = [p for cond in self.bounds.facts for p in self._fact(cond)]
            self._fuel = fuel
            self._converting_facts = False
        return self._facts

    @property
    def is_complete(self) -> bool:
        """Whether proofs use all that is known: not while limits or facts are being converted."""
        return not (self._open or self._converting_facts)

    def _fact(self, cond: Expr) -> Iterator[Poly]:
        match cond:
            case Binary("and", a, b):
                yield from self._fact(a)
                yield from self._fact(b)
            case Binary(op, a, b) if op in COMPARE and is_index(a.dtype):
                yield from self.compare(op, self.poly(a), self.poly(b))

    def compare(self, op: str, a: Poly, b: Poly) -> list[Poly]:
        """Return polynomials that are all >= 0 if and only if `a op b` holds; none for `ne`, which
        has no such form."""
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


def polynomial_key(p: Poly) -> frozenset[tuple[P.Monomial, int]]:
    """A polynomial as a key of dictionaries: its terms in no order."""
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


def mentions(e: Expr, names: list[Var]) -> bool:
    """Whether one of the variables occurs in `e`."""
    return any(x in names for x in walk(e) if isinstance(x, Var))
