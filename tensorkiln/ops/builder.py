"""Building graph functions operator by operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.relax import Binding, Bound, Function, RVar, Type, Value
from tensorkiln.ops import call, infer


class GraphBuilder:
    """Collects parameters and bindings of one graph function.

    `b = GraphBuilder(); x = b.param("x", type); f = b.finish(b.emit("relu", x))`

    Names of bindings are made unique: a second `relu` becomes `relu_1`. A parameter keeps its name,
    because callers use it.
    """

    def __init__(self) -> None:
        self.params: list[RVar] = []
        self.bindings: list[Binding] = []
        self._name_counts: dict[str, int] = {}

    def _fresh(self, name: str) -> str:
        count = self._name_counts.get(name)
        self._name_counts[name] = 0 if count is None else count + 1
        return name if count is None else self._fresh(f"{name}_{count + 1}")

    def param(self, name: str, type: Type) -> RVar:
        """Append a parameter and return it; raise UserError `duplicate-name` if a parameter or a
        binding already has this name."""
        if name in self._name_counts:
            raise UserError(f"there already is a value named {name!r}", code="duplicate-name")
        var = RVar(self._fresh(name), type)
        self.params.append(var)
        return var

    def emit(self, op: str, *args: Value, span: str = "", **attrs: AttrValue) -> RVar:
        """Append an operator call and return its result, a variable of the inferred type.

        `span` names the source model's node. Raise UserError for an unknown operator, a wrong
        attribute, or operands that do not fit.
        """
        new_call = call(op, *args, span=span, **attrs)
        return self.bind(new_call, infer(new_call), op)

    def bind(self, value: Bound, type: Type, name: str = "v") -> RVar:
        """Append a binding of `value` to a new variable and return the variable. `type` is not
        checked; `name` is made unique."""
        var = RVar(self._fresh(name), type)
        self.bindings.append(Binding(var, value))
        return var

    @contextmanager
    def inner(self) -> Iterator[list[Binding]]:
        """Yield the list to which bindings are appended inside: those of a branch or a closure."""
        outer, self.bindings = self.bindings, []
        try:
            yield self.bindings
        finally:
            self.bindings = outer

    def finish(self, result: Value, name: str = "main", **attrs: AttrValue) -> Function:
        """Return the graph function of the parameters and bindings so far, which returns
        `result`."""
        return Function(name, tuple(self.params), tuple(self.bindings), result, Attrs.of(**attrs))
