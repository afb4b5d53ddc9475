"""Make the symbolic dimensions that only shapes tell parameters of their tensor programs.

    f(A: T.Buffer(("n", 6)), C: T.Buffer(("n",)))         y = cls.f(x)
    ->  f(A, C, n: T.int64), func_attr {"sizes": 1}       y = cls.f(x, R.shape(m))

A kernel gets its sizes from whoever calls it. Callers from outside still pass tensors only: the
last `sizes` parameters are read off their shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Function,
    GlobalRef,
    ShapeValue,
    TensorType,
    TupleType,
    Type,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.visit import free_vars


def pass_sizes(mod: IRModule) -> IRModule:
    """Give every tensor program, and every call of one by a graph, the sizes it needs."""
    missing = {f.name: found for f in mod.prim_funcs if (found := _missing(f))}
    if not missing:
        return mod
    mod = mod.map_prim_funcs(lambda f: _with_sizes(f, missing[f.name]) if f.name in missing else f)
    return mod.map_graphs(lambda f: _passing(f, mod, missing))


def _missing(f: PrimFunc) -> tuple[Var, ...]:
    """Dimensions of a function's buffers that are not its parameters, in order of appearance."""
    dims = dict.fromkeys(v for b in f.buffers for d in b.shape for v in free_vars(d))
    return tuple(v for v in dims if v not in f.scalars)


def _with_sizes(f: PrimFunc, sizes: tuple[Var, ...]) -> PrimFunc:
    count = len(sizes) + int(f.attrs.get("sizes", 0))
    return replace(f, params=(*f.params, *sizes), attrs=Attrs.of(**{**f.attrs, "sizes": count}))


def _passing(f: Function, mod: IRModule, missing: Mapping[str, tuple[Var, ...]]) -> Function:
    bindings = tuple(_binding(b, mod, missing) for b in f.bindings)
    same = all(a is b for a, b in zip(bindings, f.bindings, strict=True))
    return f if same else replace(f, bindings=bindings)


def _binding(b: Binding, mod: IRModule, missing: Mapping[str, tuple[Var, ...]]) -> Binding:
    call = b.value
    if not isinstance(call, Call) or not isinstance(call.callee, GlobalRef):
        return b
    sizes = missing.get(call.callee.name)
    if sizes is None:
        return b
    callee = mod[call.callee.name]
    assert isinstance(callee, PrimFunc)
    types = [a.type for a in call.args if isinstance(a.type, TensorType)]
    values: dict[Var, Expr] = {}
    for buffer, t in zip(callee.buffers, (*types, *_tensors(b.var.type)), strict=False):
        for dim, extent in zip(buffer.shape, t.shape, strict=False):
            if isinstance(dim, Var):
                values.setdefault(dim, extent)
    shape = ShapeValue(tuple(values[v] for v in sizes))
    return Binding(b.var, replace(call, args=(*call.args, shape)))


def _tensors(t: Type) -> tuple[TensorType, ...]:
    fields = t.fields if isinstance(t, TupleType) else (t,)
    return tuple(x for x in fields if isinstance(x, TensorType))
