"""The cheapest hitting set: given several sets, one choice of elements that has one of each.

`insert_barriers` uses it. Each dependence between threads is a set of program points, in one of
which a barrier must stand, and the cost of a point is how often it is executed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

# Beyond this many steps of the search, the best set so far is taken: it has no element too many,
# but another may be cheaper.
_MOST_STEPS = 20_000


def cheapest(sets: Sequence[Collection[T]], cost: Mapping[T, int]) -> list[T]:
    """A set of least total cost that shares an element with each of `sets`, none of which is empty.

    Of several such sets the first that is found, in the order of `cost`; elements in that order.
    """
    order = {x: k for k, x in enumerate(cost)}
    rows = [sorted(s, key=lambda x: (cost[x], order[x])) for s in sets]
    search = _Search(rows, cost)
    search.extend([], 0)
    return sorted(search.best, key=order.__getitem__)


class _Search(Generic[T]):
    """Depth-first search. The smallest set that is not hit yet is hit by each of its elements in
    turn."""

    def __init__(self, rows: list[list[T]], cost: Mapping[T, int]):
        self.rows, self.cost = rows, cost
        self.best: list[T] = []
        self.best_cost: int | None = None
        self.steps = 0

    def extend(self, chosen: list[T], total: int) -> None:
        if self.best_cost is not None and (total >= self.best_cost or self.steps >= _MOST_STEPS):
            return
        self.steps += 1
        unhit_rows = [row for row in self.rows if not any(x in chosen for x in row)]
        if not unhit_rows:
            self.best, self.best_cost = self._needed(chosen), total
            return
        for x in min(unhit_rows, key=len):
            self.extend([*chosen, x], total + self.cost[x])

    def _needed(self, chosen: list[T]) -> list[T]:
        """`chosen` without elements that the others make redundant."""
        elements = list(chosen)
        for x in chosen:
            smaller = [y for y in elements if y != x]
            if all(any(y in row for y in smaller) for row in self.rows):
                elements = smaller
        return elements
