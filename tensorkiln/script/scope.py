"""What names mean inside one parsed function, and what may come in from the Python around it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.relax import RVar
from tensorkiln.script.dialect import Dialect
from tensorkiln.script.source import Source


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number whose dtype its surroundings decide. `captured`: from outside the script."""

    value: int | float
    captured: bool = False


@dataclass(frozen=True, slots=True)
class Python:
    """Any other Python value that is known while parsing; a Buffer, where one is named."""

    value: object
    captured: bool = True


Bound = Expr | Buffer | RVar | str | Number | Python


@dataclass(slots=True)
class Scope:
    """What names mean inside one function. `captured` are Python values around the script,
    `words` stand for the module, `functions` are its own (None: not all are known).

    `trusted`: the script is the user's own code (a decorated function), not a text from elsewhere.
    """

    source: Source
    captured: Mapping[str, object] = field(default_factory=dict)
    bound: dict[str, Bound] = field(default_factory=dict)
    words: Collection[str] = ()
    functions: Sequence[str] | None = None
    trusted: bool = False

    @contextmanager
    def inner(self) -> Iterator[None]:
        """Names bound inside are gone afterwards."""
        before = dict(self.bound)
        try:
            yield
        finally:
            self.bound = before

    def bind(self, node: ast.AST, name: str, value: Bound) -> None:
        """A new name; rebinding would hide the old value instead of changing it."""
        if name in self.bound or name in ("T", "R"):
            raise self.source.error(
                node, f"{name!r} is already bound here", "use another name, or store to a buffer"
            )
        self.bound[name] = value

    def dialect(self, node: ast.AST) -> str:
        """The dotted path after T or R, with that letter first: `T.exp` -> "T.exp"; or ""."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or not parts:
            return ""
        found = self.captured.get(node.id)
        letter = found.letter if isinstance(found, Dialect) else node.id
        return ".".join([letter, *reversed(parts)]) if letter in ("T", "R") else ""

    def unknown(self, node: ast.Name) -> UserError:
        """The error for a name that nothing binds."""
        found = self.bound.get(node.id, self.captured.get(node.id))
        if found is not None or node.id in self.captured:
            value = found.value if isinstance(found, Number | Python) else found
            kind = type(value).__name__
            return self.source.error(node, f"{node.id!r} is a Python {kind}, of no use here")
        names = [*self.bound, *self.captured]
        return self.source.error(node, f"unknown name {node.id!r}", nearest(node.id, names))


def plain(value: object) -> int | float | bool | str | tuple[object, ...] | None:
    """A captured Python value the script can use as a literal, or None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        items = tuple(map(plain, value))
        return None if None in items else items
    return None
