"""The tensors that kernel calls compute. A kernel with several results returns a tuple."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.base.text import unused
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
)
from tensorkiln.transform.rewriting.graph import forward_aliases


def made_values(f: Function) -> dict[RVar, tuple[RVar, ...]]:
    """For the variable of each kernel call, the variables of its result tensors, in order.

    Of a tuple these are its items; `with_all_items` must have bound each of them.
    """
    items = {b.value: b.var for b in f.bindings if isinstance(b.value, TupleItem)}
    results: dict[RVar, tuple[RVar, ...]] = {}
    for b in f.bindings:
        if _is_kernel(b.value):
            t = b.var.type
            fields = len(t.fields) if isinstance(t, TupleType) else None
            results[b.var] = (
                (b.var,)
                if fields is None
                else tuple(items[TupleItem(b.var, k)] for k in range(fields))
            )
    return results


def with_all_items(f: Function) -> Function:
    """`f` with each item of a kernel's result tuple bound exactly once, just after the call.

    Items of tuples built in `f` are replaced by the fields. Returns `f` itself if no binding is a
    tuple.
    """
    if not any(isinstance(b.var.type, TupleType) for b in f.bindings):
        return f
    names = {v.name for v in (*f.params, *(b.var for b in f.bindings))}
    tuples: dict[Value, Tuple] = {}
    bindings: list[Binding] = []
    for b in f.bindings:
        value = b.value
        if isinstance(value, RVar) and value in tuples:
            tuples[b.var] = tuples[value]
        elif isinstance(value, Tuple):
            tuples[b.var] = value
        elif isinstance(value, TupleItem) and _fields(value, tuples) is not None:
            source_tuple = _fields(value, tuples)
            assert source_tuple is not None
            bindings.append(Binding(b.var, source_tuple.fields[value.index]))
        else:
            bindings.append(b)
        if _is_kernel(value) and isinstance(b.var.type, TupleType):
            items = []
            for k, t in enumerate(b.var.type.fields):
                items.append(RVar(unused(f"{b.var.name}_{k}", names), t))
                names.add(items[-1].name)
            bindings += [Binding(v, TupleItem(b.var, k)) for k, v in enumerate(items)]
            tuples[b.var] = Tuple(tuple(items))
    return forward_aliases(replace(f, bindings=tuple(bindings)))


def _fields(item: TupleItem, tuples: dict[Value, Tuple]) -> Tuple | None:
    return item.value if isinstance(item.value, Tuple) else tuples.get(item.value)


def _is_kernel(value: Bound) -> bool:
    return isinstance(value, Call) and isinstance(value.callee, GlobalRef)
