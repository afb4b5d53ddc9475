"""Give every value of graph functions a name that no pass makes again."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Function, RVar, TensorType, Value
from tensorkiln.ir.visit_graph import substitute, substitute_value


def name_values(mod: IRModule) -> IRModule:
    """Number the values of straight-line graph functions: `relu` becomes `n3_relu`.

    Before:  main(x): conv2d = nn.conv2d(x, w); relu = nn.relu(conv2d)
    After:   main(x): n0_conv2d = nn.conv2d(x, w); n1_relu = nn.relu(n0_conv2d)
    Needs:   nothing. Numbers count bindings, so the same module gives the same ones.

    A pass that replaces a value keeps its name if the new one has the same meaning; what it makes
    besides gets other names, longer ones at most (`n1_relu_layout3`). So after any pass the name
    says which value of the model it is (`transform/relax/keep_values.py`).
    """
    return mod.map_graphs(lambda f: f if f.is_outer else _numbered(f))


def _numbered(f: Function) -> Function:
    by: dict[RVar, Value] = {}
    bindings: list[Binding] = []
    for i, b in enumerate(f.bindings):
        var = b.var
        if isinstance(var.type, TensorType):
            prefix = f"n{i}_"
            if not var.name.startswith(prefix):
                by[b.var] = var = RVar(prefix + var.name, var.type)
        bindings.append(Binding(var, substitute(b.value, by)))
    if not by:
        return f
    return replace(f, bindings=tuple(bindings), result=substitute_value(f.result, by))


__all__ = ["name_values"]
