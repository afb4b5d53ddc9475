"""Give every value of graph functions a name that no pass makes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    AnyTensorType,
    Binding,
    Body,
    Bound,
    Function,
    If,
    Lambda,
    RVar,
    TensorType,
    Value,
)
from tensorkiln.ir.visit_graph import substitute, substitute_value


def name_values(mod: IRModule) -> IRModule:
    """Number the values of graph functions: `relu` becomes `n3_relu`.

    Before:  main(x): conv2d = nn.conv2d(x, w); relu = nn.relu(conv2d)
    After:   main(x): n0_conv2d = nn.conv2d(x, w); n1_relu = nn.relu(n0_conv2d)
    Needs:   nothing. Numbers count bindings, those of branches and closures and the parameters of
             closures too, so the same module gives the same ones.

    A pass that replaces a value keeps its name if the new one has the same meaning; what it makes
    besides gets other names, longer ones at most (`n1_relu_layout3`). So after any pass the name
    says which value of the model it is (`transform/relax/keep_values.py`). If the module has outer
    functions, whose values and those of functions that they call are known together, numbers go on
    from function to function.
    """
    together = count() if mod.outers else None
    new_functions = {}
    for f in (*mod.unplanned, *mod.outers):
        new_functions[f.name] = _Numbered(count() if together is None else together).function(f)
    if all(new_functions.get(f.name, f) is f for f in mod.functions):
        return mod
    return mod.with_functions(tuple(new_functions.get(f.name, f) for f in mod.functions))


@dataclass(slots=True)
class _Numbered:
    numbers: Iterator[int]
    by: dict[RVar, Value] = field(default_factory=dict)

    def function(self, f: Function) -> Function:
        """A function with other names for the values that it binds."""
        body = self._body(Body(f.bindings, f.result))
        return replace(f, bindings=body.bindings, result=body.result) if self.by else f

    def _body(self, body: Body) -> Body:
        bindings = tuple(Binding(self._var(b.var), self._bound(b.value)) for b in body.bindings)
        return Body(bindings, substitute_value(body.result, self.by))

    def _var(self, v: RVar) -> RVar:
        prefix = f"n{next(self.numbers)}_"
        if isinstance(v.type, TensorType | AnyTensorType) and not v.name.startswith(prefix):
            self.by[v] = new = RVar(prefix + v.name, v.type)
            return new
        return v

    def _bound(self, value: Bound) -> Bound:
        if isinstance(value, If):
            cond = substitute_value(value.cond, self.by)
            return If(cond, self._body(value.then), self._body(value.orelse))
        if isinstance(value, Lambda):
            f = value.function
            params = tuple(map(self._var, f.params))
            body = self._body(Body(f.bindings, f.result))
            return Lambda(replace(f, params=params, bindings=body.bindings, result=body.result))
        return substitute(value, self.by)


__all__ = ["name_values"]
