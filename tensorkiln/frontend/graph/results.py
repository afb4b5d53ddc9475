"""The function that an import gives, from what its context has emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.conditions import with_conditions
from tensorkiln.ir.relax import Function, MatchCast, RVar, Tuple
from tensorkiln.ir.subtype import symbols
from tensorkiln.ir.visit_graph import variables
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.conditions import stated


def main_function(builder: GraphBuilder, results: Sequence[RVar]) -> Function:
    """The function `main` of everything that was emitted; several results make a tuple."""
    return builder.finish(results[0] if len(results) == 1 else Tuple(tuple(results)), "main")


def with_interface(f: Function, dims: Dims, attrs: Mapping[str, object]) -> Function:
    """`f` with the attributes of its interface, the names of its parameters' dimensions and the
    conditions that the import assumed among them, and without unused bindings."""
    sizes = {v for p in f.params for v in symbols(p.type)}
    dim_names = tuple((v, n) for n, v in dims.vars.items() if v in sizes)
    if dim_names:  # as pairs, since an attribute cannot be a mapping
        attrs = {**attrs, "dim_names": dim_names}
    conditions = with_conditions(Attrs.of(**{**f.attrs, **attrs}), dims.assumed)
    return stated(_live(replace(f, attrs=conditions)))


def _live(f: Function) -> Function:
    """`f` without unused bindings, which shape arithmetic that was folded later leaves behind."""
    needed = set(variables(f.result))
    bindings = []
    for binding in reversed(f.bindings):
        if binding.var in needed or isinstance(binding.value, MatchCast):
            bindings.append(binding)
            needed.update(variables(binding.value))
    if len(bindings) == len(f.bindings):
        return f
    return replace(f, bindings=tuple(reversed(bindings)))
