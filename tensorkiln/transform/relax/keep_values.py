"""Return what every kernel computes, beside the function's results: for `compile(debug=True)`.

`tk.verify` compares what was compiled with the model kernel by kernel, so results that kernels hand
to each other must be visible. This pass, the last before `LowerGroups`, copies each to an
additional result by a kernel of its own: kernels and the memory plan are those of an ordinary
compile. Values have names that no pass gives to anything else (`name_values.py`), so a name says
which value of the model it is. The attribute `kept` lists them (`ir/kept.py`). Outer functions do
not return the values of the graph functions that they call, but pass them, with the results of host
steps, to a function of a known name, which does nothing unless another is registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorkiln.base.errors import UserError
from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import IntImm
from tensorkiln.ir.kept import KEPT_VALUES, Kept, kept_of
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    AnyTensorType,
    Binding,
    Bound,
    Call,
    Function,
    GlobalRef,
    If,
    Lambda,
    ObjectType,
    PrimType,
    PrimValue,
    RVar,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.visit_graph import substitute
from tensorkiln.kernels import is_view
from tensorkiln.target import HOST
from tensorkiln.transform.relax.parts import parts_of


def keep_values(mod: IRModule) -> IRModule:
    """Add the result of every kernel call to the results of graph functions.

    Before:  main(x): a = conv2d_relu(x, w); b = softmax(a); return b
    After:   main(x): a = conv2d_relu(x, w); a_kept = keep_identity(a); b = softmax(a);
             return (b, a_kept)          attrs kept = ((1, "conv2d_relu", "a"), (0, "softmax", "b"))
    Needs:   `fuse_ops`; `name_values`, for names to say which value of the model they are.

    A row of `kept` is the number of a result, the kernel, and the names of the value: its own, and
    those of reshapes of it. A result is copied to row-major memory by a kernel of its own, right
    after it is computed, so kernels, their schedules and the places of values are as without this
    pass. What parts of devices compute goes through the function that calls them.

    Outer functions show values while they run, those that their graph functions return and those of
    host steps, by calls of the function `kiln_kept_values` (`ir/kept.py`), which is added. Raises
    UserError (code `name-clash`) if the module has a function of this name.
    """
    parts = parts_of(mod)
    if any("kept" in f.attrs for f in (*mod.unplanned, *mod.outers)):
        return mod
    keep = _Keep(parts, set(mod))
    new_functions = {f.name: keep.part(f) for f in parts.values()}
    new_functions |= {f.name: keep.function(f) for f in mod.unplanned if f.name not in parts}
    new_functions |= {f.name: keep.outer(f) for f in mod.outers}
    is_unchanged = all(new_functions.get(f.name, f) is f for f in mod.functions)
    if is_unchanged:
        return mod
    added: list[Function] = keep.copies
    if keep.shown_values:
        new_functions = {name: keep.with_rows(f) for name, f in new_functions.items()}
        added = [*added, _nothing_kept(mod)]
    return mod.with_functions((*(new_functions.get(f.name, f) for f in mod.functions), *added))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A value that is returned in addition: the kernel that computes it, and its names."""

    value: RVar
    kernel: str
    names: tuple[str, ...]


