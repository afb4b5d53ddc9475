"""Planned graph function -> host function: one kernel call per binding, every address known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import prove
from tensorkiln.codegen.host_function import (
    Condition,
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
from tensorkiln.codegen.size_text import c_expression, expression_text
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, IntImm, Var, binary, int_value
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


class _Symbols:
    """C names of symbolic dimensions, unique in one function, and those of the model."""

    def __init__(self, types: list[TensorType], dim_names: Mapping[str, str]):
        self.names: dict[Var, str] = {}
        self.dim_names = dim_names
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

    def model_name(self, v: Var) -> str:
        return self.dim_names.get(v.name, v.name)

    def condition(self, e: Expr) -> Condition:
        """What callers must keep; its variables are symbols of the function."""
        shown = {v: self.model_name(v) for v in free_vars(e)}
        text = c_expression(e, self.names)
        inner = text[1:-1] if text.startswith("(") else text
        return Condition(inner, expression_text(e, shown))

    def dims(self, t: TensorType) -> tuple[Size, ...]:
        return tuple(self.size(d) for d in t.shape)


def graph_host_function(f: Function, mod: IRModule, arena: WeightArena) -> HostFunction:
    """The call plan of a graph function after `plan_memory`."""
    results = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
    types = [p.tensor for p in f.params] + [_tensor(r) for r in results]
    symbols = _Symbols(types, dict(f.attrs.get("dim_names", ())))
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
    # The model's own names: they need not be identifiers.
    input_names = f.attrs.get("input_names") or [p.name for p in f.params]
    inputs = tuple(
        TensorInfo(str(n), p.tensor.dtype.name, symbols.dims(p.tensor))
        for n, p in zip(input_names, f.params, strict=True)
    )
    names = f.attrs.get("output_names") or [f"output{i}" for i in range(len(results))]
    outputs = tuple(
        TensorInfo(str(n), _tensor(r).dtype.name, symbols.dims(_tensor(r)))
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
        {name: symbols.model_name(v) for v, name in symbols.names.items()},
        tuple(symbols.condition(e) for e in (*f.attrs.get("assumes", ()), *_not_negative(f))),
    )


def _tensor(v: Value) -> TensorType:
    """The type of a result."""
    assert isinstance(v, RVar | Constant), v
    return v.tensor


def _not_negative(f: Function) -> list[Expr]:
    """`size >= 0` for each size in the function that is not so for all dimensions: a window may
    be larger than its input, and memory was planned for sizes."""
    sizes = {
        d: None
        for b in f.bindings
        if isinstance(b.var.type, TensorType)
        for d in b.var.type.shape
        if not isinstance(d, IntImm | Var)
    }
    bounds = Bounds.dims([v for d in sizes for v in free_vars(d)], least=1)
    return [c for c in (binary("ge", d, 0) for d in sizes) if not prove(c, bounds)]


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
            role: Literal["", "out"] = "out" if buffers >= first_out else ""
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
