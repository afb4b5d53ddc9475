"""Verifier of calls in graphs against their callees: kernels, graph functions, closures, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, HANDLE, DType
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.hints import plural
from tensorkiln.ir.malformed import Malformed, fitting, listed, operands, step
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    STORAGE_ALIGN,
    STORAGE_ALIGNS,
    AnyTensorType,
    Call,
    Function,
    FuncType,
    GlobalRef,
    ObjectType,
    PrimType,
    PrimValue,
    ShapeType,
    ShapeValue,
    TensorType,
    TupleType,
    Type,
    Value,
    replaced,
)
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.ir.subtype import Extents, accepts, called_type, is_condition, takes
from tensorkiln.ir.type_text import show

TypeOf = Callable[[Value], Type]


def check_kernel(f: TensorProgram, c: Call, result: Type) -> None:
    """Check the call `c` of a tensor program, whose variable has the type `result`.

    Tensor operands correspond to the buffers that are only read, results to those that are written;
    operands of shape or number type give the scalar parameters.
    """
    tensors = [a.type for a in c.args if not isinstance(a.type, ShapeType | PrimType)]
    reads = f.buffers[: len(f.buffers) - f.outputs]
    if len(tensors) != len(reads):
        message = f"{f.name} reads {len(reads)} buffers, the call gives {len(tensors)}"
        hint = f"one tensor for each of: {_names(reads)}"
        if len(tensors) > len(reads):
            hint += (
                f"; {_names(f.buffers[len(reads) :])} may be written, T.prim_func(outputs=) tells"
            )
        raise Malformed(message, hint)
    for i, (b, t) in enumerate(zip(reads, tensors, strict=True)):
        with step(f".args[{i}]"):
            _fits(b.dtype, b.shape, t)
    _check_numbers(f, c)
    results: tuple[Type, ...] = result.fields if isinstance(result, TupleType) else (result,)
    if len(results) != f.outputs:
        message = f"{f.name} writes {f.outputs} buffers, the call has {len(results)} results"
        raise Malformed(message, f"one result for each of: {_names(f.buffers[len(reads) :])}")
    for b, out in zip(f.buffers[len(reads) :], results, strict=True):
        _fits(b.dtype, b.shape, out)


def _check_numbers(f: TensorProgram, c: Call) -> None:
    """Check that shapes and numbers among the operands give one value per scalar parameter."""
    count = sum(len(a.values) for a in c.args if isinstance(a, ShapeValue))
    count += sum(isinstance(a, PrimValue) for a in c.args)
    if count != len(f.scalars):
        message = f"{f.name} takes {plural(len(f.scalars), 'number')}, the call gives {count}"
        hint = "tensors only: sizes come from their shapes"
        if f.scalars:
            names = listed(v.name for v in f.scalars)
            hint = f"after the tensors, R.shape(...) or R.prim_value(...) passes: {names}"
        raise Malformed(message, hint)


def _fits(dtype: DType, shape: tuple[Expr, ...], t: Type) -> None:
    """Check that a value of type `t` can be passed to a buffer: a tensor whose physical form has
    the buffer's dtype and number of elements, or a tuple to a buffer of handles."""
    if dtype == HANDLE and isinstance(t, TupleType | ObjectType):
        return
    if not isinstance(t, TensorType) or t.dtype != dtype:
        target = TupleType(()) if dtype == HANDLE else TensorType(shape, dtype)
        hint = "a set of handles is a tuple" if dtype == HANDLE else fitting(target, t)
        raise Malformed(f"{show(t)} for a buffer of {dtype}", hint)
    have, need = _count(t.physical_shape), _count(shape)
    if have is not None and need is not None and have != need:
        hint = f"a tensor of as many elements as {show(TensorType(shape, dtype))}"
        raise Malformed(f"{show(t)} holds {have} elements, the buffer {need}", hint)


def _names(buffers: Sequence[Buffer]) -> str:
    return listed(b.name for b in buffers) or "nothing"


def _count(shape: tuple[Expr, ...]) -> int | None:
    total = 1
    for d in shape:
        extent = int_value(d)
        if extent is None:
            return None
        total *= extent
    return total


