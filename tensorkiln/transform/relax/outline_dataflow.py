"""Outline the straight-line parts of outer functions into graph functions of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    DYNAMIC_OPS,
    IMPURE_OPS,
    Binding,
    Body,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    RVar,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.subtype import symbols
from tensorkiln.ir.visit import free_vars
from tensorkiln.ir.visit_graph import substitute, substitute_value, variables
from tensorkiln.transform.rewriting.graph import live


def outline_dataflow(mod: IRModule) -> IRModule:
    """Move sequences of operators in outer functions to private graph functions, `<f>_part0`, ...

    Before:  main(x, c): y = exp(x); if c: z = neg(y); w = exp(z) else: w = y; return w
    After:   main(x, c): y = main_part0(x); if c: w = main_part1(y) else: w = y; return w
             main_part0(x): return exp(x)
             main_part1(y): z = neg(y); w = exp(z); return w

    What remains runs as host steps: calls of functions, branches, closures, casts, tuples, impure
    operators, and operators whose result's shape depends on data. A function that calls graph
    functions becomes outer too. Values that a part reads become its parameters; a symbolic
    dimension that no other parameter has is passed with a tensor that has it as an extent.

    Needs:   types inferred.

    A module without outer functions is returned unchanged. Raises UnsupportedError if no tensor has
    a symbolic dimension of a part as one extent.
    """
    graphs = {f.name for f in mod.functions if isinstance(f, Function) and not f.is_primitive}
    names = set(mod)
    out: list[AnyFunction] = []
    for f in mod.functions:
        if isinstance(f, Function) and (f.is_outer or _calls(f, graphs)):
            outlined = _Outline(f, mod, names)
            whole = outlined.run()
            out += [*outlined.parts, whole]
        else:
            out.append(f)
    is_unchanged = all(a is b for a, b in zip(out, mod.functions, strict=False))
    return (
        mod if is_unchanged and len(out) == len(mod.functions) else mod.with_functions(tuple(out))
    )


def _calls(f: Function, graphs: set[str]) -> bool:
    """Whether `f` calls a graph function, which a planned graph function cannot do."""
    if f.is_primitive:
        return False
    calls = (b.value for b in f.bindings if isinstance(b.value, Call))
    return any(isinstance(c.callee, GlobalRef) and c.callee.name in graphs for c in calls)


@dataclass(slots=True)
class _OperatorRun:
    """Operators that become one part, whose call is the step at index `place` of `places`.

    `late` holds the variables and dimensions that later host steps bind: an operator that needs one
    cannot join. The first `scope_size` variables of the scope are bound before the call.
    """

    place: int
    scope_size: int
    bindings: list[Binding] = field(default_factory=list)
    late: set[RVar | Var] = field(default_factory=set)


class _Outline:
    """Outlines one outer function; `parts` are the new functions."""

    def __init__(self, f: Function, mod: IRModule, names: set[str]):
        self._f, self._mod, self._names = f, mod, names
        self.parts: list[Function] = []
        self._scope: list[RVar] = []  # parameters and the results of host steps, in order
        self._by: dict[RVar, Value] = {}
        self._tuples: dict[Value, Tuple] = {}
        self._has_operator = False  # whether there is an operator, even one whose result is unused

    def run(self) -> Function:
        """The function with calls of its parts, marked `outer`; the function itself if it is marked
        and holds no operators."""
        f = self._f
        body = self._body(Body(f.bindings, f.result), f.params)
        if not self._has_operator and f.attrs.get("outer", False):
            return f
        attrs = Attrs.of(**(dict(f.attrs) | {"outer": True}))
        return replace(f, bindings=body.bindings, result=body.result, attrs=attrs)

    def _body(self, body: Body, params: tuple[RVar, ...] = ()) -> Body:
        before = len(self._scope)
        self._scope += params
        places: list[list[Binding]] = []
        runs: list[_OperatorRun] = []
        current: _OperatorRun | None = None
        for b in body.bindings:
            definition = self._forwarded(b)
            if isinstance(definition, RVar | Constant) and definition.type == b.var.type:
                self._by[b.var] = definition
                continue
            b = Binding(b.var, definition)
            if self._is_operator(b):
                self._has_operator = True
                if current is None or current.late & _needs(b):
                    current = _OperatorRun(len(places), len(self._scope))
                    runs.append(current)
                    places.append([])
                current.bindings.append(b)
                continue
            places.append([Binding(b.var, self._inner(definition))])
            if current is not None:
                current.late |= {b.var, *self._brought(b)}
                current = current if _commutes(definition) else None
            self._scope.append(b.var)
        body = Body(tuple(b for p in places for b in p), substitute_value(body.result, self._by))
        for run in runs:
            places[run.place] = self._part(run, _read_outside(run, runs, body))
        del self._scope[before:]
        return Body(tuple(b for p in places for b in p), body.result)

    def _forwarded(self, b: Binding) -> Bound:
        """The right side of `b` with aliases replaced; an item of a tuple that is built in this
        function is replaced by the tuple's field."""
        definition = substitute(b.value, self._by)
        if isinstance(definition, Tuple):
            self._tuples[b.var] = definition
        elif isinstance(definition, TupleItem) and definition.value in self._tuples:
            return self._tuples[definition.value].fields[definition.index]
        return definition

    def _brought(self, b: Binding) -> set[Var]:
        """The symbolic dimensions that a match_cast binds: those that no value in scope has."""
        if not isinstance(b.value, MatchCast):
            return set()
        dims = {d for v in self._scope for d in symbols(v.type)}
        return set(symbols(b.var.type)) - dims

    def _is_operator(self, b: Binding) -> bool:
        """Whether a binding is a call that a graph function can hold: of an operator or a tensor
        program, with tensors as operands and one tensor as result."""
        call = b.value
        if not isinstance(call, Call) or not isinstance(b.var.type, TensorType):
            return False
        if isinstance(call.callee, GlobalRef):
            if not isinstance(self._mod.get(call.callee.name), PrimFunc) or self._of_number(call):
                return False
        elif not call.op or call.op in IMPURE_OPS or call.op in DYNAMIC_OPS:
            return False
        return all(
            isinstance(a, ShapeValue)
            or (isinstance(a, RVar | Constant) and isinstance(a.type, TensorType))
            for a in call.args
        )

    def _of_number(self, call: Call) -> bool:
        """Whether a call passes the symbol of a number that no tensor has as a size."""
        passed = {v for a in call.args if isinstance(a, ShapeValue) for v in _free(a)}
        carried = {d for v in (*self._scope, *call.args) for d in symbols(v.type)} if passed else ()
        return not passed <= set(carried)

    def _inner(self, definition: Bound) -> Bound:
        """`definition` with the branches of an If or the function of a Lambda outlined."""
        if isinstance(definition, If):
            return If(definition.cond, self._body(definition.then), self._body(definition.orelse))
        if isinstance(definition, Lambda):
            f = definition.function
            body = self._body(Body(f.bindings, f.result), f.params)
            return Lambda(replace(f, bindings=body.bindings, result=body.result))
        return definition

    # ---- parts -------------------------------------------------------------------------------

    def _part(self, run: _OperatorRun, results: list[RVar]) -> list[Binding]:
        """Make a function of a run, and return the bindings that call it and bind `results`."""
        if not results:
            return []
        members = _needed(run.bindings, results)
        member_vars = {b.var for b in members}
        inputs = list(
            dict.fromkeys(v for b in members for v in variables(b.value) if v not in member_vars)
        )
        call_with: list[Binding] = []
        dims = {d for v in inputs for d in v.tensor.shape}
        for d in _dims(members):
            if d not in dims:
                inputs.append(self._carrier(d, run.scope_size, call_with))
                dims |= set(inputs[-1].tensor.shape)
        part = self._function(members, results, inputs)
        self.parts.append(part)
        call = Call(GlobalRef(part.name), tuple(inputs))
        if len(results) == 1:
            return [*call_with, Binding(results[0], call)]
        whole = RVar("parts", TupleType(tuple(r.type for r in results)))
        items = [Binding(r, TupleItem(whole, i)) for i, r in enumerate(results)]
        return [*call_with, Binding(whole, call), *items]

    def _function(
        self, members: list[Binding], results: list[RVar], inputs: list[RVar]
    ) -> Function:
        names: dict[str, int] = {}
        fresh = {v: RVar(_distinct(v.name, names), v.type) for v in inputs}
        params = tuple(fresh.values())
        bindings = []
        for b in members:
            definition = substitute(b.value, dict(fresh))
            fresh[b.var] = RVar(_distinct(b.var.name, names), b.var.type)
            bindings.append(Binding(fresh[b.var], definition))
        values = tuple(fresh[r] for r in results)
        result = values[0] if len(values) == 1 else Tuple(values)
        name = self._name()
        return Function(name, params, tuple(bindings), result, Attrs.of(private=True))

    def _name(self) -> str:
        k = len(self.parts)
        while f"{self._f.name}_part{k}" in self._names:
            k += 1
        name = f"{self._f.name}_part{k}"
        self._names.add(name)
        return name

    def _carrier(self, dim: Var, scope_size: int, before: list[Binding]) -> RVar:
        """A tensor with extent `dim` that is bound before a part.

        If it is inside a tuple, bindings that take it out are appended to `before`.
        """
        for v in self._scope[:scope_size]:
            path = _path(v.type, dim)
            if path is None:
                continue
            for i in path:
                assert isinstance(v.type, TupleType)
                item = RVar(v.name, v.type.fields[i])
                before.append(Binding(item, TupleItem(v, i)))
                v = item
            return v
        raise UnsupportedError(
            f"{self._f.name}: no tensor has the dimension {dim.name} by itself",
            hint=f"a parameter, or R.match_cast, of a shape with {dim.name!r} as one extent",
        )


