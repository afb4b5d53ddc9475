"""Where dimensions come from and where they end: `explain_dims`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tensorkiln.base.record import JsonRecord
from tensorkiln.codegen.c_text.sizes import condition_text
from tensorkiln.frontend import import_model
from tensorkiln.ir.conditions import SizeCondition, conditions_of
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, MatchCast, RVar, TensorType, Type, Value
from tensorkiln.ir.subtype import symbols
from tensorkiln.ir.text.printer import print_expr
from tensorkiln.ir.visit import free_vars, substitute
from tensorkiln.ops.conditions import of_branches, stated


@dataclass(frozen=True, slots=True)
class DimOrigin:
    """A symbolic dimension and its origin: the input that has it, at `axis`, or the node whose data
    determines it when the function runs."""

    function: str
    name: str
    input: str
    axis: int
    node: str
    operator: str


@dataclass(frozen=True, slots=True)
class DimEnd:
    """A node whose operands have a symbolic dimension that its result, of shape `shape`, does not
    depend on."""

    function: str
    name: str
    node: str
    operator: str
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DimsReport(JsonRecord):
    """What `explain_dims` returns: which dimensions are symbolic and why, and the nodes after which
    shapes are without them; `outputs` are the shapes of results, and `conditions` what sizes a call
    may have, each with the node that requires it. `branch_conditions` are those of nodes in
    branches and loops, whose names begin with that of the branching node: a call is refused only
    where such a node runs. Those on sizes that data decides are not listed."""

    origins: tuple[DimOrigin, ...]
    ends: tuple[DimEnd, ...]
    outputs: tuple[tuple[str, ...], ...]
    conditions: tuple[str, ...] = ()
    branch_conditions: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A line for each dimension, and for each node that ends one."""
        lines = []
        for o in self.origins:
            of = f"input {o.input!r}, axis {o.axis}" if o.input else f"the data of {_node(o)}"
            lines.append(f"{o.name} is dynamic: {of}")
            for e in self.ends:
                if (e.function, e.name) == (o.function, o.name):
                    shape = f"[{', '.join(e.shape)}]"
                    lines.append(f"  it ends at {_node(e)}, whose result is {shape}")
        lines += [f"a call requires {condition}" for condition in self.conditions]
        lines += [f"a branch or loop, where it runs, requires {c}" for c in self.branch_conditions]
        lines += [f"output: [{', '.join(shape)}]" for shape in self.outputs]
        return "\n".join(lines or ["every dimension is constant"])


def _node(row: DimOrigin | DimEnd) -> str:
    return f"{row.node} ({row.operator})" if row.node != row.operator else row.operator


def explain_dims(model: Any, *, freeze: Mapping[str, int] | None = None) -> DimsReport:
    """Which dimensions of a model are symbolic, and which input or node makes them so; and the
    nodes at which each ends, after which shapes are constant in it.

    `model` and `freeze` are as for `compile`. For dimensions, branches and loops count as one node.
    Raises what the import raises.
    """
    mod = import_model(model, freeze=freeze)
    graphs = [f for f in mod.functions if isinstance(f, Function)]
    origins = tuple(o for f in graphs for o in _origins(f))
    ends = tuple(e for f in graphs for e in _ends(f))
    public = [stated(f) for f in graphs if not f.is_private]
    always = tuple(c for f in public for c in _texts(f, conditions_of(f)))
    branches = dict.fromkeys(c for f in public for c in _texts(f, of_branches(f)))
    return DimsReport(origins, ends, tuple(_outputs(mod)), always, tuple(branches))


def _texts(f: Function, conditions: Iterable[SizeCondition]) -> Iterator[str]:
    names = _names(f)
    for condition in conditions:
        labels = {v: names.get(v, v.name) for v in free_vars(condition.holds)}
        yield condition_text(condition, labels)


def _names(f: Function) -> dict[Var, str]:
    return dict(f.attrs.get("dim_names", ()))


def _shape_of(t: Type, names: Mapping[Var, str]) -> tuple[str, ...]:
    if not isinstance(t, TensorType):
        return ("?",)
    label_vars = {v: Var(names.get(v, v.name), v.dtype) for v in symbols(t)}
    return tuple(print_expr(substitute(d, label_vars)) for d in t.shape)


def _origins(f: Function) -> Iterator[DimOrigin]:
    names, listed_dims = _names(f), set[Var]()
    input_names = f.attrs.get("input_names", ())
    for k, p in enumerate(f.params):
        if isinstance(p.type, TensorType):
            label = input_names[k] if len(input_names) == len(f.params) else p.name
            for axis, d in enumerate(p.type.shape):
                if isinstance(d, Var) and d not in listed_dims:
                    listed_dims.add(d)
                    yield DimOrigin(f.name, names.get(d, d.name), label, axis, "", "")
        listed_dims |= set(symbols(p.type))
    bindings = {b.var: b for b in f.bindings}
    for b in f.bindings:
        for v in symbols(b.var.type):
            if v not in listed_dims:
                listed_dims.add(v)
                node, operator = _made_by(b, bindings)
                yield DimOrigin(f.name, names.get(v, v.name), "", -1, node, operator)


def _made_by(b: Binding, bindings: Mapping[RVar, Binding]) -> tuple[str, str]:
    """The node and operator of a binding; of a value that is only given a type, of that value."""
    if isinstance(b.value, MatchCast) and b.value.value in bindings:
        return _made_by(bindings[b.value.value], bindings)  # type: ignore[index]
    if isinstance(b.value, Call):
        operator = b.value.op or type(b.value).__name__
        return b.value.span or b.var.name, operator
    return b.var.name, type(b.value).__name__


def _ends(f: Function) -> Iterator[DimEnd]:
    names = _names(f)
    for b in f.bindings:
        if not isinstance(b.value, Call) or not isinstance(b.var.type, TensorType):
            continue
        result_dims = set(symbols(b.var.type))
        operand_dims = dict.fromkeys(v for a in b.value.args for v in _symbols(a))
        node, operator = _made_by(b, {})
        for v in operand_dims:
            if v not in result_dims:
                shape = _shape_of(b.var.type, names)
                yield DimEnd(f.name, names.get(v, v.name), node, operator, shape)


def _symbols(v: Value) -> list[Var]:
    return list(symbols(v.type)) if isinstance(v, RVar) else []


def _outputs(mod: IRModule) -> Iterator[tuple[str, ...]]:
    for f in mod.functions:
        if isinstance(f, Function) and not f.is_private:
            fields = getattr(f.result, "fields", (f.result,))
            for v in fields:
                if isinstance(getattr(v, "type", None), TensorType):
                    yield _shape_of(v.type, _names(f))