def check_graph(f: Function, c: Call, result: Type, type_of: TypeOf) -> None:
    """Check a call of a graph function, a fused group or an external function."""
    # External functions are called like kernels: dimensions are a further operand.
    args = [a for a in c.args if not (f.external and isinstance(a, ShapeValue))]
    params = tuple(p.type for p in f.params)
    check_operands(f.name, params, args, type_of)
    if f.is_primitive:
        # The caller allocates the results, so their types must match, not only be wider.
        if not takes(f.result.type, result, {}):
            message = f"{show(f.result.type)} expected, {show(result)} given"
            raise Malformed(message, f"{f.name} gives {show(f.result.type)}: so is the variable")
        return
    check_result(called_type(FuncType(params, f.result.type), list(map(type_of, args))), result)


def check_operands(
    name: str, params: tuple[Type, ...] | None, args: Sequence[Value], type_of: TypeOf
) -> None:
    """Check the number and types of operands; with `params` None any are accepted."""
    if params is None:
        return
    if len(args) != len(params):
        message = f"{name} takes {len(params)} operands, the call gives {len(args)}"
        raise Malformed(message, operands(params))
    by: Extents = {}
    for i, (p, a) in enumerate(zip(params, args, strict=True)):
        with step(f".args[{i}]"):
            operand_type = type_of(a)
            if not takes(p, operand_type, by):
                hint = fitting(replaced(p, by), operand_type)
                raise Malformed(f"{show(p)} expected, {show(operand_type)} given", hint)


def check_result(derived: Type, declared: Type) -> None:
    """Check that the variable of a call has its result type or a wider one. Extents that are not
    both constants may differ as expressions."""
    if not accepts(declared, derived) and not takes(declared, derived, {}):
        message = f"{show(derived)} expected, {show(declared)} given"
        raise Malformed(message, f"the call gives {show(derived)}: so is the variable")


def check_impure(c: Call, result: Type, mod: IRModule, type_of: TypeOf) -> None:
    """Check a call of an operator in IMPURE_OPS."""
    if c.op in ("call_packed", "call_dps_packed") and not isinstance(c.attrs.get("name"), str):
        hint = f'attrs=Attrs.of(name="...") names the function that {c.op} looks up'
        raise Malformed(f"{c.op} without a name", hint)
    if c.op == "call_dps_packed":
        outs = result.fields if isinstance(result, TupleType) else (result,)
        if not all(isinstance(t, TensorType) for t in outs):
            hint = "declare the tensors to write; call_packed gives what the function returns"
            raise Malformed(f"call_dps_packed writes tensors, not {show(result)}", hint)
    elif c.op == "call_tir_inplace":
        _check_inplace(c, result, mod)
    elif c.op == "alloc_storage":
        _check_storage(c)
    elif c.op == "while_loop":
        _check_loop(c, result, type_of)


def _check_storage(c: Call) -> None:
    size, pool = c.attrs.get("size"), c.attrs.get("pool")
    if c.args or not isinstance(size, int | Expr) or isinstance(size, bool):
        message = "alloc_storage takes no operands, and the attribute size"
        raise Malformed(message, "size is its bytes: a number, or an expression of dimensions")
    if pool is not None and not (isinstance(pool, str) and pool):
        raise Malformed(
            f"alloc_storage: pool={pool!r}", "the name of a pool of the target's memory"
        )
    align = c.attrs.get("align", STORAGE_ALIGN)
    if align not in STORAGE_ALIGNS or isinstance(align, bool):
        listed_aligns = ", ".join(map(str, STORAGE_ALIGNS))
        raise Malformed(f"alloc_storage: align={align!r}", f"bytes, one of {listed_aligns}")


