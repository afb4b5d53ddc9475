"""Planned graph function -> host function: one kernel call per binding, every address known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.host_function import (
    HostFunction,
    KernelCall,
    Param,
    Ptr,
    ScalarExpr,
    ScalarInfo,
    Size,
    TensorInfo,
    c_name,
)
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Select, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    ShapeValue,
    TensorType,
    Tuple,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.visit import free_vars

ALIGN = 64


@dataclass(slots=True)
class WeightArena:
    """All constants end to end in the order of their first use, 64-byte aligned.

    In that order a kernel that prefetches past its own weights warms the next kernel's.
    """

    arrays: list[np.ndarray] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)
    size: int = 0

    def place(self, array: np.ndarray) -> int:
        """The byte offset of an array; the same array gets the same offset."""
        found = self.offsets.get(id(array))
        if found is None:
            found = self.offsets[id(array)] = self.size
            self.arrays.append(array)
            self.size += -(-array.nbytes // ALIGN) * ALIGN
        return found


_C_OPS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "/",
    "floormod": "%",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&&",
    "or": "||",
}


def c_expression(e: Expr, names: dict[Var, str]) -> str:
    """C text of a size. Sizes are not negative, so C's division is the floor division."""
    match e:
        case IntImm(value):
            return str(value)
        case Var():
            return f"s_{names[e]}"
        case Binary("min" | "max" as op, a, b):
            x, y = c_expression(a, names), c_expression(b, names)
            return f"({x} {'<' if op == 'min' else '>'} {y} ? {x} : {y})"
        case Binary(op, a, b) if op in _C_OPS:
            return f"({c_expression(a, names)} {_C_OPS[op]} {c_expression(b, names)})"
        case Select(c, a, b):
            parts = [c_expression(x, names) for x in (c, a, b)]
            return f"({parts[0]} ? {parts[1]} : {parts[2]})"
        case Cast(a, dtype) if dtype.is_int:
            return c_expression(a, names)
    raise InternalError(f"no C form for the size {e}")


class _Symbols:
    """C names of symbolic dimensions, unique in one function."""

    def __init__(self, types: list[TensorType]):
        self.names: dict[Var, str] = {}
        for t in types:
            for d in t.shape:
                for v in free_vars(d):
                    self._name(v)

    def _name(self, v: Var) -> None:
        if v in self.names:
            return
        base = c_name(v.name)
        name, k = base, 1
        while name in self.names.values():
            k += 1
            name = f"{base}_{k}"
        self.names[v] = name

    def size(self, e: Expr) -> Size:
        n = int_value(e)
        if n is not None:
            return n
        return c_expression(e, self.names)

    def dims(self, t: TensorType) -> tuple[Size, ...]:
        return tuple(self.size(d) for d in t.shape)


def graph_host_function(f: Function, mod: IRModule, arena: WeightArena) -> HostFunction:
    """The call plan of a graph function after `plan_memory`."""
    results = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
    types = [p.tensor for p in f.params] + [r.tensor for r in results]  # type: ignore[union-attr]
    symbols = _Symbols(types)
    homes = {name: (kind, at) for name, kind, at in f.attrs["homes"]}
    views: dict[RVar, Value] = {}

    def pointer(v: Value) -> Ptr:
        while isinstance(v, RVar) and v in views:
            v = views[v]
        if isinstance(v, Constant):
            return Ptr("weights", 0, arena.place(v.array))
        assert isinstance(v, RVar)
        kind, at = homes[v.name]
        if kind == "arg":
            return Ptr("arg", at)
        return Ptr("workspace", 0, symbols.size(at) if isinstance(at, Expr) else at)

    calls = []
    for b in f.bindings:
        call = b.value
        assert isinstance(call, Call)
        if not isinstance(call.callee, GlobalRef):
            views[b.var] = call.args[0]
            continue
        args: list[Ptr | ScalarExpr] = []
        scalars: list[ScalarExpr] = []
        for a in call.args:
            if isinstance(a, ShapeValue):
                scalars += [ScalarExpr(str(symbols.size(e))) for e in a.values]
            else:
                args.append(pointer(a))
        calls.append(KernelCall(call.callee.name, (*args, pointer(b.var), *scalars), call.span))
    inputs = tuple(
        TensorInfo(p.name, p.tensor.dtype.name, symbols.dims(p.tensor)) for p in f.params
    )
    names = f.attrs.get("output_names") or [f"output{i}" for i in range(len(results))]
    outputs = tuple(
        TensorInfo(c_name(str(n)), r.tensor.dtype.name, symbols.dims(r.tensor))
        for n, r in zip(names, results, strict=True)
    )
    workspace = f.attrs["workspace_bytes"]
    size: Size = symbols.size(workspace) if isinstance(workspace, Expr) else workspace
    return HostFunction(
        f.name,
        "graph",
        inputs,
        _unique(inputs, outputs),
        tuple(symbols.names.values()),
        {},
        size,
        tuple(calls),
    )


def _unique(inputs: tuple[Param, ...], outputs: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """Output names that differ from each other and from the inputs'."""
    taken = {p.name for p in inputs}
    out = []
    for t in outputs:
        name, k = t.name, 1
        while name in taken:
            k += 1
            name = f"{t.name}_{k}"
        taken.add(name)
        out.append(TensorInfo(name, t.dtype, t.dims))
    return tuple(out)


def tensor_host_function(f: PrimFunc, symbol: str) -> HostFunction:
    """A public tensor program: every parameter is passed by the caller."""
    names: dict[Var, str] = {v: c_name(v.name) for v in f.scalars}
    for buf in f.buffers:
        for d in buf.shape:
            for v in free_vars(d):
                names.setdefault(v, c_name(v.name))
    first_out = len(f.buffers) - f.outputs
    inputs: list[Param] = []
    args: list[Ptr | ScalarExpr] = []
    buffers = 0
    for i, p in enumerate(f.params):
        if isinstance(p, Buffer):
            dims = tuple(
                n if (n := int_value(d)) is not None else c_expression(d, names) for d in p.shape
            )
            role = "out" if buffers >= first_out else ""
            inputs.append(TensorInfo(c_name(p.name), p.dtype.name, dims, p.align, role))
            args.append(Ptr("arg", i))
            buffers += 1
        else:
            inputs.append(ScalarInfo(names[p], p.dtype.name))
            args.append(ScalarExpr(f"s_{names[p]}"))
    declared = {names[v] for v in f.scalars}
    symbols = tuple(n for n in names.values() if n not in declared)
    return HostFunction(
        f.name, "tensor", tuple(inputs), (), symbols, {}, 0, (KernelCall(symbol, tuple(args)),)
    )
