"""Which subexpressions of an expression occur more than once.

Subexpressions are equal if they are built alike, whether or not they are one object, so that the
text of a program does not depend on how it was made.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any, get_type_hints

from tensorkiln.ir.buffer import AddressOf, Load
from tensorkiln.ir.expr import CallExtern, Expr, FloatImm, Var
from tensorkiln.ir.visit import children, has_load, walk


class Sharing:
    """Numbers the subexpressions of `root`, equal ones alike, and counts where they occur.
    `in_order`: the expression calls C functions, so values are computed in the order in which they
    are written."""

    def __init__(self, root: Expr):
        self._numbers: dict[object, int] = {}
        self._known: dict[int, tuple[Expr, int]] = {}
        self._places: Counter[int] = Counter()
        self.in_order = any(isinstance(x, CallExtern) for x in walk(root))
        self._count(root)

    def is_shared(self, number: int) -> bool:
        """Whether the subexpression of this number occurs more than once."""
        return self._places[number] > 1

    def number(self, e: Expr) -> int:
        """The number of a subexpression."""
        entry = self._known.get(id(e))
        if entry is None:
            number = self._numbers.setdefault(self._key(e), len(self._numbers))
            entry = self._known[id(e)] = (e, number)
        return entry[1]

    def _key(self, e: Expr) -> object:
        if isinstance(e, Var):
            return e
        if isinstance(e, FloatImm):
            return struct.pack("<d", e.value), e.dtype
        below = tuple(map(self.number, children(e)))
        return type(e), below, _OTHERS[type(e)](e)

    def _count(self, root: Expr) -> None:
        """Count the places of each subexpression, but not those inside of an equal expression that
        was counted."""
        numbers, queue = set[int](), [root]
        while queue:
            e = queue.pop()
            number = self.number(e)
            self._places[number] += 1
            if number not in numbers:
                numbers.add(number)
                queue += _values_in(e)


def _values_in(e: Expr) -> Iterator[Expr]:
    """The operands of an expression, and of its indices those that read memory: others are text."""
    for x in children(e):
        if not isinstance(e, Load | AddressOf) or has_load(x):
            yield x


class _Others(dict[type, Callable[[Any], object]]):
    """By class of node, the function that returns its fields that are not expressions."""

    def __missing__(self, cls: type) -> Callable[[Any], object]:
        hints = get_type_hints(cls)
        names = [f.name for f in fields(cls) if "Expr" not in str(hints[f.name])]
        self[cls] = attrgetter(*names) if names else lambda e: None
        return self[cls]


_OTHERS = _Others()
