"""Traversals of graph functions that passes share: types, uses, substitution, liveness."""

from __future__ import annotations

from collections import Counter

from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    Type,
    Value,
)
from tensorkiln.ir.visit_graph import substitute, substitute_value, variables
from tensorkiln.ops.rules import same_extent


def tensor_type(v: Value) -> TensorType:
    """The type of a value that is known to be a tensor."""
    assert isinstance(v.type, TensorType), v
    return v.type


def same_type(a: Type, b: Type) -> bool:
    """Whether two types are equal. Layouts must be identical; symbolic extents are equal if it can
    be proved, as for `n + n` and `n * 2`."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    if a.dtype != b.dtype or a.layout != b.layout or a.ndim != b.ndim:
        return False
    return all(map(same_extent, a.shape, b.shape))


def use_counts(f: Function) -> Counter[RVar]:
    """How often each variable is read, by bindings and by the function's result."""
    uses: Counter[RVar] = Counter()
    for b in f.bindings:
        uses.update(variables(b.value))
    uses.update(variables(f.result))
    return uses


def users(f: Function) -> dict[RVar, list[Call]]:
    """The calls that read each variable. A read by anything else (a tuple, the function's result)
    is listed as a call of `f` itself, without operands."""
    out: dict[RVar, list[Call]] = {}
    self_call = Call(GlobalRef(f.name), ())
    for b in f.bindings:
        reader = b.value if isinstance(b.value, Call) else self_call
        for v in variables(b.value):
            out.setdefault(v, []).append(reader)
    for v in variables(f.result):
        out.setdefault(v, []).append(self_call)
    return out


def forward_aliases(f: Function) -> Function:
    """`f` without bindings `y = x` and `y = constant`; `f` itself if it has none."""
    by: dict[RVar, Value] = {}
    bindings: list[Binding] = []
    for b in f.bindings:
        definition = substitute(b.value, by)
        if isinstance(definition, (RVar, Constant)) and definition.type == b.var.type:
            by[b.var] = definition
        else:
            bindings.append(b if definition is b.value else Binding(b.var, definition))
    if not by:
        return f
    return Function(f.name, f.params, tuple(bindings), substitute_value(f.result, by), f.attrs)


def live(f: Function) -> Function:
    """`f` without bindings whose variable is unused; `f` itself if it has none."""
    needed = set(variables(f.result))
    live_bindings: list[Binding] = []
    for b in reversed(f.bindings):
        if b.var in needed:
            live_bindings.append(b)
            needed.update(variables(b.value))
    if len(live_bindings) == len(f.bindings):
        return f
    return Function(f.name, f.params, tuple(reversed(live_bindings)), f.result, f.attrs)
