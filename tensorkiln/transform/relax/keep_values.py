"""Return what every kernel computes, beside the function's results: for `compile(debug=True)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
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
    pass. What parts of devices compute goes through the function that calls them. Outer functions,
    and graph functions that only they call, stay as they are.
    """
    parts = parts_of(mod)
    keep = _Keep(parts, set(mod))
    done = {}
    if not any("kept" in f.attrs for f in mod.unplanned):
        done = {f.name: keep.part(f) for f in parts.values()}
    for f in mod.unplanned:
        if f.name not in parts and not (f.is_private or f.is_outer or "kept" in f.attrs):
            done[f.name] = keep.function(f)
    same = all(done.get(f.name, f) is f for f in mod.functions)
    kept = tuple(done.get(f.name, f) for f in mod.functions)
    return mod if same else mod.with_functions((*kept, *keep.copies))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A value that is returned besides: what computes it, and its names."""

    value: RVar
    kernel: str
    names: tuple[str, ...]


@dataclass(slots=True)
class _Keep:
    parts: Mapping[str, Function]
    taken: set[str]
    copies: list[Function] = field(default_factory=list)
    added: dict[str, list[_Kept]] = field(default_factory=dict)  # to the results of each part

    def part(self, f: Function) -> Function:
        """A part that returns what its kernels compute after its own results."""
        bindings, added = self._kept(f, ())
        self.added[f.name] = added
        if not added:
            return f
        result = Tuple((*_fields(f.result), *(k.value for k in added)))
        return replace(f, bindings=tuple(bindings), result=result)

    def function(self, f: Function) -> Function:
        """A function that returns what its kernels and its parts' compute, with the rows of
        `kept`."""
        results = list(_fields(f.result))
        bindings, added = self._kept(f, results)
        if not added:
            return f
        rows = []
        for k in added:
            if k.value not in results:
                results.append(k.value)
            rows.append((results.index(k.value), k.kernel, *k.names))
        more = len(results) - len(_fields(f.result))
        attrs = {**f.attrs, "kept": tuple(rows)}
        if "output_names" in f.attrs:
            named = {at: names[0] for at, _, *names in rows}
            own = len(results) - more
            attrs["output_names"] = (
                *f.attrs["output_names"],
                *(named[at] for at in range(own, len(results))),
            )
        if "result_devices" in f.attrs:
            attrs["result_devices"] = (*f.attrs["result_devices"], *(HOST,) * more)
        result = Tuple(tuple(results))
        return replace(f, bindings=tuple(bindings), result=result, attrs=Attrs.of(**attrs))

    def _kept(self, f: Function, results: Sequence[Value]) -> tuple[list[Binding], list[_Kept]]:
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
                for at, k in enumerate(part, first):
                    item = RVar(k.value.name, k.value.type)
                    bindings.append(Binding(item, TupleItem(whole.var, at)))
                    added.append(replace(k, value=item))
                continue
            bindings.append(b)
            called[b.var] = b.value
            made = b.value
            if isinstance(made, TupleItem):
                made = called.get(made.value, made)
            kernel = _callee(made)
            if kernel and kernel not in self.parts and isinstance(b.var.type, TensorType):
                copy = b.var if b.var in results else self._copy(b.var, f, bindings)
                added.append(_Kept(copy, kernel, names[b.var]))
        return bindings, added

    def _copy(self, v: RVar, f: Function, bindings: list[Binding]) -> RVar:
        """Append the call of a kernel of the function's device that copies a value."""
        t = v.tensor
        op, how = "identity", Attrs.of()
        if t.layout is not None:
            op, how = "relayout", Attrs.of(layout=str(Layout.plain(t.ndim)))
        name = unused(f"keep_{op}", self.taken)
        self.taken.add(name)
        x, y = RVar("p0", t), RVar("y", t.with_layout(None))
        device = {key: f.attrs[key] for key in ("target",) if key in f.attrs}
        attrs = Attrs.of(primitive=True, **device)
        self.copies.append(Function(name, (x,), (Binding(y, Call(op, (x,), how)),), y, attrs))
        made = RVar(f"{v.name}_kept", y.type)
        bindings.append(Binding(made, Call(GlobalRef(name), (v,))))
        return made


def _with_more(b: Binding, more: Sequence[_Kept]) -> Binding:
    """The call of a part that returns more."""
    t = b.var.type
    own = t.fields if isinstance(t, TupleType) else (t,)
    types = (*own, *(k.value.type for k in more))
    return Binding(RVar(f"{b.var.name}_and_kept", TupleType(types)), b.value)


def _callee(value: Bound) -> str:
    callee = value.callee if isinstance(value, Call) else None
    return callee.name if isinstance(callee, GlobalRef) else ""


def _names(f: Function) -> dict[RVar, tuple[str, ...]]:
    """Of each value its name, and those of row-major reshapes of it."""
    root: dict[RVar, RVar] = {}
    names: dict[RVar, tuple[str, ...]] = {}
    for b in f.bindings:
        names[b.var] = (b.var.name,)
        source = next(_operands(b), None)
        if is_view(b) and isinstance(source, RVar):
            root[b.var] = own = root.get(source, source)
            names[own] = (*names.get(own, ()), b.var.name)
    return names


def _operands(b: Binding) -> Iterator[Value]:
    yield from b.value.args if isinstance(b.value, Call) else ()


def _fields(v: Value) -> tuple[Value, ...]:
    return v.fields if isinstance(v, Tuple) else (v,)


__all__ = ["keep_values"]
