"""Index expressions and conditions as text for the integer set library (isl).

A loop variable is written `@3`. Where a set relates several instances of a statement, the sign is
replaced by the letter of an instance: `x3 < y3`. A subexpression that isl cannot express becomes a
parameter, if it has the same value for all instances in question. Otherwise the expression is not
affine, and callers assume that it can have any value.
"""

from __future__ import annotations

from collections.abc import Container

from tensorkiln.arith.digits import UNBOUNDED, Range, Sum, Term, digits, equal, range_of, scaled
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Binary, CallExtern, Cast, Expr, IntImm, Unary, Var, int_value
from tensorkiln.ir.visit import walk

_ARITHMETIC = {"add": "+", "sub": "-"}
# isl does not accept the words true and false in all places
TRUE, FALSE = "1 = 1", "1 = 0"
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=", "ne": "!="}


def at(text: str, letter: str) -> str:
    """A text about the instance named `letter`: "@3 < 8" becomes "x3 < 8" for x."""
    return text.replace("@", letter)


def _is_mask(n: int) -> bool:
    return n > 0 and n & (n + 1) == 0


def _low_bits(e: Expr) -> int:
    """An n such that all values of an expression are in 0..2**n - 1; 0 if none is known."""
    match e:
        case Binary("bitand", _, IntImm(n)) if _is_mask(n):
            return n.bit_length()
        case Binary("floormod", _, IntImm(n)) if n > 1 and _is_mask(n - 1):
            return (n - 1).bit_length()
        case IntImm(n) if n > 0:
            return n.bit_length()
    return 0


class NotAffine(Exception):
    """The expression has no exact affine form: callers assume that it can have any value."""


