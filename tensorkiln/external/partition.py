"""Move the calls that an external supports into functions that it compiles.

    y = add(x, w); z = relu(y)   ->   z = mine_add_relu(x, w)
                                      mine_add_relu: attrs {"primitive": True, "external": "mine"}

The first external that supports a call gets it. With `merge`, a value whose only reader is one call
of the same external is computed in that call's function: in the example `y`, which only `relu`
reads.

What an external refuses is noted in the attribute `refused` of the graph function
(`external/partition_patterns.py`).

Requires canonical operators, and must run before layouts are assigned: externals see row-major
tensors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tensorkiln.base.text import unused
from tensorkiln.external.external import External, named
from tensorkiln.external.match import Refused, with_refused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    ShapeValue,
    TensorType,
    Value,
    size_symbols,
)
from tensorkiln.ir.text.printer import print_function
from tensorkiln.ir.visit_graph import variables
from tensorkiln.target import Target


@dataclass(frozen=True, slots=True)
class PartitionExternals:
    """Partition every graph function; return the same module object if no external supports or
    refuses any call."""

    target: Target
    externals: tuple[External, ...] = ()

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the partitioned module. Raises UserError for a bad answer of `supports`."""
        if not named(self.externals):
            return mod
        functions = _Functions(set(mod))
        graphs = {
            f.name: _Partition(f, self.target, self._of(f), functions).run() for f in mod.unplanned
        }
        if all(graphs[f.name] is f for f in mod.unplanned):
            return mod
        graph_functions: list[AnyFunction] = [graphs.get(f.name, f) for f in mod.functions]
        return mod.with_functions((*graph_functions, *functions.by_text.values()))

    def _of(self, f: Function) -> tuple[External, ...]:
        return tuple(e for e in self.externals if e.may_take_of(f, self.target))


@dataclass(slots=True)
class _Functions:
    """The functions made so far. Equal functions are made once; names are unique in the module: a
    second `mine_add` becomes `mine_add_2`."""

    names: set[str]
    by_text: dict[str, Function] = field(default_factory=dict)

    def add(self, f: Function) -> Function:
        key = print_function(f, canonical=True)
        if key not in self.by_text:
            name = unused(f.name, self.names)
            self.names.add(name)
            self.by_text[key] = replace(f, name=name)
        return self.by_text[key]


@dataclass(slots=True, eq=False)
class _Region:
    """Bindings, in order, that become one function, whose result is the last one's variable."""

    external: External
    bindings: list[Binding]


class _Partition:
    """The partitioning of one graph function."""

    def __init__(
        self, f: Function, target: Target, externals: Sequence[External], functions: _Functions
    ):
        self.f, self.target, self.externals, self.functions = f, target, externals, functions
        self.readers: dict[RVar, set[RVar | None]] = {}
        for b in f.bindings:
            for v in variables(b.value):
                self.readers.setdefault(v, set()).add(b.var)
        for v in variables(f.result):
            self.readers.setdefault(v, set()).add(None)
        self.region_of: dict[RVar, _Region] = {}
        self.refused: list[tuple[str, str, str]] = []

    def run(self) -> Function:
        for b in self.f.bindings:
            self._place(b)
        bindings: list[Binding] = []
        # The call takes the place of the region's last binding, where all its operands are bound.
        for b in self.f.bindings:
            region = self.region_of.get(b.var)
            if region is None:
                bindings.append(b)
            elif region.bindings[-1] is b:
                bindings.append(self._call(region))
        f = replace(self.f, bindings=tuple(bindings)) if self.region_of else self.f
        return with_refused(f, self.refused)

    def _place(self, b: Binding) -> None:
        call = b.value
        if not isinstance(call, Call) or not call.op or not isinstance(b.var.type, TensorType):
            return
        taker = self._taker(call)
        if taker is None:
            return
        region = _Region(taker, [])
        for v in dict.fromkeys(variables(call)) if taker.merge else ():
            producer = self.region_of.get(v)
            if (
                producer is not None
                and producer.external is taker
                and producer.bindings[-1].var is v
                and self.readers[v] == {b.var}
            ):
                region.bindings += producer.bindings
        region.bindings.append(b)
        for inner in region.bindings:
            self.region_of[inner.var] = region

    def _taker(self, call: Call) -> External | None:
        """The first external that takes the call. Those before it may have refused it, which is
        recorded."""
        for e in self.externals:
            answer = e.takes(call, self.target)
            if isinstance(answer, Refused):
                self.refused.append(answer.row(e.name, call))
            elif answer:
                return e
        return None

    def _call(self, region: _Region) -> Binding:
        """Make the region's function and return the binding that calls it."""
        params: dict[RVar | Constant, RVar] = {}
        inside: dict[RVar, RVar] = {}
        body: list[Binding] = []

        def operand(a: Value) -> Value:
            if isinstance(a, RVar) and a in inside:
                return inside[a]
            if isinstance(a, Constant) and a.data.size == 1:
                return a
            assert isinstance(a, RVar | Constant), a
            return params.setdefault(a, RVar(f"p{len(params)}", a.type))

        names = []
        for b in region.bindings:
            call = b.value
            assert isinstance(call, Call)
            names.append(call.op)
            inside[b.var] = RVar(b.var.name, b.var.type)
            args = tuple(map(operand, call.args))
            body.append(Binding(inside[b.var], replace(call, args=args)))
        last = region.bindings[-1]
        short = names if len(names) <= 4 else [*names[:3], f"x{len(names) - 3}"]
        attrs = Attrs.of(primitive=True, external=region.external.name)
        name = "_".join([region.external.name, *short])
        function = Function(name, tuple(params.values()), tuple(body), inside[last.var], attrs)
        sizes = size_symbols(function)
        extra = (ShapeValue(sizes),) if sizes else ()
        span = last.value.span if isinstance(last.value, Call) else ""
        ref = GlobalRef(self.functions.add(function).name)
        return Binding(last.var, Call(ref, (*params, *extra), span=span))
