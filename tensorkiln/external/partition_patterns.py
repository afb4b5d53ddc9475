"""Move groups of operators that an external matches into functions that it compiles.

    d = dequantize(q, s, z); y = conv2d(d, dequantize(w, t, 0)); r = quantize(y, u, v)
        ->   n = transpose(q, (0, 2, 3, 1)); m = mine_conv2d(n, w'); r = transpose(m, (0, 3, 1, 2))

The function computes the same operators, between transposes to and from the order of dimensions
that the external wants; neighbours hand each other the stored form, without a transpose.

Must run before `match_integer`, which rewrites the operators of quantised models.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorkiln.base.errors import UserError
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.base.text import unused
from tensorkiln.external.external import External, named
from tensorkiln.external.match import Definitions, Refused, Taken, with_refused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    IMPURE_OPS,
    Binding,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    Value,
    constant,
)
from tensorkiln.ir.text.printer import print_function
from tensorkiln.ir.visit_graph import variables
from tensorkiln.target import Target

_Made = dict[tuple[str, str], Function]


@dataclass(frozen=True, slots=True)
class PartitionPatterns:
    """Partition every graph function for the externals that define `match`. The result is the same
    module object if there are none, or if they neither take nor refuse anything.

    Refusals are recorded in the graph function's attribute `refused`: (external, node, reason) for
    each operator for which an external has code and which it does not take.
    `Executable.placement()` shows them.
    """

    target: Target
    externals: tuple[External, ...] = ()

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the partitioned module. Raises UserError for a bad answer of `match`."""
        externals = [e for e in named(self.externals).values() if e.match is not None]
        if not externals:
            return mod
        new_functions: _Made = {}
        names = set(mod)
        graphs: dict[str, Function] = {
            f.name: _Partitioning(
                f, self.target, self._of(f, externals), new_functions, names
            ).run()
            for f in mod.unplanned
        }
        if all(graphs[f.name] is f for f in mod.unplanned):
            return mod
        graph_functions: list[AnyFunction] = [graphs.get(f.name, f) for f in mod.functions]
        return mod.with_functions((*graph_functions, *new_functions.values()))

    def _of(self, f: Function, externals: Sequence[External]) -> list[External]:
        return [e for e in externals if e.may_take_of(f, self.target)]


class _Partitioning:
    """The partitioning of one graph function. `new_functions` are the functions added to the
    module, by name and text, and `function_names` all names in use."""

    def __init__(
        self,
        f: Function,
        target: Target,
        externals: Sequence[External],
        new_functions: _Made,
        names: set[str],
    ):
        self.f, self.target, self.externals = f, target, externals
        self.new_functions, self.function_names = new_functions, names
        self.definitions = Definitions(f)
        self.places = {
            b.var: i for i, b in enumerate(f.bindings) if isinstance(b.value, Call) and b.value.op
        }
        self.names = {v.name for v in (*f.params, *(b.var for b in f.bindings))}
        self.stored: dict[tuple[RVar, tuple[int, ...]], RVar] = {}
        self.bindings: list[Binding] = []

    def run(self) -> Function:
        groups: dict[RVar, tuple[External, Taken, str]] = {}
        refused: list[tuple[str, str, str]] = []
        inside: set[RVar] = set()
        for b in self.f.bindings:
            if not isinstance(b.value, Call) or not b.value.op or b.var in inside:
                continue
            for e in (e for e in self.externals if e.may_take(b.value)):
                answer = _answer(e, b, self.definitions, self.target)
                if isinstance(answer, Taken):
                    answer = self._checked(e, b, answer, groups)
                    groups[answer.bindings[-1].var] = (e, answer, b.value.span)
                    inside.update(x.var for x in answer.bindings)
                    break
                if answer is not None:
                    refused.append(answer.row(e.name, b.value))
        if not groups and not refused:
            return self.f
        for b in self.f.bindings:
            if b.var in groups:
                self._call(*groups[b.var])
            else:
                self.bindings.append(b)
        return with_refused(replace(self.f, bindings=self._live()), refused)

    def _checked(
        self, e: External, b: Binding, group: Taken, taken_vars: Collection[RVar]
    ) -> Taken:
        """The group with its bindings in the graph's order. Raises UserError (code `bad-external`)
        for one that cannot become a function."""
        places = sorted({self.places.get(x.var, -1) for x in group.bindings})
        bindings = tuple(self.f.bindings[i] for i in places)
        reason = ""
        if not places or places[0] < 0 or len(places) != len(group.bindings):
            reason = "bindings that are not calls of this graph, each once"
        elif bindings[-1].var in taken_vars:
            reason = f"{bindings[-1].var.name!r}, which another group computes"
        elif any(sorted(o) != list(range(v.tensor.ndim)) for v, o in group.orders.items()):
            reason = "an order that is not one of all dimensions"
        if reason:
            label = f"external {e.name!r}: match({_op(b)})"
            raise UserError(f"{label} took {reason}", code="bad-external")
        return replace(group, bindings=bindings)

    def _live(self) -> tuple[Binding, ...]:
        """The bindings that are still needed, without those whose values only functions of groups
        compute now."""
        needed = set(variables(self.f.result))
        read = needed.union(*(variables(b.value) for b in self.f.bindings))
        unread = {b.var for b in self.f.bindings if b.var not in read}  # in the graph as it came
        live = []
        for b in reversed(self.bindings):
            pure = isinstance(b.value, Call) and b.value.op not in IMPURE_OPS
            if b.var in needed or not pure or b.var in unread:
                needed.update(variables(b.value))
                live.append(b)
        return tuple(reversed(live))

    def _call(self, external: External, group: Taken, span: str) -> None:
        """Append a call of the group's function, and the transposes at its ends."""
        last = group.bindings[-1].var
        order = group.orders.get(last)
        f = _function(group, f"{external.name}_{group.name}", external.name)
        args = tuple(self._stored(v, group.orders.get(v)) for v in _parameters(group))
        call = Call(self._added(f), args, span=span)
        if order is None:
            self.bindings.append(Binding(last, call))
            return
        stored = RVar(self._name(last), f.result.type)
        self.bindings.append(Binding(stored, call))
        self.stored[last, order] = stored
        back = Call("transpose", (stored,), Attrs.of(axes=_inverse(order)), span=span)
        self.bindings.append(Binding(last, back))

    def _added(self, f: Function) -> GlobalRef:
        """A reference to `f`, or to an equal function that was added before."""
        key = (f.name, print_function(f, canonical=True))
        if key not in self.new_functions:
            name = unused(f.name, self.function_names)
            self.function_names.add(name)
            self.new_functions[key] = replace(f, name=name)
        return GlobalRef(self.new_functions[key].name)

    def _stored(self, v: RVar | Constant, order: tuple[int, ...] | None) -> Value:
        """`v` with its dimensions transposed to this order."""
        if order is None:
            return v
        if isinstance(v, Constant):
            array = np.ascontiguousarray(v.array.transpose(order))
            return constant(array, f"{v.name}.transpose" if v.name else "")
        if (v, order) not in self.stored:
            transposed = RVar(self._name(v), _permuted(v.tensor, order))
            self.bindings.append(Binding(transposed, Call("transpose", (v,), Attrs.of(axes=order))))
            self.stored[v, order] = transposed
        return self.stored[v, order]

    def _name(self, v: RVar) -> str:
        """A new name for a transposed copy of `v`."""
        name = unused(f"{v.name}_stored", self.names)
        self.names.add(name)
        return name