def _check_inplace(c: Call, result: Type, mod: IRModule) -> None:
    f = mod.get(c.args[0].name) if c.args and isinstance(c.args[0], GlobalRef) else None
    if not isinstance(f, TensorProgram):
        programs = listed(name for name, g in mod.items() if isinstance(g, TensorProgram))
        message = "call_tir_inplace calls a tensor program of this module"
        raise Malformed(message, f"a GlobalRef comes first; programs are {programs or 'none yet'}")
    # Shapes and numbers give the scalar parameters, as in a call of a kernel.
    args = tuple(a for a in c.args[1:] if not isinstance(a.type, ShapeType | PrimType))
    _check_numbers(f, c)
    inplace = c.attrs.get("inplace")
    if not isinstance(inplace, tuple) or not all(
        isinstance(i, int) and -1 <= i < len(args) for i in inplace
    ):
        message = f"inplace={inplace!r}: expected indices of {len(args)} operands, or -1"
        hint = f"a tuple with one of -1 to {len(args) - 1} for each result; -1 makes a new tensor"
        raise Malformed(message, hint)
    if len(args) + inplace.count(-1) != len(f.buffers):
        message = f"{f.name} has {len(f.buffers)} buffers"
        hint = f"operands and new results are, in order: {_names(f.buffers)}"
        raise Malformed(f"{message}, the call {len(args)} and {inplace.count(-1)} new ones", hint)
    outs = result.fields if isinstance(result, TupleType) else (result,)
    if len(outs) != len(inplace):
        hint = f"one entry of inplace for each of {plural(len(outs), 'result')}"
        raise Malformed(f"{len(inplace)} results in place, the variable has {len(outs)}", hint)
    for i, (b, a) in enumerate(zip(f.buffers, args, strict=False)):
        with step(f".args[{i + 1}]"):
            _fits(b.dtype, b.shape, a.type)
    fresh = iter(f.buffers[len(args) :])
    for i, out in zip(inplace, outs, strict=True):
        if i < 0:
            b = next(fresh)
            _fits(b.dtype, b.shape, out)
        elif out != args[i].type:
            hint = f"make the result {show(args[i].type)}, or its entry of inplace -1"
            raise Malformed(f"result {show(out)} is operand {i}, {show(args[i].type)}", hint)


def _check_loop(c: Call, result: Type, type_of: TypeOf) -> None:
    functions = [type_of(a) for a in c.args[:2]]
    state = c.args[2:]
    if len(functions) != 2 or not all(isinstance(f, FuncType) for f in functions):
        types = listed(map(show, map(type_of, c.args))) or "nothing"
        hint = (
            f"a function that gives a bool, one that gives the next state, then that: not {types}"
        )
        raise Malformed("while_loop takes two functions and the state", hint)
    cond, body = functions
    assert isinstance(cond, FuncType) and isinstance(body, FuncType)
    if not is_condition(cond.result):
        message = f"the condition of a loop is one bool, not {show(cond.result)}"
        raise Malformed(message, one_bool(cond.result))
    check_operands("the condition", cond.params, state, type_of)
    check_operands("the body", body.params, state, type_of)
    next_state = (body.result,)
    if len(state) != 1 and isinstance(body.result, TupleType):
        next_state = body.result.fields  # type: ignore[assignment]
    params = body.params if body.params is not None else next_state
    by: Extents = {}
    fits = len(params) == len(next_state) == len(state)
    if not fits or not all(takes(p, g, by) for p, g in zip(params, next_state, strict=True)):
        message = f"the body takes {show(TupleType(params))}, it gives {show(body.result)}"
        state_type = params[0] if len(params) == 1 else TupleType(params)
        raise Malformed(message, f"return the next state from it, {show(state_type)}")
    whole = params[0] if len(params) == 1 else TupleType(params)
    if not takes(whole, result, {}) and not accepts(result, whole):
        message = f"the loop gives {show(whole)}, its variable is {show(result)}"
        raise Malformed(message, f"make the variable {show(whole)}")


def one_bool(t: Type) -> str:
    """A hint: how to make a condition of a graph from a value of type `t`."""
    if isinstance(t, ObjectType | AnyTensorType):
        return fitting(TensorType((), BOOL), t)
    steps = []
    if isinstance(t, TensorType):
        steps += ["compare it"] * (t.dtype != BOOL)
        steps += ["reduce it to one element"] * any(int_value(d) != 1 for d in t.shape)
    return f"{' and '.join(steps) or 'compare it'}: a bool[] decides, or a number of bool"
