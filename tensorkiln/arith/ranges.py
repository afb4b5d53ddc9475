"""What is known about variables: ranges, and conditions that hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tensorkiln.ir.expr import Expr, Var, as_expr, int_value

Limit = int | Expr | None
Range = tuple[Limit, Limit]

_CACHE_LIMIT = 4096


class Bounds(Mapping[Var, Range]):
    """Inclusive ranges of variables, and facts. Immutable; every `with_` gives a new one.

    A limit is an integer, an expression over other variables (a loop up to a symbolic
    dimension), or None. Variables that are not listed are unbounded unless they are dimensions:
    `Bounds.dims(vars, least=1)` says that the empty tensor does not occur.
    """

    __slots__ = ("_ranges", "cache", "facts")

    def __init__(self, ranges: Mapping[Var, Range] | None = None, facts: tuple[Expr, ...] = ()):
        self._ranges: dict[Var, Range] = {
            v: (_limit(lo), _limit(hi)) for v, (lo, hi) in (ranges or {}).items()
        }
        self.facts = facts
        # (operation, expression) -> result: simplification is pure for given bounds
        self.cache: dict[tuple[str, Expr], object] = {}

    @staticmethod
    def dims(dims: Iterable[Var], least: int = 0) -> Bounds:
        """Symbolic dimensions: each is at least `least`."""
        return Bounds(dict.fromkeys(dims, (least, None)))

    def __getitem__(self, var: Var) -> Range:
        return self._ranges[var]

    def __iter__(self) -> Iterator[Var]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def with_range(self, var: Var, lo: Limit, hi: Limit) -> Bounds:
        """lo <= var <= hi"""
        return Bounds({**self._ranges, var: (lo, hi)}, self.facts)

    def with_loop(self, var: Var, lo: int | Expr, extent: int | Expr) -> Bounds:
        """lo <= var < lo + extent"""
        return self.with_range(var, lo, as_expr(lo) + extent - 1)

    def given(self, cond: Expr) -> Bounds:
        """The same, where `cond` holds."""
        return Bounds(self._ranges, (*self.facts, cond))

    def remember(self, key: tuple[str, Expr], value: object) -> None:
        """Keep a result; the cache is emptied when it is full."""
        if len(self.cache) >= _CACHE_LIMIT:
            self.cache.clear()
        self.cache[key] = value


def _limit(limit: Limit) -> Limit:
    value = int_value(limit) if limit is not None else None
    return limit if value is None else value
