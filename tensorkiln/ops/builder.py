"""Building graph functions operator by operator."""

from __future__ import annotations

from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Function,
    RVar,
    Type,
    Value,
)  # fmt: skip
from tensorkiln.ops import call, infer


class GraphBuilder:
    """Collects parameters and bindings; every name is made unique.

    `b = GraphBuilder(); x = b.param("x", type); f = b.finish(b.emit("relu", x))`
    """

    def __init__(self) -> None:
        self.params: list[RVar] = []
        self.bindings: list[Binding] = []
        self._taken: dict[str, int] = {}

    def _fresh(self, name: str) -> str:
        count = self._taken.get(name)
        self._taken[name] = 0 if count is None else count + 1
        return name if count is None else self._fresh(f"{name}_{count + 1}")

    def param(self, name: str, type: Type) -> RVar:
        """A parameter, in call order; UserError `duplicate-name` when the name is taken."""
        if name in self._taken:
            raise UserError(f"there already is a value named {name!r}", code="duplicate-name")
        var = RVar(self._fresh(name), type)
        self.params.append(var)
        return var

    def emit(self, op: str, *args: Value, span: str = "", **attrs: AttrValue) -> RVar:
        """Append a call of an operator; its result, with the inferred type."""
        made = call(op, *args, span=span, **attrs)
        return self.bind(made, infer(made), op)

    def bind(self, value: Bound, type: Type, name: str = "v") -> RVar:
        """Append any other binding (a tuple item, a call of a function); `name` is made unique."""
        var = RVar(self._fresh(name), type)
        self.bindings.append(Binding(var, value))
        return var

    def finish(self, result: Value, name: str = "main", **attrs: AttrValue) -> Function:
        """The function of everything so far."""
        return Function(name, tuple(self.params), tuple(self.bindings), result, Attrs.of(**attrs))
