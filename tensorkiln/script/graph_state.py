"""The state of the parser in one graph function, and in the functions of one module."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.module import AnyFunction
from tensorkiln.ir.relax import Binding, Bound, Call, Constant, MatchCast, PrimType, RVar, Type
from tensorkiln.script.scope import NameScope

Infer = Callable[[Call], Type]
# The right side of a binding, and its type; None if that is still to be inferred.
Parsed = tuple[Bound, Type | None]


@dataclass(slots=True)
class ModuleContext:
    """State shared by the functions of one module while it is parsed.

    `words` are names of the module itself, such as `cls`. `names` lists all its functions; None if
    not all are known. `functions` and `literals` hold the functions and constants parsed so far.
    `headers` has a callable for each graph function, which returns its parameter types and its
    result type, None if that is not written, before the function is parsed.
    """

    words: set[str]
    names: list[str] | None
    constants: Mapping[str, np.ndarray]
    infer: Infer = ops.infer
    functions: dict[str, AnyFunction] = field(default_factory=dict)
    literals: dict[str, Constant] = field(default_factory=dict)
    headers: dict[str, Callable[[], tuple[tuple[Type, ...], Type | None]]] = field(
        default_factory=dict
    )


@dataclass(slots=True)
class GraphState:
    """One `@R.function`, with the functions nested in it, while it is parsed.

    `whole` is its syntax tree. `words` are the names of the module here, and `bindings` those of
    the innermost block so far, to which nested calls are appended. `rebindable` are names bound
    before the block, `carried` names that the next iteration of an enclosing loop reads.
    `declared` is the type after `->`, if there is one.
    """

    scope: NameScope
    module: ModuleContext
    whole: ast.FunctionDef
    words: set[str]
    bindings: list[Binding] = field(default_factory=list)
    rebindable: set[str] = field(default_factory=set)
    carried: set[str] = field(default_factory=set)
    declared: Type | None = None
    hidden: set[str] = field(default_factory=set)  # names of dataflow that R.output does not list

    def __post_init__(self) -> None:
        self.scope.number_of = self.number

    def number(self, var: RVar) -> Expr | None:
        """The symbol of the integer that a variable holds, in an expression of numbers: a MatchCast
        names it, once in each block. None if it holds anything else."""
        if not isinstance(var.type, PrimType) or not var.type.dtype.is_int:
            return None
        if var.type.value is not None:
            return var.type.value
        key = f"the number of {var.name}"  # no name of a script
        symbol = self.scope.meanings.get(key)
        if not isinstance(symbol, Var):
            symbol = Var(var.name, INT64)
            self.scope.meanings[key] = symbol
            named = PrimType(var.type.dtype, symbol)
            self.bindings.append(Binding(RVar(var.name, named), MatchCast(var, named)))
        return symbol

    def fail(self, node: ast.AST, message: str, hint: str = "") -> UserError:
        """Return a UserError that underlines `node`."""
        return self.scope.fail(node, message, hint)

    def bind(self, node: ast.AST, name: str, value: RVar) -> None:
        """Bind a name to a value. Raise UserError if it is already bound in the current block;
        names from outside of the block, and `_`, may be rebound."""
        if name == "_" or name in self.rebindable:
            self.scope.meanings.pop(name, None)
        self.scope.bind(node, name, value)

    def dims(self) -> set[Var]:
        """Return the symbolic dimensions in scope."""
        return {v for v in self.scope.meanings.values() if isinstance(v, Var)}

    def is_module(self, node: ast.expr) -> bool:
        """Whether `node` is a name of this module, such as `cls`."""
        return (
            isinstance(node, ast.Name)
            and node.id in self.words
            and node.id not in self.scope.meanings
        )

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Collect bindings of a nested block in a new `bindings`; names that it binds are unbound
        afterwards."""
        bindings, rebindable, words = self.bindings, self.rebindable, set(self.words)
        self.bindings = []
        self.rebindable = {n for n, v in self.scope.meanings.items() if isinstance(v, RVar)}
        try:
            with self.scope.inner():
                yield
        finally:
            self.bindings, self.rebindable, self.words = bindings, rebindable, words