def _free(shape: ShapeValue) -> set[Var]:
    return {v for e in shape.values for v in free_vars(e)}


def _distinct(name: str, names: dict[str, int]) -> str:
    """A name that is not in `names`, to which it is added: a second `x` becomes `x_1`."""
    name = name or "v"
    text = name
    while text in names:
        names[name] += 1
        text = f"{name}_{names[name]}"
    names.setdefault(text, 0)
    return text


def _path(t: Type, dim: Var) -> tuple[int, ...] | None:
    """The tuple indices that lead to a tensor with extent `dim` in a value of type `t`, or None."""
    if isinstance(t, TensorType):
        return () if dim in t.shape else None
    if isinstance(t, TupleType):
        for i, field_type in enumerate(t.fields):
            path = _path(field_type, dim)
            if path is not None:
                return (i, *path)
    return None


def _commutes(definition: Bound) -> bool:
    """Whether operators that follow `definition` may be moved before it: it can have no side
    effects and has no branches."""
    if isinstance(definition, Call):
        return definition.op in DYNAMIC_OPS
    return not isinstance(definition, If)


def _dims(bindings: list[Binding]) -> list[Var]:
    """The symbolic dimensions that bindings mention."""
    dims: dict[Var, None] = {}
    for b in bindings:
        assert isinstance(b.value, Call)
        dims |= symbols(b.var.type)
        for a in b.value.args:
            values = a.values if isinstance(a, ShapeValue) else ()
            dims |= dict.fromkeys(v for e in values for v in free_vars(e))
            dims |= symbols(a.type)
        dims |= dict.fromkeys(v for e in b.value.attrs.exprs() for v in free_vars(e))
    return list(dims)


def _needs(b: Binding) -> set[RVar | Var]:
    """The variables and dimensions that must be bound before an operator can run."""
    return {*variables(b.value), *_dims([b])}


def _needed(bindings: list[Binding], results: list[RVar]) -> list[Binding]:
    """The bindings on which `results` depend."""
    f = Function("", (), tuple(bindings), Tuple(tuple(results)))
    return list(live(f).bindings)


def _read_outside(run: _OperatorRun, runs: list[_OperatorRun], body: Body) -> list[RVar]:
    """The values of a run that are read outside of it, in order; they are its part's results."""
    read = set(variables(body.result))
    read.update(v for b in body.bindings for v in variables(b.value))
    other_bindings = (b for r in runs if r is not run for b in r.bindings)
    read.update(v for b in other_bindings for v in variables(b.value))
    return [b.var for b in run.bindings if b.var in read]
