"""The state of the parser in one function: what its names mean, and what parses each node."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.relax import RVar
from tensorkiln.script.dialect import ScriptNamespace
from tensorkiln.script.source import Source
from tensorkiln.script.spellings import spelled


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number whose dtype follows from its context. `captured`: from outside the script."""

    value: int | float
    captured: bool = False


@dataclass(frozen=True, slots=True)
class Python:
    """Any other Python value that is known while parsing; also a Buffer, for its name."""

    value: object
    captured: bool = True


Bound = Expr | Buffer | RVar | str | Number | Python


@dataclass(frozen=True, slots=True)
class Grammar:
    """What parses each class of syntax tree node, and each call of R that has a form of its own.

    The functions for expressions and for statements of tensor programs take a NameScope and the
    node, those for graphs a GraphState and the node; `operator_call` also the operator's name.
    `grammar.py` joins the tables of all files.
    """

    expressions: Mapping[type[ast.expr], Callable[..., Any]]
    statements: Mapping[type[ast.stmt], Callable[..., Any]]
    graph_statements: Mapping[type[ast.stmt], Callable[..., None]]
    graph_calls: Mapping[str, Callable[..., Any]]
    operator_call: Callable[..., Any]


@dataclass(slots=True)
class NameScope:
    """The meaning of names inside one function.

    `meanings` are those of the names bound so far, `captured` the Python values around the script.
    `words` are names of the module itself, such as `cls`, and `functions` the names of its
    functions (None if not all are known). `trusted` scripts are decorated functions, the user's own
    code; text for `from_source` is not. `ends` are the ends of loops by variable, which
    `T.axis.remap` uses; with `define`, inside a quoted extent, a name that is not bound becomes a
    new symbolic dimension. `macro_calls` are the macros that were inlined so far, in the function
    and in its macros.
    """

    grammar: Grammar
    source: Source
    captured: Mapping[str, object] = field(default_factory=dict)
    meanings: dict[str, Bound] = field(default_factory=dict)
    words: Collection[str] = ()
    functions: Sequence[str] | None = None
    trusted: bool = False
    ends: dict[Var, Expr] = field(default_factory=dict)
    define: bool = False
    # In a graph: the symbol of a number that a variable holds, or None if it holds none.
    number_of: Callable[[RVar], Expr | None] | None = None
    macro_calls: list[str] = field(default_factory=list)

    def fail(self, node: ast.AST, message: str, hint: str = "") -> UserError:
        """Return a UserError that underlines `node`."""
        return self.source.error(node, message, hint)

    @contextmanager
    def inner(self) -> Iterator[None]:
        """Unbind on exit all names that are bound inside the context."""
        before = dict(self.meanings)
        try:
            yield
        finally:
            self.meanings = before

    def bind(self, node: ast.AST, name: str, value: Bound) -> None:
        """Bind a new name. Raise UserError if it is bound already, because rebinding would not
        change the old value, as Python programmers expect, but hide it."""
        if name in self.meanings or name in ("T", "R"):
            raise self.fail(
                node, f"{name!r} is already bound here", "use another name, or store to a buffer"
            )
        self.meanings[name] = value

    def dialect(self, node: ast.AST) -> str:
        """Return the dotted path of a name in T or R, e.g. "T.exp", under whatever name the script
        imported T and R; "" for other nodes. A word of another compiler's is ours that means the
        same."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or not parts:
            return ""
        meaning = self.captured.get(node.id)
        letter = meaning.letter if isinstance(meaning, ScriptNamespace) else node.id
        return spelled(".".join([letter, *reversed(parts)])) if letter in ("T", "R") else ""

    def is_call(self, node: ast.AST, path: str) -> bool:
        """Whether a node is a call of `path`, e.g. "T.block"."""
        return isinstance(node, ast.Call) and self.dialect(node.func) == path

    def unknown(self, node: ast.Name) -> UserError:
        """Return the UserError for a name that is not bound, or has a Python value that cannot be
        used in its place."""
        meaning = self.meanings.get(node.id, self.captured.get(node.id))
        if meaning is not None or node.id in self.captured:
            value = meaning.value if isinstance(meaning, Number | Python) else meaning
            kind = type(value).__name__
            return self.fail(node, f"{node.id!r} is a Python {kind}, which cannot be used here")
        names = [*self.meanings, *self.captured]
        return self.fail(node, f"unknown name {node.id!r}", nearest(node.id, names))


def plain(
    value: object,
) -> int | float | bool | str | ExternalDependency | tuple[object, ...] | None:
    """Return a captured Python value as a literal: number, string, external dependency or tuple of
    these; else None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, float, str, ExternalDependency)):
        return value
    if isinstance(value, (tuple, list)):
        items = tuple(map(plain, value))
        return None if None in items else items
    return None
