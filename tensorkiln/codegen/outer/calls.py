"""C for the calls in outer functions: of functions of the module, of function values, of functions
by name, of loops, and of operators whose result's size depends on the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.text import quote
from tensorkiln.codegen.host.call_plan import implied_sizes
from tensorkiln.codegen.outer.function import OuterWriter, called_name
from tensorkiln.codegen.outer.types import c_dtype
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, HANDLE, INT64, DType
from tensorkiln.ir.expr import Expr, FloatImm, IntImm
from tensorkiln.ir.known_attrs import DEPENDENCIES
from tensorkiln.ir.module import AnyKernel
from tensorkiln.ir.relax import (
    Call,
    Constant,
    Function,
    GlobalRef,
    PrimValue,
    RVar,
    ShapeValue,
    StringValue,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import TensorProgram


def emit_call(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
    """Emit the steps of one call, whose result goes into slot `out`."""
    callee = call.callee
    if isinstance(callee, str):
        emit = _OPERATORS.get(callee)
        if emit is None:
            raise InternalError(
                f"{w.f.name}: {var.name} = {callee}(...) is not a step of a host function"
            )
        emit(w, var, call, out)
        return
    f = w.library.mod[callee.name] if isinstance(callee, GlobalRef) else None
    if isinstance(f, TensorProgram):
        _prim_func(w, var.type, f, call.args, out)
        return
    w.step(_invoke(w, callee, w.array(call.args), len(call.args), out))
    if f is None or w.unknown(var.type):
        name = w.name(callee) if isinstance(callee, RVar) else callee.name
        w.match(out, var.type, f"the result of {name}")


def _invoke(w: OuterWriter, callee: GlobalRef | RVar, args: str, count: int, out: str) -> str:
    """The C call of a graph or outer function, or of a function that is a value."""
    if isinstance(callee, RVar):
        return f"kiln_call_value({w.pointer(callee)}, {args}, {count}, &{out})"
    f = w.library.mod[callee.name]
    if not isinstance(f, Function) or f.is_primitive or f.external:
        raise UnsupportedError(
            f"{w.f.name}: {callee.name} is not a function that can be called here"
        )
    if len(f.params) != count:
        raise InternalError(f"{w.f.name}: {f.name} takes {len(f.params)} operands, not {count}")
    if f.is_outer:
        return f"body_{c_name(f.name)}(NULL, {args}, &{out})"
    as_tuple = int(isinstance(f.result, Tuple))
    return f"kiln_run_function(&function_{f.name}, {args}, {count}, {as_tuple}, &{out})"


# ---- tensor programs ---------------------------------------------------------------------------


def _prim_func(w: OuterWriter, t: Type, f: AnyKernel, args: Sequence[Value], out: str) -> None:
    """Emit `out = f(args)`: outputs are allocated; operands that are shapes or numbers become the
    scalar parameters."""
    tensors = [a for a in args if not isinstance(a, ShapeValue | PrimValue)]
    types = t.fields if isinstance(t, TupleType) else (t,)
    outputs = _new_outputs(w, types, out, isinstance(t, TupleType))
    reads = f.buffers[: len(tensors)]
    operands = [_operand(w, b, a) for b, a in zip(reads, tensors, strict=True)]
    _run_prim_func(w, f, operands + outputs, _scalars(w, args))
    if isinstance(t, TupleType):
        _tuple_of(w, outputs, out)


def _operand(w: OuterWriter, b: Buffer, a: Value) -> str:
    """C text of the operand for buffer `b`. A tuple of storages that is passed to a buffer of
    handles is first converted to a tensor of their addresses."""
    if b.dtype != HANDLE:
        return w.operand(a)
    slot = w.slot("set")
    w.step(f"kiln_make_set({w.pointer(a)}, &{slot})")
    return slot


def _alloc_storage(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
    """Emit the allocation of a storage, which is a one-dimensional tensor of uint8."""
    if "pool" in call.attrs:
        raise UnsupportedError(
            f"{var.name} is of pool {call.attrs['pool']!r}: host steps allocate ordinary memory",
            where=w.f.name,
            hint="storages of pools are those of planned functions (docs/howto/memory.md)",
        )
    size = call.attrs["size"]
    text = w.size(size) if isinstance(size, Expr) else str(size)
    dtype = f"(kiln_dtype){c_dtype(DType('uint8'))}"
    w.step(f"kiln_make_tensor((const int64_t[]){{{text}}}, 1, {dtype}, &{out})")


def _scalars(w: OuterWriter, args: Sequence[Value]) -> list[str]:
    out = []
    for a in args:
        if isinstance(a, PrimValue):
            out.append(w.operand(a))
        elif isinstance(a, ShapeValue):
            out += [f"kiln_int({w.size(e)})" for e in a.values]
    return out


def _run_prim_func(w: OuterWriter, f: AnyKernel, buffers: list[str], scalars: list[str]) -> None:
    if f.is_host:
        raise UserError(
            f"{w.f.name} calls {f.name}, which has the attribute `host`: no code is made for it",
            code="host-function",
            hint=f"mark {w.f.name} `planned`, or leave out `host`",
        )
    w.library.prim_funcs[f.name] = f
    implied = implied_sizes(f)
    texts = dict(zip(f.scalars, scalars, strict=True)) | dict(zip(f.buffers, buffers, strict=True))
    row = [texts[p] for p in f.params if p not in implied]
    args = f"(const kiln_value[]){{{', '.join(row)}}}" if row else "NULL"
    function = f"function_{called_name(f)}"
    nothing = w.slot("nothing")
    w.step(f"kiln_run_function(&{function}, {args}, {len(row)}, 0, &{nothing})")


def _new_outputs(w: OuterWriter, types: Sequence[Type], out: str, several: bool) -> list[str]:
    slots = []
    for t in types:
        if not isinstance(t, TensorType):
            raise UnsupportedError(f"{w.f.name}: {w.where}: a result is not a tensor of known size")
        slots.append(w.slot("out") if several else out)
        w.new_tensor(t, slots[-1])
    return slots


def _tuple_of(w: OuterWriter, slots: Sequence[str], out: str) -> None:
    array = f"(const kiln_value[]){{{', '.join(slots)}}}" if slots else "NULL"
    w.step(f"kiln_make_tuple({array}, {len(slots)}, &{out})")


def _call_tir_inplace(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
    """Result k is argument `inplace[k]`, which the function overwrites, or a new tensor if
    `inplace[k]` is -1."""
    target, *args = call.args
    f = w.library.mod[target.name] if isinstance(target, GlobalRef) else None
    if not isinstance(f, TensorProgram):
        raise InternalError(
            f"{w.f.name}: {w.where}: the callee of call_tir_inplace is not a PrimFunc"
        )
    several = isinstance(var.type, TupleType)
    types = var.type.fields if isinstance(var.type, TupleType) else (var.type,)
    inplace = tuple(call.attrs["inplace"])
    tensors = [a for a in args if not isinstance(a, ShapeValue | PrimValue)]
    operands = [w.owned(a) for a in tensors]
    fresh = _new_outputs(w, [t for t, i in zip(types, inplace, strict=True) if i < 0], out, several)
    _run_prim_func(w, f, operands + fresh, _scalars(w, args))
    news = iter(fresh)
    results = [next(news) if i < 0 else operands[i] for i in inplace]
    if several:
        _tuple_of(w, results, out)
    elif inplace[0] >= 0:
        w.step(f"kiln_take(&{results[0]}, &{out})")


# ---- functions by name -------------------------------------------------------------------------


def _name_and_args(w: OuterWriter, call: Call) -> tuple[str, list[Value]]:
    """The name of the function to call, and its arguments: the operands, then the attributes other
    than `name` and external dependencies, which are no argument."""
    name = call.attrs.get("name")
    if not isinstance(name, str) or not name:
        raise UserError(f"{w.f.name}: {call.op} needs the name of a function", code="no-name")
    passed = [(k, v) for k, v in call.attrs.items_ if k not in ("name", DEPENDENCIES)]
    return name, [*call.args, *(_literal(v) for k, v in passed)]


def _literal(value: object) -> Value:
    if isinstance(value, Expr):
        return PrimValue(value)
    if isinstance(value, tuple):
        return Tuple(tuple(map(_literal, value)))
    if isinstance(value, bool | int):
        return PrimValue(IntImm(int(value), BOOL if isinstance(value, bool) else INT64))
    if isinstance(value, float):
        return PrimValue(FloatImm(value))
    if isinstance(value, str):
        return StringValue(value)
    raise UnsupportedError(f"call_packed with an attribute that is {type(value).__name__}")


def _call_packed(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
    name, args = _name_and_args(w, call)
    texts = [w.owned(a) if isinstance(a, Constant) else w.operand(a) for a in args]
    array = f"(const kiln_value[]){{{', '.join(texts)}}}" if texts else "NULL"
    w.step(f"kiln_call_packed({quote(name)}, {array}, {len(args)}, &{out})")
    w.match(out, var.type, f"the result of '{name}'")


def _call_dps_packed(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
    name, args = _name_and_args(w, call)
    several = isinstance(var.type, TupleType)
    types = var.type.fields if isinstance(var.type, TupleType) else (var.type,)
    outputs = _new_outputs(w, types, out, several)
    texts = [*(w.owned(a) if isinstance(a, Constant) else w.operand(a) for a in args), *outputs]
    array = f"(const kiln_value[]){{{', '.join(texts)}}}"
    w.step(f"kiln_call_packed({quote(name)}, {array}, {len(texts)}, &{w.slot('nothing')})")
    if several:
        _tuple_of(w, outputs, out)


# ---- loops -------------------------------------------------------------------------------------


def _while_loop(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
    """Emit `state = body(*state)`, repeated while `cond(*state)`. A state of one value is passed
    on without a tuple, unless `_is_one_tuple`."""
    cond, body, *state = call.args
    for f in (cond, body):
        if not isinstance(f, GlobalRef | RVar):
            raise InternalError(
                f"{w.f.name}: {w.where}: an operand of while_loop is not a function"
            )
    assert isinstance(cond, GlobalRef | RVar) and isinstance(body, GlobalRef | RVar)
    count, name = len(state), w.name(var)
    state_slots = w.slot(f"{name}_state", max(1, count))
    for i, s in enumerate(state):
        w.step(f"kiln_take({w.pointer(s)}, &{state_slots}[{i}])")
    test, following = w.slot(f"{name}_test"), w.slot(f"{name}_next")
    plain = count == 1 and not _is_one_tuple(var.type, state[0].type)
    with w.block("for (;;)"):
        w.line("int again;")
        w.step(_invoke(w, cond, state_slots, count, test))
        w.step(f"kiln_truth(&{test}, &again)")
        w.line(f"kiln_release(&{test});")
        w.line("if (!again)")
        w.line("    break;")
        w.step(_invoke(w, body, state_slots, count, following))
        if plain:
            w.line(f"kiln_release(&{state_slots}[0]);")
            w.line(f"{state_slots}[0] = {following};")
            w.line(f"{following}.kind = KILN_NONE;")
        else:
            w.step(f"kiln_spread(&{following}, {count}, {state_slots})")
            w.line(f"kiln_release(&{following});")
    if plain:
        w.step(f"kiln_take(&{state_slots}[0], &{out})")
    else:
        w.step(f"kiln_make_tuple({state_slots}, {count}, &{out})")
    w.match(out, var.type, "the state after the loop")


def _is_one_tuple(result: Type, state: Type) -> bool:
    """Whether a state of one value comes back as a tuple of one, by the type of the result."""
    return isinstance(result, TupleType) and not (
        isinstance(state, TupleType) and len(state.fields) == len(result.fields)
    )


# ---- results whose size the data decides -------------------------------------------------------


def _dynamic(function: str, slots: int, *attrs: str) -> Callable[..., None]:
    """The emitter of an operator that `function` of crt computes. It passes pointers to `slots`
    operands (`kiln_nothing` for those left out), then the attributes as integers: `"sorted=1"` has
    default 1, and `axis` is followed by a flag that is 1 if the call has no axis."""

    def emit(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
        texts = [w.pointer(a) for a in call.args]
        texts += ["&kiln_nothing"] * (slots - len(texts))
        for attr in attrs:
            name, _, default = attr.partition("=")
            value = call.attrs.get(name, int(default) if default else None)
            texts.append(str(int(value or 0)))
            if name == "axis":
                texts.append(str(int(value is None)))
        w.step(f"{function}({', '.join([*texts, f'&{out}'])})")
        w.match(out, var.type, f"the result of {call.op}")

    return emit


def _slice_dynamic(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
    """Emit a slice whose bounds are operands."""
    x, starts, ends, axes, steps = (*(w.pointer(a) for a in call.args), *["&kiln_nothing"] * 2)[:5]
    operands = ", ".join([x, starts, ends, axes, steps])
    w.step(f"kiln_slice_dynamic({operands}, {quote(str(call.attrs['node']))}, &{out})")
    w.match(out, var.type, "the result of slice_dynamic")


def _sized(w: OuterWriter, var: RVar, call: Call, out: str) -> None:
    """Emit the check of sizes, with the text of its failure."""
    x, subject_value = (*(w.pointer(a) for a in call.args), "&kiln_nothing")[:2]
    subject, expected = (quote(str(call.attrs[name])) for name in ("what", "expected"))
    w.step(f"kiln_sized({x}, {subject_value}, {subject}, {expected}, &{out})")
    w.match(out, var.type, "the result of sized")


_OPERATORS: dict[str, Callable[[OuterWriter, RVar, Call, str], None]] = {
    "alloc_storage": _alloc_storage,
    "call_packed": _call_packed,
    "call_dps_packed": _call_dps_packed,
    "call_tir_inplace": _call_tir_inplace,
    "while_loop": _while_loop,
    "nonzero": _dynamic("kiln_nonzero", 1),
    "compress": _dynamic("kiln_compress", 2, "axis"),
    "slice_dynamic": _slice_dynamic,
    "sized": _sized,
    "append": _dynamic("kiln_append", 2),
    "unique": _dynamic("kiln_unique", 1, "axis", "sorted=1"),
    "non_max_suppression": _dynamic("kiln_non_max_suppression", 5, "center_point_box=0"),
}
HOST_STEPS = frozenset(_OPERATORS)

__all__ = ["HOST_STEPS", "emit_call"]