@dataclass(slots=True)
class _Keep:
    parts: Mapping[str, Function]
    names: set[str]
    copies: list[Function] = field(default_factory=list)
    added: dict[str, list[_Kept]] = field(default_factory=dict)  # to the results of each part
    # Of functions that outer ones may call: how many results each had, has now, and which are kept.
    results: dict[str, tuple[int, int, tuple[Kept, ...]]] = field(default_factory=dict)
    shown_values: list[Kept] = field(default_factory=list)  # by outer functions

    def part(self, f: Function) -> Function:
        """A part that returns what its kernels compute after its own results."""
        bindings, added = self._with_copies(f, ())
        self.added[f.name] = added
        if not added:
            return f
        result = Tuple((*_fields(f.result), *(k.value for k in added)))
        return replace(f, bindings=tuple(bindings), result=result)

    def function(self, f: Function) -> Function:
        """A function that returns what its kernels and its parts' compute, with the rows of
        `kept`."""
        results = list(_fields(f.result))
        bindings, added = self._with_copies(f, results)
        if not added:
            return f
        rows = []
        for k in added:
            if k.value not in results:
                results.append(k.value)
            rows.append((results.index(k.value), k.kernel, *k.names))
        result_count = len(_fields(f.result))
        copy_count = len(results) - result_count
        self.results[f.name] = result_count, len(results), kept_of({"kept": rows})
        attrs = dict(f.attrs)
        if not f.is_private:
            attrs["kept"] = tuple(rows)
        if "output_names" in f.attrs:
            named = {number: names[0] for number, _, *names in rows}
            attrs["output_names"] = (
                *f.attrs["output_names"],
                *(named[number] for number in range(result_count, len(results))),
            )
        if "result_devices" in f.attrs:
            attrs["result_devices"] = (*f.attrs["result_devices"], *(HOST,) * copy_count)
        result = Tuple(tuple(results)) if copy_count else f.result
        return replace(f, bindings=tuple(bindings), result=result, attrs=Attrs.of(**attrs))

    def outer(self, f: Function) -> Function:
        """An outer function that shows its values."""
        before = len(self.shown_values)
        bindings = self._showing(f.bindings)
        return f if len(self.shown_values) == before else replace(f, bindings=bindings)

    def with_rows(self, f: Function) -> Function:
        """A public outer function with the rows of all of them: it may call any other."""
        if not f.is_outer or f.is_private:
            return f
        rows = tuple((k.output, k.kernel, *k.names) for k in self.shown_values)
        return replace(f, attrs=Attrs.of(**{**f.attrs, "kept": rows}))

    def _showing(self, bindings: Sequence[Binding]) -> tuple[Binding, ...]:
        out: list[Binding] = []
        items: dict[Value, dict[int, str]] = {}
        for b in bindings:
            if isinstance(b.value, TupleItem):
                items.setdefault(b.value.value, {})[b.value.index] = b.var.name
        returned = set[Value]()  # by functions whose values are shown
        for b in bindings:
            if _callee(b.value) in self.results:
                returned.add(b.var)
                names = items.get(b.var, {})
                if not isinstance(b.var.type, TupleType):
                    names = {0: b.var.name}
                out += self._call_showing(b, names)
                continue
            out.append(Binding(b.var, self._nested(b.value)))
            is_computed = isinstance(b.value, Call | If | TupleItem)
            is_shown = isinstance(b.value, TupleItem) and b.value.value in returned
            if is_computed and not is_shown and isinstance(b.var.type, TensorType | AnyTensorType):
                out.append(self._show([Kept(0, "", (b.var.name,))], [b.var]))
        return tuple(out)

    def _nested(self, value: Bound) -> Bound:
        """The right side of a binding whose own bindings show their values."""
        if isinstance(value, If):
            then_body, orelse = (
                replace(body, bindings=self._showing(body.bindings))
                for body in (value.then, value.orelse)
            )
            return replace(value, then=then_body, orelse=orelse)
        if isinstance(value, Lambda):
            f = value.function
            return Lambda(replace(f, bindings=self._showing(f.bindings)))
        return value

    def _call_showing(self, b: Binding, names: Mapping[int, str]) -> list[Binding]:
        """The call of a function that returns more, and a call that shows it. `names` are those of
        the function's own results, by their numbers, here."""
        result_count, count, rows = self.results[_callee(b.value)]
        is_tuple = isinstance(b.var.type, TupleType)
        types: tuple[Type, ...] = b.var.type.fields if is_tuple else (b.var.type,)  # type: ignore[union-attr]
        # Sizes of what is kept may be symbols of the function that is called.
        types += (ObjectType(),) * (count - result_count)
        out = [b]
        items = [b.var]
        if is_tuple or count > result_count:
            whole = RVar(f"{b.var.name}_and_kept", TupleType(types))
            items = [RVar(f"{b.var.name}_{i}", t) for i, t in enumerate(types)]
            out = [Binding(whole, b.value)]
            out += [Binding(v, TupleItem(whole, i)) for i, v in enumerate(items)]
            out.append(Binding(b.var, Tuple(tuple(items[:result_count])) if is_tuple else items[0]))
        named_rows = [replace(k, names=_also(k.names, names.get(k.output))) for k in rows]
        values = [items[k.output] for k in rows]
        for i, name in names.items():
            if all(name not in k.names for k in named_rows):  # a parameter, or a constant
                named_rows.append(Kept(0, "", (name,)))
                values.append(items[i])
        return [*out, self._show(named_rows, values)]

    def _show(self, rows: Sequence[Kept], values: Sequence[Value]) -> Binding:
        """A call of `KEPT_VALUES`."""
        first = len(self.shown_values)
        self.shown_values += [replace(k, output=i) for i, k in enumerate(rows, first)]
        args = (PrimValue(IntImm(first)), Tuple(tuple(values)))
        call = Call("call_packed", args, Attrs.of(name=KEPT_VALUES))
        return Binding(RVar("kept", ObjectType()), call)

    def _with_copies(
        self, f: Function, results: Sequence[Value]
    ) -> tuple[list[Binding], list[_Kept]]:
        """The bindings of a function with copies of what kernels compute, and the copies; a value
        that is one of `results` is its own copy."""
        bindings: list[Binding] = []
        added: list[_Kept] = []
        called: dict[Value, Bound] = {}
        by: dict[RVar, Value] = {}
        names = _names(f)
        for b in f.bindings:
            b = Binding(b.var, substitute(b.value, by))
            part = self.added.get(_callee(b.value), [])
            if part:
                whole = _with_more(b, part)
                bindings.append(whole)
                if isinstance(b.var.type, TupleType):
                    by[b.var] = whole.var
                else:
                    bindings.append(Binding(b.var, TupleItem(whole.var, 0)))
                assert isinstance(whole.var.type, TupleType)
                first = len(whole.var.type.fields) - len(part)
                for index, k in enumerate(part, first):
                    item = RVar(k.value.name, k.value.type)
                    bindings.append(Binding(item, TupleItem(whole.var, index)))
                    added.append(replace(k, value=item))
                continue
            bindings.append(b)
            called[b.var] = b.value
            definition = b.value
            if isinstance(definition, TupleItem):
                definition = called.get(definition.value, definition)
            kernel = _callee(definition)
            if kernel and kernel not in self.parts and isinstance(b.var.type, TensorType):
                copy = b.var if b.var in results else self._copy(b.var, f, bindings)
                added.append(_Kept(copy, kernel, names[b.var]))
        return bindings, added

    def _copy(self, v: RVar, f: Function, bindings: list[Binding]) -> RVar:
        """Append the call of a kernel of the function's device that copies a value."""
        t = v.tensor
        op, op_attrs = "identity", Attrs.of()
        if t.layout is not None:
            op, op_attrs = "relayout", Attrs.of(layout=str(Layout.plain(t.ndim)))
        name = unused(f"keep_{op}", self.names)
        self.names.add(name)
        x, y = RVar("p0", t), RVar("y", t.with_layout(None))
        device = {key: f.attrs[key] for key in ("target",) if key in f.attrs}
        attrs = Attrs.of(primitive=True, **device)
        self.copies.append(Function(name, (x,), (Binding(y, Call(op, (x,), op_attrs)),), y, attrs))
        copy = RVar(f"{v.name}_kept", y.type)
        bindings.append(Binding(copy, Call(GlobalRef(name), (v,))))
        return copy


