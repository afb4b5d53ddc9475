"""Make symbolic dimensions that occur only in buffer shapes parameters of their tensor programs.

    f(A: T.Buffer(("n", 6)), C: T.Buffer(("n",)))         y = cls.f(x)
    ->  f(A, C, n: T.int64), func_attr {"sizes": 1}       y = cls.f(x, R.shape(m))

Callers inside the module pass the sizes. A caller from outside still passes tensors only: the
last `sizes` parameters are taken from the shapes of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Body,
    Bound,
    Call,
    Function,
    GlobalRef,
    If,
    Lambda,
    ShapeValue,
    TensorType,
    TupleType,
    Type,
)
from tensorkiln.ir.stmt import CallKernel, PrimFunc
from tensorkiln.ir.visit import free_vars, walk_stmt


def pass_sizes(mod: IRModule) -> IRModule:
    """Add the sizes to every tensor program that lacks them, and to every call of it.

    Raises UserError (code `not-lowered`) if memory is planned already and a host program calls one.
    """
    missing = {f.name: sizes for f in mod.prim_funcs if (sizes := _missing(f))}
    if not missing:
        return mod
    for caller in mod.functions:
        is_host = isinstance(caller, PrimFunc) and caller.is_host
        for s in walk_stmt(caller.body) if isinstance(caller, PrimFunc) and is_host else ():
            if isinstance(s, CallKernel) and s.name in missing:
                raise UserError(
                    f"it calls {s.name} without the sizes in its shapes: run pass_sizes before "
                    "plan_memory",
                    code="not-lowered",
                    where=caller.name,
                    hint="pipeline.relax_passes lists the passes in order",
                )
    mod = mod.map_prim_funcs(lambda f: _with_sizes(f, missing[f.name]) if f.name in missing else f)
    return _SizePassing(mod, missing).module()


def _missing(f: PrimFunc) -> tuple[Var, ...]:
    """The dimensions in a function's buffer shapes that are not its parameters, in order of
    occurrence."""
    dims = dict.fromkeys(v for b in f.buffers for d in b.shape for v in free_vars(d))
    return tuple(v for v in dims if v not in f.scalars)


def _with_sizes(f: PrimFunc, sizes: tuple[Var, ...]) -> PrimFunc:
    count = len(sizes) + int(f.attrs.get("sizes", 0))
    return replace(f, params=(*f.params, *sizes), attrs=Attrs.of(**{**f.attrs, "sizes": count}))


@dataclass(frozen=True, slots=True)
class _SizePassing:
    """Adds sizes to the calls of a module. `missing` maps the names of the callees to the sizes
    that they now take."""

    mod: IRModule
    missing: Mapping[str, tuple[Var, ...]]

    def module(self) -> IRModule:
        """The module with sizes in all calls by graph functions and outer functions, including
        calls in branches and closures."""
        todo = {f.name for f in (*self.mod.unplanned, *self.mod.outers)}
        functions = tuple(
            self._function(f) if isinstance(f, Function) and f.name in todo else f
            for f in self.mod.functions
        )
        return self.mod.with_functions(functions)

    def _function(self, f: Function) -> Function:
        bindings = self._bindings(f.bindings)
        return f if bindings is f.bindings else replace(f, bindings=bindings)

    def _body(self, body: Body) -> Body:
        return Body(self._bindings(body.bindings), body.result)

    def _bindings(self, old: tuple[Binding, ...]) -> tuple[Binding, ...]:
        new = tuple(self._binding(b) for b in old)
        return old if all(a is b for a, b in zip(new, old, strict=True)) else new

    def _binding(self, b: Binding) -> Binding:
        value = self._bound(b.value, b.var.type)
        return b if value is b.value else Binding(b.var, value)

    def _bound(self, value: Bound, result: Type) -> Bound:
        if isinstance(value, If):
            return replace(value, then=self._body(value.then), orelse=self._body(value.orelse))
        if isinstance(value, Lambda):
            inner = self._function(value.function)
            return value if inner is value.function else replace(value, function=inner)
        return self._call(value, result) if isinstance(value, Call) else value

    def _call(self, call: Call, result: Type) -> Call:
        ref, args, results = call.callee, call.args, _tensors(result)
        if call.op == "call_tir_inplace":
            ref, *operands = args  # type: ignore[assignment]
            args = tuple(operands)
            # A result with an index of 0 or more is an operand, whose buffer is in `args`.
            results = tuple(t for i, t in zip(call.attrs["inplace"], results, strict=True) if i < 0)
        sizes = self.missing.get(ref.name) if isinstance(ref, GlobalRef) else None
        if sizes is None or not isinstance(ref, GlobalRef):
            return call
        callee = self.mod[ref.name]
        assert isinstance(callee, PrimFunc)
        types = [a.type for a in args if isinstance(a.type, TensorType)]
        values: dict[Var, Expr] = {}
        for buffer, t in zip(callee.buffers, (*types, *results), strict=False):
            for dim, extent in zip(buffer.shape, t.shape, strict=False):
                if isinstance(dim, Var):
                    values.setdefault(dim, extent)
        shape = ShapeValue(tuple(values[v] for v in sizes))
        return replace(call, args=(*call.args, shape))


def _tensors(t: Type) -> tuple[TensorType, ...]:
    fields = t.fields if isinstance(t, TupleType) else (t,)
    return tuple(x for x in fields if isinstance(x, TensorType))