def _answer(e: External, b: Binding, graph: Definitions, target: Target) -> Taken | Refused | None:
    assert e.match is not None
    label = f"external {e.name!r}: match({_op(b)})"
    with plugin(label):
        answer: object = e.match(b, graph, e.target or target)
    if answer is not None and not isinstance(answer, Taken | Refused):
        raise bad_answer(label, answer, "Taken, Refused or None", "bad-external")
    return answer


def _op(b: Binding) -> str:
    return b.value.op if isinstance(b.value, Call) else ""


def _parameters(group: Taken) -> list[RVar | Constant]:
    """The parameters of a group's function: values that its bindings read and do not compute, and
    its weights, each once, in the order in which they are read."""
    inner_vars = {b.var for b in group.bindings}
    read: dict[RVar | Constant, None] = {}
    for b in group.bindings:
        assert isinstance(b.value, Call)
        for a in b.value.args:
            if a in group.weights or (isinstance(a, RVar) and a not in inner_vars):
                read[a] = None
    return list(read)


def _function(group: Taken, name: str, external: str) -> Function:
    """The function of a group: transposes, the bindings, a transpose of the result."""
    params: list[RVar] = []
    inner: dict[Value, RVar] = {}
    body: list[Binding] = []
    names = {b.var.name for b in group.bindings}
    for i, value in enumerate(_parameters(group)):
        order = group.orders.get(value)
        p = RVar(unused(f"p{i}", names), _permuted(value.tensor, order))
        params.append(p)
        inner[value] = p if order is None else _transpose(body, p, _inverse(order), value.tensor)
    for b in group.bindings:
        assert isinstance(b.value, Call)
        args = tuple(inner.get(a, a) for a in b.value.args)
        inner[b.var] = RVar(b.var.name, b.var.type)
        body.append(Binding(inner[b.var], replace(b.value, args=args)))
    last = group.bindings[-1].var
    result = inner[last]
    order = group.orders.get(last)
    if order is not None:
        result = _transpose(body, result, order, _permuted(last.tensor, order))
    attrs = Attrs.of(primitive=True, external=external)
    return Function(name, tuple(params), tuple(body), result, attrs)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def _permuted(t: TensorType, order: tuple[int, ...] | None) -> TensorType:
    return t if order is None else TensorType(tuple(t.shape[i] for i in order), t.dtype)


def _transpose(body: list[Binding], v: RVar, axes: tuple[int, ...], t: TensorType) -> RVar:
    transposed = RVar(f"{v.name}_transpose", t)
    body.append(Binding(transposed, Call("transpose", (v,), Attrs.of(axes=axes))))
    return transposed
