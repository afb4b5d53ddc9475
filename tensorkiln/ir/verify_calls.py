"""What a call must agree on with what it calls: kernels, graph functions, closures, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.ir.dtype import HANDLE, DType
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Call,
    Function,
    FuncType,
    GlobalRef,
    ObjectType,
    PrimType,
    ShapeType,
    ShapeValue,
    TensorType,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.subtype import Extents, accepts, called_type, is_condition, takes
from tensorkiln.ir.type_text import show
from tensorkiln.ir.verify_expr import Malformed, step

TypeOf = Callable[[Value], Type]


def check_kernel(f: PrimFunc, c: Call, result: Type) -> None:
    """Operands are the buffers that are read; results those that are written. Shapes that the
    scalar parameters need may come as further operands of shape type."""
    tensors = [a.type for a in c.args if not isinstance(a.type, ShapeType | PrimType)]
    reads = f.buffers[: len(f.buffers) - f.outputs]
    if len(tensors) != len(reads):
        raise Malformed(f"{f.name} reads {len(reads)} buffers, the call gives {len(tensors)}")
    for i, (b, t) in enumerate(zip(reads, tensors, strict=True)):
        with step(f".args[{i}]"):
            _fits(b.dtype, b.shape, t)
    results: tuple[Type, ...] = result.fields if isinstance(result, TupleType) else (result,)
    if len(results) != f.outputs:
        raise Malformed(f"{f.name} writes {f.outputs} buffers, the call has {len(results)} results")
    for b, out in zip(f.buffers[len(reads) :], results, strict=True):
        _fits(b.dtype, b.shape, out)


def _fits(dtype: DType, shape: tuple[Expr, ...], t: Type) -> None:
    """A tensor in its memory form has the buffer's dtype and count of elements; a set of handles
    is a tuple."""
    if dtype == HANDLE and isinstance(t, TupleType | ObjectType):
        return
    if not isinstance(t, TensorType) or t.dtype != dtype:
        raise Malformed(f"{show(t)} for a buffer of {dtype}")
    have, need = _count(t.physical_shape), _count(shape)
    if have is not None and need is not None and have != need:
        raise Malformed(f"{show(t)} holds {have} elements, the buffer {need}")


def _count(shape: tuple[Expr, ...]) -> int | None:
    total = 1
    for d in shape:
        extent = int_value(d)
        if extent is None:
            return None
        total *= extent
    return total


def check_graph(f: Function, c: Call, result: Type, type_of: TypeOf) -> None:
    """A call of a graph function, a fused group or an external's function."""
    # The function of an external is called as kernels are: dimensions come as a further operand.
    args = [a for a in c.args if not (f.external and isinstance(a, ShapeValue))]
    params = tuple(p.type for p in f.params)
    check_operands(f.name, params, args, type_of)
    if f.is_primitive:
        # Its results are written into what the caller has room for.
        if not takes(f.result.type, result, {}):
            raise Malformed(f"{show(f.result.type)} expected, {show(result)} given")
        return
    check_result(called_type(FuncType(params, f.result.type), list(map(type_of, args))), result)


def check_operands(
    name: str, params: tuple[Type, ...] | None, args: Sequence[Value], type_of: TypeOf
) -> None:
    """Operands against parameters; `params` None takes any."""
    if params is None:
        return
    if len(args) != len(params):
        raise Malformed(f"{name} takes {len(params)} operands, the call gives {len(args)}")
    by: Extents = {}
    for i, (p, a) in enumerate(zip(params, args, strict=True)):
        with step(f".args[{i}]"):
            given = type_of(a)
            if not takes(p, given, by):
                raise Malformed(f"{show(p)} expected, {show(given)} given")


def check_result(derived: Type, declared: Type) -> None:
    """What a call gives is what its variable holds; extents that are no constants may be spelled
    otherwise."""
    if not accepts(declared, derived) and not takes(declared, derived, {}):
        raise Malformed(f"{show(derived)} expected, {show(declared)} given")


