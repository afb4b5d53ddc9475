"""The form that `partial_graph_aot` gives to a planned graph function, read into plain data.

    main_init(sizes):  s0 = alloc_storage(size=..., pool=..., align=...); ...; return (s0, ...)
    main(x...):        storages = call_packed("alloc_cached_storage_set", main_init, shape, key=...)
                       w0 = <constant> ...
                       out = main_run(x..., storages, (w0, ...), shape); return out
    main_run(x..., storages, constants, out..., dims...):  only calls of kernels, whose arguments
                       are x, storages[i], storages[i] + bytes, constants[k], and numbers

A storage without `pool` is ordinary memory, aligned to STORAGE_ALIGN bytes. A pool is memory of the
target (`target/memory.py`); `align` is what the addresses of its storage are multiples of.
A function without constants has no `constants` parameter, one without intermediate memory no
`main_init` and no `storages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import HANDLE
from tensorkiln.ir.expr import Binary, Expr, IntImm, Var, int_value
from tensorkiln.ir.malformed import Malformed, listed, step
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    STORAGE_ALIGN,
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    ShapeType,
    ShapeValue,
    TensorType,
    Tuple,
    TupleType,
    Value,
)
from tensorkiln.ir.stmt import CallKernel, PrimFunc, Seq, Stmt
from tensorkiln.ir.type_text import show
from tensorkiln.ir.visit import substitute

# A runtime function that makes the storages once per executor, key and shape, and keeps them.
CACHED_STORAGE_SET = "alloc_cached_storage_set"


@dataclass(frozen=True, slots=True)
class Address:
    """An argument of a kernel: byte `offset` of a storage, a constant or a tensor, by number.

    Tensors are numbered from the graph's parameters on to its results. `buffer` is what the run
    function has for it: the tensor, or the set that holds the storage or constant.
    """

    base: Literal["storage", "constant", "tensor"]
    index: int
    offset: Expr
    buffer: Buffer

    def __str__(self) -> str:
        """The name of the memory in the run function: `x`, `storages[0]`."""
        name = self.buffer.name
        return name if self.base == "tensor" else f"{name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of kernel `name`, with addresses and numbers; `span` is the model's node."""

    name: str
    args: tuple[Address | Expr, ...]
    span: str


@dataclass(frozen=True, slots=True)
class PlannedStorage:
    """Memory for intermediate results: its bytes, the target's pool that has it (empty: any memory)
    and the alignment of its address."""

    size: Expr
    pool: str = ""
    align: int = STORAGE_ALIGN


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """What a planned graph function runs. All expressions are over the graph's symbolic
    dimensions."""

    storages: tuple[PlannedStorage, ...]
    constants: tuple[Constant, ...]
    calls: tuple[PlannedCall, ...]


# Of each buffer of a run function: what it is, and the number of a tensor.
_Memory = dict[Buffer, tuple[Literal["storage", "constant", "tensor"], int]]


def result_types(f: Function) -> tuple[TensorType, ...]:
    """The types of the tensors that a planned function returns."""
    t = f.result.type
    fields = t.fields if isinstance(t, TupleType) else (t,)
    return tuple(x for x in fields if isinstance(x, TensorType))


def planned_graph(f: Function, mod: IRModule) -> PlannedGraph:
    """What a planned function runs. Raise Malformed if it does not have the form above."""
    planned_storages: tuple[PlannedStorage, ...] = ()
    storages: RVar | None = None
    bound_constants: dict[Value, Constant] = {}
    for i, b in enumerate(f.bindings[:-1]):
        with step(f".bindings[{i}]({b.var.name})"):
            value = b.value
            if isinstance(value, Constant):
                bound_constants[b.var] = value
            elif storages is None and isinstance(value, Call) and value.op == "call_packed":
                storages, planned_storages = b.var, _made_by(value, mod)
            else:
                message = "a planned function holds constants, one set of storages, one call"
                raise Malformed(message, _other_binding(value, storages))
    if not f.bindings:
        hosts = listed(g.name for g in mod.values() if isinstance(g, PrimFunc) and g.is_host)
        hint = f"programs with the attribute `host`: {hosts or 'none'}"
        raise Malformed("a planned function calls the one that runs it", hint)
    last = f.bindings[-1]
    with step(f".bindings[{len(f.bindings) - 1}]({last.var.name})"):
        run, constants, memory, numbers = _run_call(
            f, last, mod, storages, len(planned_storages), bound_constants
        )
        dims = dict(zip(run.scalars, numbers, strict=True))
        statements = _kernel_calls(run)
    calls = []
    for i, s in enumerate(statements):
        with step(f".calls[{i}]({s.name})"):
            calls.append(PlannedCall(s.name, _arguments(s, memory, dims), s.span))
    return PlannedGraph(planned_storages, constants, tuple(calls))


