"""Simplification of any scalar or vector expression.

Index expressions are converted to polynomials and back, and comparisons of them are decided by
proof where possible. Other expressions are rebuilt from simplified children. Floating-point
operations are never reordered or merged.
"""

from __future__ import annotations

from tensorkiln.arith import poly as P
from tensorkiln.arith import proof, rules
from tensorkiln.arith.emit import emit
from tensorkiln.arith.engine import COMPARE, Engine, is_index
from tensorkiln.arith.match import rewrite
from tensorkiln.arith.poly import Poly
from tensorkiln.arith.ranges import Bounds
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Binary, Expr, FloatImm, IntImm, Reduce, Select, Unary, Var
from tensorkiln.ir.visit import children, map_children

TRUE = IntImm(1, BOOL)
FALSE = IntImm(0, BOOL)
# in additions: a division by a constant becomes a multiplication, a shift and corrections
_COST = {"floordiv": 6, "floormod": 7}
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


class Simplifier(Engine):
    """An engine with rules and proofs, that returns expressions and also handles conditions."""

    div_rules, mod_rules, sum_rules = rules.DIV, rules.MOD, rules.SUM

    def prove_nonneg(self, p: Poly) -> bool:
        """As `proof.prove_nonneg`."""
        return proof.prove_nonneg(self, p)

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._simplified: dict[int, tuple[Expr, Expr]] = {}

    def simplify(self, e: Expr) -> Expr:
        """Return an equal expression of the same dtype, usually a cheaper one; `e` itself if an
        index or condition does not change. Memoised by identity of `e`."""
        if isinstance(e, IntImm | FloatImm):
            return e
        # a reference to `e` is kept, so that no other object can get its id
        entry = self._simplified.get(id(e))
        if entry is None:
            new = self._simplify(e)
            if not isinstance(e, Var) and _is_truth_or_index(e.dtype) and new == e:
                new = e
            entry = self._simplified[id(e)] = (e, new)
        return entry[1]

    def _simplify(self, e: Expr) -> Expr:
        dtype = e.dtype
        if is_index(dtype):
            new = emit(self, self.norm(self.poly(e)), dtype)
        elif _is_truth_or_index(dtype):
            new = self.condition(e)
        else:
            return self.rewrite_children(e)
        if cost(new) <= cost(e):
            return new
        # expanding a product can cost more than it saves: keep the root, simplify its children
        rebuilt = map_children(e, self.simplify)
        return rebuilt if cost(rebuilt) < cost(new) else new

    def rewrite_children(self, e: Expr) -> Expr:
        """Return `e` with simplified children; in a `Reduce`, the ranges of its axes are known."""
        if isinstance(e, Reduce):
            # Variables are unique, so the ranges may stay for the rest of the expression.
            for var, extent in e.axes:
                self.bounds = self.bounds.with_loop(var, 0, extent)
        if isinstance(e, Select):
            cond = self.simplify(e.cond)
            if isinstance(cond, IntImm):
                return self.simplify(e.a if cond.value else e.b)
        return self._with_logic(map_children(e, self.simplify))

    def condition(self, e: Expr) -> Expr:
        """Return a scalar condition simplified; True or False if a proof decides it."""
        match e:
            case Var() | IntImm():
                return e
            case Binary(op, a, b) if op in COMPARE and is_index(a.dtype):
                return self._comparison(op, self.poly(a), self.poly(b), a.dtype)
            case Unary("not", Binary(op, a, b)) if op in COMPARE and is_index(a.dtype):
                return self._comparison(_NEGATED[op], self.poly(a), self.poly(b), a.dtype)
            case Binary("and" | "or" as op, a, b):
                return self._connective(op, a, b)
        return self.rewrite_children(e)

    def _connective(self, op: str, a: Expr, b: Expr) -> Expr:
        x, y = self.simplify(a), self.simplify(b)
        for constant, operand in ((x, y), (y, x)):
            if isinstance(constant, IntImm):
                return operand if bool(constant.value) == (op == "and") else constant
        return self._with_logic(Binary(op, x, y))

    @staticmethod
    def _with_logic(e: Expr) -> Expr:
        while True:
            new = rewrite(e)
            if new is None:
                return e
            e = new

    def _comparison(self, op: str, a: Poly, b: Poly, dtype: DType) -> Expr:
        if op in ("eq", "ne"):
            return self._equality(op, self.norm(P.add(a, b, -1)), dtype)
        (p,) = self.compare(op, a, b)
        p = self.norm(p)
        if self.nonneg(p):
            return TRUE
        if self.nonneg(self.minus_one(P.scale(p, -1))):
            return FALSE
        g = P.content(p)
        if g > 1:
            # g*x + c >= 0 if and only if x + c // g >= 0
            p = {m: c // g for m, c in p.items() if m or c // g}
        return self._nonneg_expr(p, dtype)

    def _nonneg_expr(self, p: Poly, dtype: DType) -> Expr:
        """Return p >= 0 as an expression without subtraction: `x >= c`, `x <= y` or `x < y + c`."""
        plus, minus = _sides(p)
        c = p.get((), 0)
        if not minus:
            return Binary("ge", emit(self, plus, dtype), IntImm(-c, dtype))
        if c == 0 and plus:
            return Binary("le", emit(self, minus, dtype), emit(self, plus, dtype))
        (plus if c + 1 > 0 else minus)[()] = abs(c + 1)
        return Binary("lt", emit(self, _clean(minus), dtype), emit(self, _clean(plus), dtype))

    def _equality(self, op: str, p: Poly, dtype: DType) -> Expr:
        holds, fails = (TRUE, FALSE) if op == "eq" else (FALSE, TRUE)
        if not p:
            return holds
        negative = P.scale(p, -1)
        g, c = P.content(p), p.get((), 0)
        if (g and c % g) or self.nonneg(self.minus_one(p)) or self.nonneg(self.minus_one(negative)):
            return fails
        if self.nonneg(p) and self.nonneg(negative):
            return holds
        p = {m: k // g for m, k in p.items()}
        plus, minus = _sides(p)
        c = p.get((), 0)
        if not plus:
            plus, minus, c = minus, plus, -c
        (minus if c < 0 or not minus else plus)[()] = abs(c) if c < 0 or minus else -c
        lhs, rhs = emit(self, _clean(plus), dtype), emit(self, _clean(minus), dtype)
        return Binary(op, lhs, rhs)


def cost(e: Expr, costs: dict[int, int] | None = None) -> int:
    """Return the estimated run time in additions. A subexpression counts as often as it occurs, but
    a shared node is visited once."""
    if isinstance(e, Var | IntImm):
        return 0
    costs = {} if costs is None else costs
    total = costs.get(id(e))
    if total is None:
        total = _COST.get(e.op, 1) if isinstance(e, Binary) else 1
        for child in children(e):
            total += cost(child, costs)
        costs[id(e)] = total
    return total


def _is_truth_or_index(dtype: DType) -> bool:
    return is_index(dtype) or (dtype.is_bool and dtype.lanes == 1)


def _sides(p: Poly) -> tuple[Poly, Poly]:
    """Return (plus, minus) with p = plus - minus + constant and positive coefficients in both."""
    plus = {m: c for m, c in p.items() if m and c > 0}
    return plus, {m: -c for m, c in p.items() if m and c < 0}


def _clean(p: Poly) -> Poly:
    return {m: c for m, c in p.items() if c}