def _nothing_kept(mod: IRModule) -> Function:
    """The function that outer functions call with their values if no other is registered."""
    if KEPT_VALUES in mod:
        raise UserError(
            f"a function is called {KEPT_VALUES!r}, the name by which compile(debug=True) shows "
            "values",
            code="name-clash",
            hint="rename it",
        )
    first, values = RVar("first", PrimType(INT64)), RVar("values", ObjectType())
    return Function(KEPT_VALUES, (first, values), (), values, Attrs.of(outer=True))


def _also(names: tuple[str, ...], name: str | None) -> tuple[str, ...]:
    return names if name is None or name in names else (*names, name)


def _with_more(b: Binding, copies: Sequence[_Kept]) -> Binding:
    """The call of a part that returns more."""
    t = b.var.type
    fields = t.fields if isinstance(t, TupleType) else (t,)
    types = (*fields, *(k.value.type for k in copies))
    return Binding(RVar(f"{b.var.name}_and_kept", TupleType(types)), b.value)


def _callee(value: Bound) -> str:
    callee = value.callee if isinstance(value, Call) else None
    return callee.name if isinstance(callee, GlobalRef) else ""


def _names(f: Function) -> dict[RVar, tuple[str, ...]]:
    """For each value its name, and the names of row-major reshapes of it."""
    root: dict[RVar, RVar] = {}
    names: dict[RVar, tuple[str, ...]] = {}
    for b in f.bindings:
        names[b.var] = (b.var.name,)
        source = next(_operands(b), None)
        if is_view(b) and isinstance(source, RVar):
            root[b.var] = base = root.get(source, source)
            names[base] = (*names.get(base, ()), b.var.name)
    return names


def _operands(b: Binding) -> Iterator[Value]:
    yield from b.value.args if isinstance(b.value, Call) else ()


def _fields(v: Value) -> tuple[Value, ...]:
    return v.fields if isinstance(v, Tuple) else (v,)


__all__ = ["keep_values"]
