"""How an external takes several operators of the model as one: its function `match`, and what that
may return.

    match(binding, graph, target) -> Taken | Refused | None

It is called for every call in the graph as the model has it, before operators are canonicalised: a
quantised layer is still DequantizeLinear, an operator and QuantizeLinear. `Refused` may also be
returned by `supports`, which is called for single operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.relax import Binding, Call, Constant, Function, RVar, Value
from tensorkiln.ir.visit_graph import variables
from tensorkiln.target import Target


class Definitions:
    """For each value of a graph function, the binding that computes it and the bindings that read
    it."""

    def __init__(self, f: Function):
        self.parameters = frozenset(f.params)
        self.is_external = bool(f.external)
        self._made = {b.var: b for b in f.bindings}
        self._readers: dict[RVar, list[Binding | None]] = {}
        for b in f.bindings:
            for v in dict.fromkeys(variables(b.value)):
                self._readers.setdefault(v, []).append(b)
        for v in dict.fromkeys(variables(f.result)):
            self._readers.setdefault(v, []).append(None)

    def binding(self, v: Value) -> Binding | None:
        """The binding of a variable to a call of an operator, else None."""
        b = self._made.get(v) if isinstance(v, RVar) else None
        return b if b is not None and isinstance(b.value, Call) and b.value.op else None

    def call(self, v: Value) -> Call | None:
        """The call of an operator that computes `v`, else None."""
        b = self.binding(v)
        return b.value if b is not None and isinstance(b.value, Call) else None

    def reader(self, v: RVar) -> Binding | None:
        """The call of an operator that is the only reader of `v`; None if there is no such call."""
        readers = self._readers.get(v, [])
        only = readers[0] if len(readers) == 1 else None
        return self.binding(only.var) if only is not None else None


@dataclass(frozen=True, slots=True)
class Taken:
    """Bindings that become one function, whose result is that of the last one in the graph's order.

    Only this one's value may be read by others; what the bindings compute on the way is
    computed in the function (again, if others read it too). `weights` are constants that become
    parameters; all others stay in the function, whose code can depend on their values. `orders`
    gives, for operands, weights and the result, the order of dimensions in memory that the
    function's parameters and result have (None: as they are): (0, 2, 3, 1) stores NCHW as NHWC.
    `name` is the end of the function's name.
    """

    name: str
    bindings: tuple[Binding, ...]
    weights: tuple[Constant, ...] = ()
    orders: dict[RVar | Constant, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why an external does not take an operator for which it has code: a clause that
    `Executable.placement()` shows, such as "its weights are computed". It is false in
    conditions."""

    reason: str

    def __bool__(self) -> bool:
        """False, so that an answer of `supports` can be used as a condition."""
        return False

    def row(self, external: str, call: Call) -> tuple[str, str, str]:
        """The external, the node of the model (else the operator), and the reason."""
        return external, call.span or call.op, self.reason


def with_refused(f: Function, rows: Sequence[tuple[str, str, str]]) -> Function:
    """The graph function with these rows added to its attribute `refused`, each once."""
    if not rows:
        return f
    refused = tuple(dict.fromkeys((*f.attrs.get("refused", ()), *rows)))
    return replace(f, attrs=Attrs.of(**(dict(f.attrs) | {"refused": refused})))


Match = Callable[[Binding, Definitions, Target], Taken | Refused | None]
