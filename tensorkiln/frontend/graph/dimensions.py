"""Symbolic dimensions of a model: one variable per name, and what is known about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import prove, simplify
from tensorkiln.base.errors import UserError, nearest, require
from tensorkiln.frontend.graph.names import identifier
from tensorkiln.ir.conditions import SizeCondition
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import (
    Expr,
    ExprLike,
    IntImm,
    Var,
    as_expr,
    binary,
    int_value,
    maximum,
    minimum,
)
from tensorkiln.ir.visit import free_vars
from tensorkiln.ops.need import NEGATED


class Dims:
    """The symbolic dimensions of one import. Each is 0 or more.

    `freeze` maps names to sizes that replace them. `assumed` collects conditions that the import
    relied on and that no operator of the graph requires, such as `seq <= 512` for a table of 512
    positions; with the name of the `node` that is imported, they become the function's attribute
    `assumes` and are checked at run time. Raises UserError (code `bad-freeze`) if a frozen size is
    not a non-negative integer.
    """

    def __init__(self, freeze: Mapping[str, int] | None = None) -> None:
        if freeze is not None:
            require(freeze, Mapping, "freeze")
        self.freeze = dict(freeze or {})
        self.vars: dict[str, Var] = {}
        self.assumed: list[SizeCondition] = []
        self.node = ""
        self.seen: list[str] = []
        self.computed: set[Var] = set()
        self._bounds = self._proper = Bounds({})
        for name, value in self.freeze.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UserError(
                    f"freeze[{name!r}]: expected a non-negative integer, got {value!r}",
                    code="bad-freeze",
                )

    def named(self, name: str) -> Expr:
        """The dimension called `name`: a number if it is frozen, else its variable."""
        if name not in self.seen:
            self.seen.append(name)
        if name in self.freeze:
            return as_expr(self.freeze[name])
        if name not in self.vars:
            var_names = [v.name for v in self.vars.values()]
            self.vars[name] = Var(identifier(name, var_names))
            self._learn()
        return self.vars[name]

    def fresh(self, name: str) -> Var:
        """A new dimension that a value binds when the function runs (`data_extents.py`)."""
        var_names = {v.name for v in (*self.vars.values(), *self.computed)}
        dim = Var(identifier(name, var_names))
        self.computed.add(dim)
        self._learn()
        return dim

    def _learn(self) -> None:
        """`_bounds` hold for all sizes; `_proper` where no dimension of an input is 0."""
        self._bounds = Bounds.dims((*self.vars.values(), *self.computed))
        proper = dict.fromkeys(self.computed, (0, None)) | dict.fromkeys(
            self.vars.values(), (1, None)
        )
        self._proper = Bounds(proper)

    def _assume_proper(self, e: Expr) -> None:
        for v in free_vars(e):
            if v not in self.computed:
                self.assume(binary("ge", v, 1))

    def is_computed(self, e: Expr) -> bool:
        """Whether an extent depends on a dimension that `fresh` made."""
        return not self.computed.isdisjoint(free_vars(e))

    def check_freeze(self) -> None:
        """Raise UserError if `freeze` names a dimension that the model does not have.

        Call it once all inputs are imported, since `named` records the names that exist.
        """
        for name in self.freeze:
            if name not in self.seen:
                raise UserError(
                    f"freeze: the model has no symbolic dimension {name!r}; "
                    f"it has: {', '.join(map(repr, self.seen)) or 'none'}",
                    code="unknown-dimension",
                    hint=nearest(name, self.seen),
                )

    def simplify(self, e: Expr) -> Expr:
        """An equal expression, simplified. If it is simpler for sizes of at least 1, such as h - 1
        for max(h - 1, 0), these are assumed for its dimensions."""
        if isinstance(e, (IntImm, Var)):
            return e
        plain, proper = simplify(e, self._bounds), simplify(e, self._proper)
        if plain != proper:
            self._assume_proper(e)
        return proper

    def holds(self, cond: Expr) -> bool:
        """Whether `cond` is proved for all sizes; False if it does not hold or cannot be proved.
        Sizes of at least 1 are assumed for its dimensions, if it is proved only then."""
        if isinstance(cond, IntImm):
            return bool(cond.value)
        if prove(cond, self._bounds):
            return True
        if not prove(cond, self._proper):
            return False
        self._assume_proper(cond)
        return True

    def same(self, a: Expr, b: Expr) -> bool:
        """Whether two extents are proved equal for all sizes."""
        return a == b or self.holds(binary("eq", a, b))

    def compare(self, op: str, a: Expr, b: Expr) -> Expr:
        """`a op b`, as the constant 1 or 0 where that is proved for all sizes."""
        cond = binary(op, a, b)
        if self.holds(cond):
            return IntImm(1, BOOL)
        if self.holds(binary(NEGATED[op], a, b)):
            return IntImm(0, BOOL)
        return cond

    def min(self, a: ExprLike, b: ExprLike) -> Expr:
        """The smaller of two extents, simplified."""
        return self.simplify(minimum(a, b))

    def max(self, a: ExprLike, b: ExprLike) -> Expr:
        """The larger of two extents, simplified."""
        return self.simplify(maximum(a, b))

    def assume(self, cond: Expr, expected: str = "") -> None:
        """Record that the import relies on `cond`, in words on what is `expected`."""
        if all(cond != condition.holds for condition in self.assumed):
            reason = ": ".join(part for part in (self.node, expected) if part)
            self.assumed.append(SizeCondition(cond, reason))

    def joint(self, extents: Sequence[Expr]) -> Expr:
        """What symbolic extents broadcast to that are equal or 1: the largest."""
        total = extents[0]
        for e in extents[1:]:
            total = maximum(total, e)
        return self.simplify(total)

    def product(self, extents: Iterable[Expr]) -> Expr:
        """The product of the extents, which is 1 for no extents."""
        total: Expr = IntImm(1)
        for e in extents:
            total = total * e
        return self.simplify(total)

    def divide(self, total: Expr, part: Expr) -> Expr | None:
        """total / part; None if both are numbers and `part` is 0 or does not divide `total`.

        A symbolic division is taken to be exact: the result is the simplified floor division.
        """
        t, p = int_value(total), int_value(part)
        if t is not None and p is not None:
            return None if p == 0 or t % p else as_expr(t // p)
        return self.simplify(total // part)
