"""Assumptions about variables: ranges, and conditions that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tensorkiln.ir.expr import Binary, Expr, IntImm, Var, as_expr, int_value
from tensorkiln.ir.visit import free_vars

Limit = int | Expr | None
Range = tuple[Limit, Limit]

_CACHE_LIMIT = 4096


class Bounds(Mapping[Var, Range]):
    """Inclusive ranges of variables, and facts: conditions that hold. Immutable; `with_range`,
    `with_loop` and `given` return new objects.

    A limit is an integer, an expression over other variables (for a loop up to a symbolic
    dimension), or None for unbounded. Variables that are not listed are unbounded: symbolic
    dimensions must be added, e.g. by `Bounds.dims`.
    """

    __slots__ = ("_limit_variables", "_outer", "_ranges", "cache", "facts")

    def __init__(self, ranges: Mapping[Var, Range] | None = None, facts: tuple[Expr, ...] = ()):
        self._ranges: dict[Var, Range] = {
            v: (_limit(lo), _limit(hi)) for v, (lo, hi) in (ranges or {}).items()
        }
        self.facts = facts
        # index expression -> its simplified form, which depends on nothing but these bounds
        self.cache: dict[Expr, Expr] = {}
        # the bounds that these add one variable to, which nothing in them mentions, and it
        self._outer: tuple[Bounds, Var] | None = None
        self._limit_variables: frozenset[Var] | None = None

    @staticmethod
    def dims(dims: Iterable[Var], lower: int = 0) -> Bounds:
        """Return bounds by which each of `dims` is at least `lower`: 1 excludes empty tensors."""
        return Bounds(dict.fromkeys(dims, (lower, None)))

    def __getitem__(self, var: Var) -> Range:
        return self._ranges[var]

    def __iter__(self) -> Iterator[Var]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def with_range(self, var: Var, lo: Limit, hi: Limit) -> Bounds:
        """Return these bounds with lo <= var <= hi, which replaces an earlier range of `var`."""
        new = self._with({**self._ranges, var: (_limit(lo), _limit(hi))}, self.facts)
        if var not in self._ranges and var not in self.limit_variables:
            new._outer = self, var
        return new

    @property
    def limit_variables(self) -> frozenset[Var]:
        """The variables in limits and facts; memoised."""
        if self._limit_variables is None:
            parts: Iterable[Limit] = (*(x for r in self._ranges.values() for x in r), *self.facts)
            earlier: frozenset[Var] = frozenset()
            if self._outer:
                bounds, var = self._outer
                parts, earlier = self._ranges[var], bounds.limit_variables
            of_parts = (free_vars(x) for x in parts if isinstance(x, Expr))
            self._limit_variables = earlier.union(*of_parts)
        return self._limit_variables

    def scope_of(self, e: Expr) -> Bounds:
        """The outermost of the bounds around these that say of `e` what these say: without the
        variables added last that `e` does not mention. An expression in many loops has one scope,
        and is simplified there once."""
        bounds, variables = self, None
        while bounds._outer:
            outer, var = bounds._outer
            if variables is None:
                variables = set(free_vars(e))
            if var in variables:
                break
            bounds = outer
        return bounds

    def with_loop(self, var: Var, lo: int | Expr, extent: int | Expr) -> Bounds:
        """Return these bounds with lo <= var < lo + extent."""
        return self.with_range(var, lo, as_expr(lo) + extent - 1)

    def given(self, cond: Expr) -> Bounds:
        """Return these bounds and the condition `cond`: a comparison of a variable with a constant
        narrows its range, unless the limit is symbolic; other conditions become facts."""
        match cond:
            case Binary("and", a, b):
                return self.given(a).given(b)
            case Binary(op, Var() as var, IntImm(c)) if op in _LIMITS:
                lo, hi = _LIMITS[op]
                old_lo, old_hi = self.get(var, (None, None))
                symbolic = (lo is not None and isinstance(old_lo, Expr)) or (
                    hi is not None and isinstance(old_hi, Expr)
                )
                if not symbolic:
                    new_lo = _tighter(max, old_lo, None if lo is None else c + lo)
                    new_hi = _tighter(min, old_hi, None if hi is None else c + hi)
                    return self.with_range(var, new_lo, new_hi)
        return self._with(self._ranges, (*self.facts, cond))

    @staticmethod
    def _with(ranges: dict[Var, Range], facts: tuple[Expr, ...]) -> Bounds:
        """Bounds of limits that are known to be in their simplest form."""
        new = Bounds(facts=facts)
        new._ranges = ranges
        return new

    def remember(self, key: Expr, value: Expr) -> None:
        """Add a result to the cache, which is emptied first if it is full."""
        if len(self.cache) >= _CACHE_LIMIT:
            self.cache.clear()
        self.cache[key] = value


# op -> (lower limit - c, upper limit - c) of `var op c`; None for no limit
_LIMITS: dict[str, tuple[int | None, int | None]] = {
    "lt": (None, -1),
    "le": (None, 0),
    "gt": (1, None),
    "ge": (0, None),
    "eq": (0, 0),
}


def _tighter(pick: Callable[[int, int], int], old: Limit, new: int | None) -> Limit:
    if new is None or isinstance(old, Expr):
        return old
    return new if old is None else pick(old, new)


def _limit(limit: Limit) -> Limit:
    value = int_value(limit) if limit is not None else None
    return limit if value is None else value