class AffineText:
    """Translates expressions. `env` maps a variable to its text, or to None if it can have any
    value; a variable that is not in `env` is a parameter.

    `constant`: buffers whose contents do not change, so that loads from them can be parameters.
    `params`: the expressions that became parameters. `param_facts`: conditions on these.
    `sums`: the terms of texts that have several, or a range. `ranges`: of coordinates.
    """

    def __init__(self, constant: Container[Buffer]):
        self.env: dict[Var, str | None] = {}
        self.params: dict[Expr, str] = {}
        self.param_facts: list[str] = []
        self.quotients: dict[tuple[Expr, Expr], tuple[str, str]] = {}
        self.count = 0
        self.constant = constant
        self.sums: dict[str, Sum] = {}
        self.ranges: dict[str, Range] = {"1": (1, 1)}

    def fresh(self) -> str:
        """The text of a new instance variable: `@1`, `@2`, ..."""
        self.count += 1
        return f"@{self.count}"

    def param(self, e: Expr, size: bool = False) -> str:
        """The parameter that stands for an expression; with `size`, a fact says that it is not
        negative."""
        name = self.params.get(e)
        if name is None:
            name = self.params[e] = f"p{len(self.params)}"
            if size:
                self.param_facts.append(f"{name} >= 0")
        return name

    def set_range(self, dim: str, lo: Expr, extent: Expr) -> None:
        """Take note that a coordinate is in the range of a loop, if that is one of numbers. Of
        several loops with the same coordinate it may be in any."""
        first, count = int_value(lo), int_value(extent)
        if first is None or count is None:
            self.ranges[dim] = UNBOUNDED
            return
        low, high = self.ranges.get(dim, (first, first + count - 1))
        self.ranges[dim] = min(low, first), max(high, first + count - 1)

    def equations(self, i: str, x: str, j: str, y: str) -> list[str]:
        """The conditions under which number `i` of the instance named `x` equals `j` of `y`, where
        coordinates are in their ranges."""
        return [equal(a, x, b, y) for a, b in digits(self.sum(i), self.sum(j), self.ranges)]

    def below(self, index: str, extent: Expr) -> bool:
        """Whether the ranges of coordinates alone keep a text in 0..extent - 1."""
        low, high = range_of(self.sum(index), self.ranges)
        count = int_value(extent)
        return low >= 0 and count is not None and high < count

    def sum(self, text: str) -> Sum:
        """The terms of an integer text."""
        return self.sums.get(text, (Term(1, text),))

    def _summed(self, text: str, *terms: Term) -> str:
        self.sums[text] = terms
        return text

    # ---- integers ----------------------------------------------------------------------------

    def text(self, e: Expr) -> str:
        """The text of an integer expression. Raises NotAffine."""
        match e:
            case IntImm(value):
                literal = str(value) if value >= 0 else f"({value})"
                return self._summed(literal, *([Term(value, "1")] if value else []))
            case Var():
                if e not in self.env:
                    return self.param(e)
                text = self.env[e]
                if text is None:
                    raise NotAffine(e.name)
                return text
            # A symbolic divisor is not affine; whoever collected the accesses has introduced
            # variables for quotient and remainder.
            case Binary(op, a, b) if op in ("floordiv", "floormod") and (a, b) in self.quotients:
                return self.quotients[a, b][op == "floormod"]
            case Binary(op, a, b):
                try:
                    return self._binary(op, a, b)
                except NotAffine:
                    return self._same_for_all(e)
            case Unary("neg", a):
                return f"(-{self.text(a)})"
            case Cast(a, dtype) if dtype.is_int and a.dtype.is_int:
                return self.text(a)
        return self._same_for_all(e)

    def _binary(self, op: str, a: Expr, b: Expr) -> str:
        if op in _ARITHMETIC:
            x, y = self.text(a), self.text(b)
            terms = *self.sum(x), *scaled(self.sum(y), 1 if op == "add" else -1)
            return self._summed(f"({x} {_ARITHMETIC[op]} {y})", *terms)
        if op in ("min", "max"):
            return f"{op}({self.text(a)}, {self.text(b)})"
        number = int_value(b)
        if op == "mul":
            if number is None:
                number, a = int_value(a), b
            if number is not None:
                x = self.text(a)
                terms = tuple(scaled(self.sum(x), number)) if number else ()
                return self._summed(f"({number} * {x})", *terms)
        elif number is not None and number > 0 and op in ("floordiv", "floormod", "bitand"):
            return self._divided(op, a, number)
        elif op == "bitxor":
            bits = sorted((_low_bits(a), _low_bits(b)))
            if bits[1]:
                return self._flipped(self.text(a), self.text(b), bits[1], bits[0] == 0)
        raise NotAffine(op)

    def _divided(self, op: str, a: Expr, number: int) -> str:
        if op == "bitand":
            if not _is_mask(number):
                raise NotAffine(op)
            number += 1
        x = self.text(a)
        if op == "floordiv":
            quotient = self._quotient(x, number)
            return self._summed(quotient.text, quotient)
        text = f"(({x}) mod {number})"
        return self._summed(text, Term(1, text, of=f"({x})", modulus=number))

    def _quotient(self, x: str, number: int, factor: int = 1) -> Term:
        return Term(factor, f"floor(({x}) / {number})", self.sum(x), number)

    def _flipped(self, x: str, y: str, bits: int, may_exceed: bool) -> str:
        """x ^ y where one of both is below 2**bits. Each low bit is a sum modulo 2. If the other
        may be larger (`may_exceed`), the higher parts of x and y are added to that: one is 0."""
        terms: list[Term] = []
        if may_exceed:
            terms += [self._quotient(z, 1 << bits, 1 << bits) for z in (x, y)]
        for k in range(bits):
            bit = " + ".join(self._quotient(z, 1 << k).text for z in (x, y))
            terms.append(Term(1 << k, f"(({bit}) mod 2)", of=f"({bit})", modulus=2))
        return self._summed(f"({' + '.join(f'{t.factor} * {t.text}' for t in terms)})", *terms)

    def _same_for_all(self, e: Expr) -> str:
        """A parameter for an integer expression that has the same value for all instances. Raises
        NotAffine if it may vary."""
        for x in walk(e):
            if isinstance(x, Var) and self._varies(x):
                raise NotAffine(x.name)
            if isinstance(x, Load) and x.buffer not in self.constant:
                raise NotAffine(x.buffer.name)
            if isinstance(x, CallExtern) or x.dtype.lanes != 1:
                raise NotAffine("a call or a vector")
        if not e.dtype.is_int:
            raise NotAffine(str(e.dtype))
        return self.param(e)

    def _varies(self, v: Var) -> bool:
        text = self.env.get(v, "p")
        return text is None or "@" in text

    def maybe(self, e: Expr) -> str | None:
        """The text of an integer expression, or None if it is not affine."""
        try:
            return self.text(e)
        except NotAffine:
            return None

    def less(self, dim: str, e: Expr) -> str:
        """The text of `dim < e`. What is less than the larger of two numbers is less than one of
        them, which isl need not order. Raises NotAffine."""
        match e:
            case Binary("min" | "max" as op, a, b):
                try:
                    parts = self.less(dim, a), self.less(dim, b)
                except NotAffine:
                    return f"{dim} < {self._same_for_all(e)}"
                return f"({(' and ' if op == 'min' else ' or ').join(parts)})"
            case Cast(a, dtype) if dtype.is_int and a.dtype.is_int:
                return self.less(dim, a)
        return f"{dim} < {self.text(e)}"

    # ---- conditions --------------------------------------------------------------------------

    def condition(self, e: Expr) -> str:
        """The text of a condition. Raises NotAffine."""
        match e:
            case IntImm(value):
                return TRUE if value else FALSE
            case Binary("and" | "or" as op, a, b):
                return f"(({self.condition(a)}) {op} ({self.condition(b)}))"
            case Unary("not", a):
                return f"(not ({self.condition(a)}))"
            case Binary(op, a, b) if op in _COMPARE and a.dtype.is_int and a.dtype.lanes == 1:
                return f"{self.text(a)} {_COMPARE[op]} {self.text(b)}"
        raise NotAffine(type(e).__name__)

    def known_part(self, e: Expr, truth: bool = True) -> tuple[list[str], bool]:
        """(affine conditions that hold if `e` is `truth`, whether `e` is `truth` whenever they
        hold)"""
        match e:
            case Binary("and", a, b) if truth:
                lhs, exact_left = self.known_part(a)
                rhs, exact_right = self.known_part(b)
                return lhs + rhs, exact_left and exact_right
            case Unary("not", a):
                return self.known_part(a, not truth)
        try:
            text = self.condition(e)
        except NotAffine:
            return [], False
        return [text if truth else f"(not ({text}))"], True
