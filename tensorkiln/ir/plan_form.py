"""The text of a plan (`ir/plan.py`): functions of a module, printed and read.

    main_init(sizes):  storage0 = alloc_storage(size=..., pool=..., align=...); ...
                       return (storage0, ...)
    main(x...):        storages = call_packed("alloc_cached_storage_set", main_init, shape, key=...)
                       w = <constant> ...
                       out = main_run(x..., storages, (w, ...), shape); return out
    main_run(x..., storages, constants, out..., dims...):  only calls of kernels, whose arguments
                       are x, storages[i], storages[i] + bytes, constants[k], and numbers

A storage without `pool` is ordinary memory, aligned to STORAGE_ALIGN bytes. A pool is memory of the
target (`target/memory.py`); `align` is what the addresses of its storage are multiples of.
A function without constants has no `constants` parameter, one without intermediate memory no
`main_init` and no `storages`. `main` has the attribute `planned`, `main_init` `storages`, and
`main_run` `host`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import HANDLE
from tensorkiln.ir.expr import Binary, Expr, IntImm, Var, as_expr, int_value
from tensorkiln.ir.malformed import Malformed, listed, step
from tensorkiln.ir.plan import Address, Plan, PlannedCall, PlannedStorage
from tensorkiln.ir.relax import (
    STORAGE_ALIGN,
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    ObjectType,
    RVar,
    ShapeType,
    ShapeValue,
    TensorType,
    Tuple,
    TupleType,
    Value,
)
from tensorkiln.ir.stmt import CallKernel, Param, PrimFunc, Seq, Stmt, seq
from tensorkiln.ir.type_text import show
from tensorkiln.ir.visit import free_vars, substitute

# A runtime function that makes the storages once per executor, key and shape, and keeps them.
CACHED_STORAGE_SET = "alloc_cached_storage_set"
# The functions of a module, by name.
_Functions = Mapping[str, object]
# Of each buffer of a run function: what it is, and the number of a tensor.
_Memory = dict[Buffer, tuple[Literal["storage", "constant", "tensor"], int]]

# ---- from a plan to functions --------------------------------------------------------------------


def printed_plan(
    f: Function,
    storages: tuple[PlannedStorage, ...],
    constants: tuple[Constant, ...],
    calls: tuple[PlannedCall, ...],
    init_name: str,
    run_name: str,
) -> Plan:
    """The plan of a graph function whose calls are these, with the functions of these names that
    are its text. Of `f` the attributes stay, with `planned`."""
    tensors = (*f.params, *(r for r in f.results if isinstance(r, RVar)))
    symbols = list(dict.fromkeys(v for t in tensors for d in t.tensor.shape for v in free_vars(d)))
    init, bindings, args = None, list[Binding](), list[Value](f.params)
    if storages:
        init = _init(init_name, storages, symbols)
        items = RVar("storages", TupleType((ObjectType(),) * len(storages)))
        sizes = (ShapeValue(tuple(symbols)),) if init.params else ()
        key = Attrs.of(name=CACHED_STORAGE_SET, key=f.name)
        call = Call("call_packed", (GlobalRef(init_name), *sizes), key)
        bindings.append(Binding(items, call))
        args.append(items)
    if constants:
        named = [(RVar(c.name or "const", c.type), c) for c in constants]
        bindings += [Binding(var, c) for var, c in named]
        args.append(Tuple(tuple(var for var, _ in named)))
    if symbols:
        args.append(ShapeValue(tuple(symbols)))
    out = RVar(f.result.name if isinstance(f.result, RVar) else "results", f.result.type)
    bindings.append(Binding(out, Call(GlobalRef(run_name), tuple(args))))
    attrs = Attrs.of(**dict(f.attrs), planned=True)
    graph = Function(f.name, f.params, tuple(bindings), out, attrs)
    run = _run(run_name, tensors, len(f.params), (len(storages), len(constants)), symbols, calls)
    return Plan(storages, constants, calls, graph, run, init)


def _init(name: str, storages: tuple[PlannedStorage, ...], symbols: list[Var]) -> Function:
    """The function that makes the storages; it takes the dimensions if a size depends on them."""
    sizes, renamed = _copies(symbols)
    bindings = []
    for i, s in enumerate(storages):
        size = int_value(s.size)
        options: dict[str, AttrValue] = {"pool": s.pool, "align": s.align} if s.pool else {}
        attrs = Attrs.of(size=substitute(s.size, renamed) if size is None else size, **options)
        bindings.append(
            Binding(RVar(f"storage{i}", ObjectType()), Call("alloc_storage", (), attrs))
        )
    is_symbolic = any(int_value(s.size) is None for s in storages)
    params = (RVar("sizes", ShapeType(len(sizes), tuple(sizes))),) if is_symbolic else ()
    result = Tuple(tuple(b.var for b in bindings))
    return Function(name, params, tuple(bindings), result, Attrs.of(storages=True))


def _run(
    name: str,
    values: tuple[RVar, ...],
    inputs: int,
    counts: tuple[int, int],
    symbols: list[Var],
    calls: tuple[PlannedCall, ...],
) -> PrimFunc:
    """The function that calls the kernels; `values` are `inputs` parameters and the results,
    `counts` those of storages and of constants."""
    sizes, renamed = _copies(symbols)
    tensors = [_buffer(v, renamed) for v in values]
    storages, constants = (
        Buffer(text, HANDLE, (as_expr(count),), align=8)
        for text, count in zip(("storages", "constants"), counts, strict=True)
    )

    def argument(a: Address | Expr) -> Expr:
        if isinstance(a, Expr):
            return substitute(a, renamed)
        if a.base == "tensor":
            b = tensors[a.index]
            return AddressOf(b, tuple(as_expr(0) for _ in b.shape))
        items = storages if a.base == "storage" else constants
        return Load(items, (as_expr(a.index),)) + substitute(a.offset, renamed)

    statements = [CallKernel(c.name, tuple(map(argument, c.args)), c.span) for c in calls]
    sets = [b for b, count in zip((storages, constants), counts, strict=True) if count]
    params: tuple[Param, ...] = (*tensors[:inputs], *sets, *tensors[inputs:], *sizes)
    return PrimFunc(
        name,
        params,
        seq(*statements),
        outputs=len(values) - inputs,
        op_class="graph",
        attrs=Attrs.of(host=True),
    )


def _copies(symbols: list[Var]) -> tuple[list[Var], Mapping[Var, Expr]]:
    """New variables for the same dimensions in another function, and the map to them."""
    copies = [Var(v.name, v.dtype) for v in symbols]
    return copies, dict(zip(symbols, copies, strict=True))


def _buffer(v: RVar, renamed: Mapping[Var, Expr]) -> Buffer:
    """The buffer parameter for a parameter or result of the graph function. Its alignment is that
    of one element: callers guarantee no more."""
    t = v.tensor
    shape = tuple(substitute(d, renamed) for d in t.physical_shape)
    return Buffer(v.name, t.dtype, shape, align=t.dtype.bytes)


# ---- from functions to a plan --------------------------------------------------------------------


def read_plan(f: Function, functions: _Functions) -> Plan:
    """The plan whose text a planned function and those that it calls are. Raise Malformed if they
    do not have the form above."""
    planned_storages: tuple[PlannedStorage, ...] = ()
    init: Function | None = None
    storages: RVar | None = None
    constants: dict[Value, Constant] = {}
    for i, b in enumerate(f.bindings[:-1]):
        with step(f".bindings[{i}]({b.var.name})"):
            value = b.value
            if isinstance(value, Constant):
                constants[b.var] = value
            elif storages is None and isinstance(value, Call) and value.op == "call_packed":
                storages = b.var
                init, planned_storages = _made_by(value, functions)
            else:
                message = "a planned function holds constants, one set of storages, one call"
                raise Malformed(message, _other_binding(value, storages))
    if not f.bindings:
        hint = f"programs with the attribute `host`: {_hosts(functions)}"
        raise Malformed("a planned function calls the one that runs it", hint)
    last = f.bindings[-1]
    with step(f".bindings[{len(f.bindings) - 1}]({last.var.name})"):
        call, run = _run_call(f, last, functions)
        items, memory = _memory(f, call, run, storages, len(planned_storages), constants)
        dims = dict(zip(run.scalars, _shape(call.args), strict=True))
        statements = _kernel_calls(run)
    calls = []
    for i, s in enumerate(statements):
        with step(f".calls[{i}]({s.name})"):
            calls.append(PlannedCall(s.name, _arguments(s, memory, dims), s.span))
    return Plan(planned_storages, items, tuple(calls), f, run, init)


def _hosts(functions: _Functions) -> str:
    hosts = (f.name for f in functions.values() if isinstance(f, PrimFunc) and f.is_host)
    return listed(hosts) or "none"


def _other_binding(value: Bound, storages: RVar | None) -> str:
    if isinstance(value, Call) and value.op == "call_packed" and storages is not None:
        return f"{storages.name} is the set: all storages come from one call"
    return f"{type(value).__name__} belongs in the run function, the last binding calls it"


def _made_by(call: Call, functions: _Functions) -> tuple[Function, tuple[PlannedStorage, ...]]:
    """The function that makes the storages, and these, with sizes as expressions of the caller's
    dimensions."""
    if call.attrs.get("name") != CACHED_STORAGE_SET or not call.args:
        message = f"expected call_packed of {CACHED_STORAGE_SET!r} with a function"
        raise Malformed(message, f"{_makers(functions)} and its dimensions are the operands")
    ref, *dims = call.args
    init = functions.get(ref.name) if isinstance(ref, GlobalRef) else None
    if not isinstance(init, Function) or not init.makes_storages:
        message = "expected a function with the attribute `storages`"
        raise Malformed(message, f"the first operand is {_makers(functions)}")
    return init, made_storages(init, _shape(dims))


def _makers(functions: _Functions) -> str:
    fits = (f.name for f in functions.values() if isinstance(f, Function) and f.makes_storages)
    return listed(fits) or "a function that makes storages (the module has none)"


def _shape(args: list[Value] | tuple[Value, ...]) -> tuple[Expr, ...]:
    return tuple(e for a in args if isinstance(a, ShapeValue) for e in a.values)


def made_storages(
    init: Function, values: tuple[Expr, ...] | None = None
) -> tuple[PlannedStorage, ...]:
    """The storages that `init` makes, with `values` for its dimensions, unless None.

    Raise Malformed if `init` does anything but allocate storages and return all of them.
    """
    storages: dict[Value, PlannedStorage] = {b.var: _storage(b, init) for b in init.bindings}
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


def _storage(b: Binding, init: Function) -> PlannedStorage:
    call = b.value
    if not isinstance(call, Call) or call.op != "alloc_storage" or "size" not in call.attrs:
        hint = f"{init.name} only makes storages: alloc_storage with the bytes as size"
        raise Malformed(f"{init.name}: {b.var.name} is not alloc_storage(size=...)", hint)
    attrs = call.attrs
    return PlannedStorage(
        as_expr(attrs["size"]), attrs.get("pool", ""), attrs.get("align", STORAGE_ALIGN)
    )


def _parameter_dims(p: RVar) -> tuple[Var, ...]:
    t = p.type
    values = t.values if isinstance(t, ShapeType) else None
    names = tuple(v for v in values or () if isinstance(v, Var))
    if values is None or len(names) != len(values):
        hint = f'its type is {show(t)}; R.Shape(("n",)) has one dimension, named n'
        raise Malformed(f"{p.name}: expected R.Shape of names", hint)
    return names


def _run_call(f: Function, b: Binding, functions: _Functions) -> tuple[Call, PrimFunc]:
    """The call of the run function, and this function."""
    call = b.value
    ref = call.callee if isinstance(call, Call) else None
    run = functions.get(ref.name) if isinstance(ref, GlobalRef) else None
    if not isinstance(call, Call) or not isinstance(run, PrimFunc) or not run.is_host:
        message = "expected a call of a tensor program with the attribute `host`"
        raise Malformed(message, f"there are {_hosts(functions)}")
    if f.result is not b.var:
        message = "a planned function returns what its run function gives"
        raise Malformed(message, f"return {b.var.name}")
    return call, run


def _memory(
    f: Function,
    call: Call,
    run: PrimFunc,
    storages: RVar | None,
    count: int,
    bound_constants: Mapping[Value, Constant],
) -> tuple[tuple[Constant, ...], _Memory]:
    """The constants, and what each buffer of the run function is. `bound_constants` has them by the
    variables that are bound to them, `count` is the number of the storages."""
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
    return constants, memory


def _constants(value: Tuple, bound_constants: Mapping[Value, Constant]) -> tuple[Constant, ...]:
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
            return Address(base, index, offset, start.buffer.name)
        if isinstance(start, Load) and base != "tensor" and indices[0] is not None:
            return Address(base, indices[0], offset, f"{start.buffer.name}[{indices[0]}]")
    message = "expected the start of a buffer, or an item of a set and an offset"
    raise Malformed(message, "AddressOf(buffer, (0, ...)), or Load(set, (number,)) plus bytes")
