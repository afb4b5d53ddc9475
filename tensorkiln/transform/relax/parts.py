"""Parts of a graph function that are functions of their own, each of one device: making them, and
putting them back.

    y = conv2d(x, w); z = softmax(y); return z
    <->  y = main_dsp(x); z = softmax(y); return z
         main_dsp(x): return conv2d(x, w)                part, private, target = "dsp"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Function,
    GlobalRef,
    RVar,
    Tuple,
    TupleItem,
    TupleType,
    Value,
    size_symbols,
)
from tensorkiln.ir.subtype import symbols
from tensorkiln.ir.visit_graph import substitute, substitute_value, variables


def parts_of(mod: IRModule) -> dict[str, Function]:
    """The functions of a module that are parts of others."""
    return {f.name: f for f in mod.unplanned if f.attrs.get("part", False)}


# ---- making them ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """Bindings that become one function of a device, or, if `device` is empty, stay."""

    device: str
    bindings: list[Binding] = field(default_factory=list)


def divided(
    f: Function, placement: Mapping[RVar, str], names: set[str]
) -> tuple[list[Function], tuple[Binding, ...]]:
    """The parts of `f`, and the bindings that call them. `placement` is the device of each binding,
    empty for those that stay; `names` are the names of the module, to which those of parts are
    added. Parts are as large as the order of calls allows."""
    functions: list[Function] = []
    bindings: list[Binding] = []
    for part in _levels(f, placement):
        bindings += _calls(f, part, functions, names) if part.device else part.bindings
    return functions, tuple(bindings)


def _levels(f: Function, placement: Mapping[RVar, str]) -> list[_Part]:
    """The parts in an order in which they can run. A binding is one level above operands from other
    devices; each level has one part per device."""
    level: dict[RVar, int] = {}
    parts: dict[tuple[int, str], _Part] = {}
    for b in f.bindings:
        device = placement[b.var]
        operands = [v for v in variables(b.value) if v in level]
        level[b.var] = max((level[v] + (placement[v] != device) for v in operands), default=0)
        parts.setdefault((level[b.var], device), _Part(device)).bindings.append(b)
    return [parts[key] for key in sorted(parts, key=lambda key: key[0])]


def _calls(f: Function, part: _Part, functions: list[Function], names: set[str]) -> list[Binding]:
    """The bindings that call the function of a part, which is added to `functions`."""
    part_vars = {b.var for b in part.bindings}
    inputs = dict.fromkeys(
        v for b in part.bindings for v in variables(b.value) if v not in part_vars
    )
    inputs |= dict.fromkeys(_givers(f, part, inputs))
    params = {v: RVar(v.name, v.type) for v in inputs}
    inside = {b.var: RVar(b.var.name, b.var.type) for b in part.bindings}
    by = {**params, **inside}
    bindings = tuple(Binding(inside[b.var], substitute(b.value, by)) for b in part.bindings)
    read = _read_outside(f, part_vars)
    results = [b.var for b in part.bindings if b.var in read]
    if not results:
        return []
    values = tuple(inside[r] for r in results)
    name = unused(f"{f.name}_{part.device}", names)
    names.add(name)
    result = values[0] if len(values) == 1 else Tuple(values)
    attrs = Attrs.of(part=True, private=True, target=part.device)
    functions.append(Function(name, tuple(params.values()), bindings, result, attrs))
    call = Call(GlobalRef(name), tuple(inputs))
    if len(results) == 1:
        return [Binding(results[0], call)]
    whole = RVar(f"{name}_results", TupleType(tuple(r.type for r in results)))
    items = [Binding(r, TupleItem(whole, i)) for i, r in enumerate(results)]
    return [Binding(whole, call), *items]


def _givers(f: Function, part: _Part, inputs: Mapping[RVar, None]) -> list[RVar]:
    """The parameters of `f` that give a part the sizes that none of its inputs has, as where it
    cuts rows of a constant."""
    needs = size_symbols(Function("", tuple(inputs), tuple(part.bindings), Tuple(()), Attrs()))
    sizes = {n for v in inputs for n in symbols(v.type)}
    givers: list[RVar] = []
    for n in needs:
        if n not in sizes:
            giver = next((p for p in f.params if n in symbols(p.type)), None)
            if giver is not None:
                givers.append(giver)
                sizes.update(symbols(giver.type))
    return givers


def _read_outside(f: Function, part_vars: set[RVar]) -> set[RVar]:
    read = set(variables(f.result))
    for b in f.bindings:
        if b.var not in part_vars:
            read.update(variables(b.value))
    return read


# ---- putting them back -----------------------------------------------------------------------


@dataclass(slots=True)
class Joined:
    """A function's bindings and result without calls of parts. `device` is the device of each
    binding that was one's."""

    bindings: list[Binding]
    result: Value
    device: dict[RVar, str]


def called_parts(f: Function, parts: Mapping[str, Function]) -> list[str]:
    """The names of the parts that a function calls."""
    calls = (b.value for b in f.bindings if isinstance(b.value, Call))
    refs = (c.callee for c in calls if isinstance(c.callee, GlobalRef))
    return [ref.name for ref in refs if ref.name in parts]


def joined(f: Function, parts: Mapping[str, Function]) -> Joined:
    """`f` with the bindings of parts in the place of their calls."""
    whole = {b.var for b in f.bindings if _is_call(b.value, parts)}
    host_vars = [b.var for b in f.bindings if b.var not in whole and not _is_item(b.value, whole)]
    names = {v.name for v in (*f.params, *host_vars)}
    graph = Joined([], f.result, {})
    by: dict[RVar, Value] = {}
    results: dict[Value, tuple[Value, ...]] = {}
    for b in f.bindings:
        value = substitute(b.value, by)
        if isinstance(value, TupleItem) and value.value in results:
            by[b.var] = results[value.value][value.index]
        elif b.var in whole:
            results[b.var] = part_results = _inlined(parts, value, names, graph)
            if len(part_results) == 1:
                by[b.var] = part_results[0]
        else:
            graph.bindings.append(Binding(b.var, value))
    graph.result = substitute_value(f.result, by)
    return graph


def _is_call(value: Bound, parts: Mapping[str, Function]) -> bool:
    callee = value.callee if isinstance(value, Call) else None
    return isinstance(callee, GlobalRef) and callee.name in parts


def _is_item(value: Bound, whole: set[RVar]) -> bool:
    return isinstance(value, TupleItem) and value.value in whole


def _inlined(
    parts: Mapping[str, Function], call: Bound, names: set[str], graph: Joined
) -> tuple[Value, ...]:
    """Append the bindings of the part that is called; return its results."""
    assert isinstance(call, Call) and isinstance(call.callee, GlobalRef)
    part = parts[call.callee.name]
    by: dict[RVar, Value] = dict(zip(part.params, call.args, strict=True))
    for b in part.bindings:
        var = RVar(unused(b.var.name, names), b.var.type)
        names.add(var.name)
        graph.bindings.append(Binding(var, substitute(b.value, by)))
        graph.device[var] = str(part.attrs["target"])
        by[b.var] = var
    fields = part.result.fields if isinstance(part.result, Tuple) else (part.result,)
    return tuple(substitute_value(v, by) for v in fields)


__all__ = ["Joined", "called_parts", "divided", "joined", "parts_of"]