def _other_binding(value: Bound, storages: RVar | None) -> str:
    if isinstance(value, Call) and value.op == "call_packed" and storages is not None:
        return f"{storages.name} is the set: all storages come from one call"
    return f"{type(value).__name__} belongs in the run function, the last binding calls it"


def _made_by(call: Call, mod: IRModule) -> tuple[PlannedStorage, ...]:
    """The storages, with sizes as expressions of the caller's dimensions."""
    if call.attrs.get("name") != CACHED_STORAGE_SET or not call.args:
        message = f"expected call_packed of {CACHED_STORAGE_SET!r} with a function"
        raise Malformed(message, f"{_makers(mod)} and its dimensions are the operands")
    ref, *dims = call.args
    init = mod.get(ref.name) if isinstance(ref, GlobalRef) else None
    if not isinstance(init, Function) or not init.makes_storages:
        message = "expected a function with the attribute `storages`"
        raise Malformed(message, f"the first operand is {_makers(mod)}")
    return made_storages(init, _shape(dims))


def _makers(mod: IRModule) -> str:
    fits = (f.name for f in mod.values() if isinstance(f, Function) and f.makes_storages)
    return listed(fits) or "a function that makes storages (the module has none)"


def _shape(args: list[Value] | tuple[Value, ...]) -> tuple[Expr, ...]:
    return tuple(e for a in args if isinstance(a, ShapeValue) for e in a.values)


def made_storages(
    init: Function, values: tuple[Expr, ...] | None = None
) -> tuple[PlannedStorage, ...]:
    """The storages that `init` makes, with `values` for its dimensions, unless None.

    Raise Malformed if `init` does anything but allocate storages and return all of them.
    """
    storages: dict[Value, PlannedStorage] = {}
    for b in init.bindings:
        call = b.value
        if not isinstance(call, Call) or call.op != "alloc_storage" or "size" not in call.attrs:
            hint = f"{init.name} only makes storages: alloc_storage with the bytes as size"
            raise Malformed(f"{init.name}: {b.var.name} is not alloc_storage(size=...)", hint)
        size = call.attrs["size"]
        storages[b.var] = PlannedStorage(
            size if isinstance(size, Expr) else IntImm(int(size)),
            call.attrs.get("pool", ""),
            call.attrs.get("align", STORAGE_ALIGN),
        )
    names = [v for p in init.params for v in _parameter_dims(p)]
    if values is None:
        values = tuple(names)
    if len(names) != len(values):
        message = f"{init.name} takes {len(names)} dimensions, {len(values)} are given"
        raise Malformed(message, f"a shape of: {listed(v.name for v in names) or 'nothing'}")
    fields = init.result.fields if isinstance(init.result, Tuple) else ()
    if list(fields) != list(storages):
        storage_names = ", ".join(b.var.name for b in init.bindings)
        message = f"{init.name} does not return exactly its storages"
        raise Malformed(message, f"return the tuple of {storage_names or 'nothing'}")
    by = dict(zip(names, values, strict=True))
    return tuple(replace(s, size=substitute(s.size, by)) for s in storages.values())


def _parameter_dims(p: RVar) -> tuple[Var, ...]:
    t = p.type
    values = t.values if isinstance(t, ShapeType) else None
    names = tuple(v for v in values or () if isinstance(v, Var))
    if values is None or len(names) != len(values):
        hint = f'its type is {show(t)}; R.Shape(("n",)) has one dimension, named n'
        raise Malformed(f"{p.name}: expected R.Shape of names", hint)
    return names