def check_impure(c: Call, result: Type, mod: IRModule, type_of: TypeOf) -> None:
    """The operators of IMPURE_OPS, each by its own rule."""
    if c.op in ("call_packed", "call_dps_packed") and not isinstance(c.attrs.get("name"), str):
        raise Malformed(f"{c.op} without a name")
    if c.op == "call_dps_packed":
        outs = result.fields if isinstance(result, TupleType) else (result,)
        if not all(isinstance(t, TensorType) for t in outs):
            raise Malformed(f"call_dps_packed writes tensors, not {show(result)}")
    elif c.op == "call_tir_inplace":
        _check_inplace(c, result, mod)
    elif c.op == "alloc_storage":
        size = c.attrs.get("size")
        if c.args or not isinstance(size, int | Expr) or isinstance(size, bool):
            raise Malformed("alloc_storage takes no operands, and the attribute size")
    elif c.op == "while_loop":
        _check_loop(c, result, type_of)


def _check_inplace(c: Call, result: Type, mod: IRModule) -> None:
    f = mod.get(c.args[0].name) if c.args and isinstance(c.args[0], GlobalRef) else None
    if not isinstance(f, PrimFunc):
        raise Malformed("call_tir_inplace calls a tensor program of this module")
    # Shapes and numbers are for the scalar parameters, as in a call of a kernel.
    args = tuple(a for a in c.args[1:] if not isinstance(a.type, ShapeType | PrimType))
    at = c.attrs.get("inplace")
    if not isinstance(at, tuple) or not all(isinstance(i, int) and -1 <= i < len(args) for i in at):
        raise Malformed(f"inplace={at!r}: expected indices of {len(args)} operands, or -1")
    if len(args) + at.count(-1) != len(f.buffers):
        message = f"{f.name} has {len(f.buffers)} buffers"
        raise Malformed(f"{message}, the call {len(args)} and {at.count(-1)} new ones")
    outs = result.fields if isinstance(result, TupleType) else (result,)
    if len(outs) != len(at):
        raise Malformed(f"{len(at)} results in place, the variable has {len(outs)}")
    for i, (b, a) in enumerate(zip(f.buffers, args, strict=False)):
        with step(f".args[{i + 1}]"):
            _fits(b.dtype, b.shape, a.type)
    fresh = iter(f.buffers[len(args) :])
    for i, out in zip(at, outs, strict=True):
        if i < 0:
            b = next(fresh)
            _fits(b.dtype, b.shape, out)
        elif out != args[i].type:
            raise Malformed(f"result {show(out)} is operand {i}, {show(args[i].type)}")


def _check_loop(c: Call, result: Type, type_of: TypeOf) -> None:
    functions = [type_of(a) for a in c.args[:2]]
    state = c.args[2:]
    if len(functions) != 2 or not all(isinstance(f, FuncType) for f in functions):
        raise Malformed("while_loop takes two functions and the state")
    cond, body = functions
    assert isinstance(cond, FuncType) and isinstance(body, FuncType)
    if not is_condition(cond.result):
        raise Malformed(f"the condition of a loop is one bool, not {show(cond.result)}")
    check_operands("the condition", cond.params, state, type_of)
    check_operands("the body", body.params, state, type_of)
    given = (body.result,)
    if len(state) != 1 and isinstance(body.result, TupleType):
        given = body.result.fields  # type: ignore[assignment]
    params = body.params if body.params is not None else given
    by: Extents = {}
    fits = len(params) == len(given) == len(state)
    if not fits or not all(takes(p, g, by) for p, g in zip(params, given, strict=True)):
        raise Malformed(f"the body takes {show(TupleType(params))}, it gives {show(body.result)}")
    whole = params[0] if len(params) == 1 else TupleType(params)
    if not takes(whole, result, {}) and not accepts(result, whole):
        raise Malformed(f"the loop gives {show(whole)}, its variable is {show(result)}")