def _run_call(
    f: Function,
    b: Binding,
    mod: IRModule,
    storages: RVar | None,
    count: int,
    bound_constants: dict[Value, Constant],
) -> tuple[PrimFunc, tuple[Constant, ...], _Memory, tuple[Expr, ...]]:
    """The run function, the constants, what each of its buffers is, and the sizes it is given."""
    call = b.value
    ref = call.callee if isinstance(call, Call) else None
    run = mod.get(ref.name) if isinstance(ref, GlobalRef) else None
    if not isinstance(call, Call) or not isinstance(run, PrimFunc) or not run.is_host:
        hosts = listed(g.name for g in mod.values() if isinstance(g, PrimFunc) and g.is_host)
        message = "expected a call of a tensor program with the attribute `host`"
        raise Malformed(message, f"there are {hosts or 'none'}")
    if f.result is not b.var:
        message = "a planned function returns what its run function gives"
        raise Malformed(message, f"return {b.var.name}")
    operands = [a for a in call.args if not isinstance(a, ShapeValue)]
    memory: _Memory = {}
    constants: tuple[Constant, ...] = ()
    reads = run.buffers[: len(run.buffers) - run.outputs]
    if len(reads) != len(operands):
        message = f"{run.name} reads {len(reads)} buffers, the call gives {len(operands)}"
        raise Malformed(message, f"one operand for each of: {listed(r.name for r in reads)}")
    for buf, a in zip(reads, operands, strict=True):
        if isinstance(a, Tuple):
            constants = _constants(a, bound_constants)
            memory[buf] = "constant", 0
        elif a is storages:
            memory[buf] = "storage", 0
        elif isinstance(a, RVar) and a in f.params:
            memory[buf] = "tensor", f.params.index(a)
        else:
            inputs = listed(p.name for p in f.params)
            sets = f"; {storages.name} is the set of storages" if storages is not None else ""
            message = f"{buf.name} is neither a parameter nor a set"
            raise Malformed(message, f"parameters are {inputs or 'none'}{sets}")
        _check_set(buf, a, count if a is storages else len(constants))
    outs = run.buffers[len(reads) :]
    memory |= {buf: ("tensor", len(f.params) + j) for j, buf in enumerate(outs)}
    return run, constants, memory, _shape(call.args)


def _constants(value: Tuple, bound_constants: dict[Value, Constant]) -> tuple[Constant, ...]:
    items = [a if isinstance(a, Constant) else bound_constants.get(a) for a in value.fields]
    constants = tuple(c for c in items if c is not None)
    if len(constants) != len(items):
        hint = f"constants bound here: {listed(c.name for c in bound_constants.values()) or 'none'}"
        raise Malformed("a set of constants holds constants only", hint)
    return constants


def _check_set(buf: Buffer, value: Value, count: int) -> None:
    """Check that a tuple is passed to a buffer of handles, and only to one, of `count` items."""
    is_set = not isinstance(value.type, TensorType)
    if is_set != (buf.dtype == HANDLE):
        hint = (
            f"make {buf.name} a buffer of handles" if is_set else f"pass it a tuple, {buf.name}[i]"
        )
        raise Malformed(f"{buf.name} is {buf.dtype}: a set is a buffer of handles", hint)
    if is_set and [int_value(d) for d in buf.shape] != [count]:
        hint = f"{buf.name} has the shape ({count},)"
        raise Malformed(f"{buf!r}, but there are {count} items in the set", hint)


def _kernel_calls(run: PrimFunc) -> tuple[CallKernel, ...]:
    """The CallKernel statements of `run`. Raise Malformed if it holds any other statement."""
    stmts: tuple[Stmt, ...] = run.body.stmts if isinstance(run.body, Seq) else (run.body,)
    calls = tuple(s for s in stmts if isinstance(s, CallKernel))
    if len(calls) != len(stmts):
        stmt = next(s for s in stmts if not isinstance(s, CallKernel))
        message = f"{run.name}: {type(stmt).__name__} in a function that only calls"
        raise Malformed(message, "CallKernel of a program that does it")
    return calls


def _arguments(
    s: CallKernel, memory: _Memory, dims: Mapping[Var, Expr]
) -> tuple[Address | Expr, ...]:
    """The arguments of a call, over the graph's dimensions `dims`."""
    out: list[Address | Expr] = []
    for i, a in enumerate(s.args):
        if a.dtype == HANDLE:
            with step(f".args[{i}]"):
                out.append(_address(a, memory, dims))
        else:
            out.append(substitute(a, dims) if dims else a)
    return tuple(out)


def _address(e: Expr, memory: _Memory, dims: Mapping[Var, Expr]) -> Address:
    """The start of a tensor, or an item of a set, and a byte offset. Raise Malformed for any other
    expression."""
    start, offset = (e.a, e.b) if isinstance(e, Binary) and e.op == "add" else (e, IntImm(0))
    offset = substitute(offset, dims) if dims else offset
    if isinstance(start, AddressOf | Load):
        base, index = memory[start.buffer]
        indices = [int_value(i) for i in start.indices]
        if isinstance(start, AddressOf) and base == "tensor" and not any(i != 0 for i in indices):
            return Address(base, index, offset, start.buffer)
        if isinstance(start, Load) and base != "tensor" and indices[0] is not None:
            return Address(base, indices[0], offset, start.buffer)
    message = "expected the start of a buffer, or an item of a set and an offset"
    raise Malformed(message, "AddressOf(buffer, (0, ...)), or Load(set, (number,)) plus bytes")
