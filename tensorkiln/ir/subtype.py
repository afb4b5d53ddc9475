"""Subtyping of graph types: which values fit which types, and the result type of a call.

A type is *wider* than another when it contains every value of the other: `AnyTensorType` is wider
than `TensorType`, `ObjectType` wider than all. Widening is implicit; narrowing takes a `MatchCast`,
which checks at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.module import AnyFunction
from tensorkiln.ir.relax import (
    AnyTensorType,
    FuncType,
    ObjectType,
    PrimType,
    TensorType,
    TupleType,
    Type,
    replaced,
)
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.ir.visit import free_vars, substitute

Extents = dict[Var, Expr]
Same = Callable[[Expr, Expr], bool]


def _same(a: Expr, b: Expr) -> bool:
    return a == b


def logical(t: Type) -> Type:
    """`t` without layouts, which type rules ignore."""
    if isinstance(t, TensorType):
        return t.with_layout(None)
    return TupleType(tuple(map(logical, t.fields))) if isinstance(t, TupleType) else t


def accepts(wanted: Type, given: Type, same: Same = _same) -> bool:
    """Whether every value of type `given` also has the type `wanted`.

    `same` decides whether two extents are equal; by default, structurally.
    """
    match wanted, given:
        case ObjectType(), _:
            return True
        case AnyTensorType(), TensorType() | AnyTensorType():
            if isinstance(given, TensorType) and given.layout is not None:
                return False
            return wanted.ndim in (None, given.ndim) and wanted.dtype in (None, given.dtype)
        case TensorType(), TensorType():
            alike = wanted.dtype == given.dtype and wanted.memory == given.memory
            return alike and all(map(same, wanted.shape, given.shape))
        case TupleType(fields=a), TupleType(fields=b):
            return len(a) == len(b) and all(accepts(x, y, same) for x, y in zip(a, b, strict=True))
        case FuncType(), FuncType():
            return _accepts_function(wanted, given, same)
    return wanted == given


def _accepts_function(wanted: FuncType, given: FuncType, same: Same) -> bool:
    """Whether a function of type `given` can stand in for a `wanted`: it takes the parameters of
    `wanted`, with its own symbolic extents bound to theirs, and its result fits."""
    by: Extents = {}
    if given.params is not None and wanted.params is None:
        return isinstance(wanted.result, ObjectType)
    if given.params is not None and wanted.params is not None:
        if len(given.params) != len(wanted.params):
            return False
        pairs = zip(given.params, wanted.params, strict=True)
        if not all(takes(p, a, by) for p, a in pairs):
            return False
    return accepts(wanted.result, replaced(given.result, by), same)


def takes(param: Type, given: Type, by: Extents) -> bool:
    """Whether an operand of type `given` may be passed for `param`, as far as known when compiling.

    Symbolic extents of `param` are bound in `by`, or must match their binding there. Two extents
    that are not both constants are accepted here and compared when the call runs.
    """
    if isinstance(param, TensorType) and isinstance(given, TensorType):
        if param.ndim != given.ndim or param.dtype != given.dtype or param.memory != given.memory:
            return False
        return all(_takes_extent(p, g, by) for p, g in zip(param.shape, given.shape, strict=True))
    if isinstance(param, TupleType) and isinstance(given, TupleType):
        if len(param.fields) != len(given.fields):
            return False
        pairs = zip(param.fields, given.fields, strict=True)
        return all(takes(p, g, by) for p, g in pairs)
    return accepts(param, given)


def _takes_extent(param: Expr, given: Expr, by: Extents) -> bool:
    if isinstance(param, Var) and param not in by:
        by[param] = given
        return True
    want, have = int_value(substitute(param, by)), int_value(given)
    return want is None or have is None or want == have


def symbols(t: Type) -> dict[Var, None]:
    """The symbolic dimensions of the tensors in `t`, in order; those of function types excluded."""
    if isinstance(t, TensorType):
        return dict.fromkeys(v for d in t.shape for v in free_vars(d))
    if isinstance(t, TupleType):
        return {v: None for f in t.fields for v in symbols(f)}
    return {}


def erased(t: Type, known: Container[Var]) -> Type:
    """`t` with AnyTensorType for every tensor type that uses a symbol outside `known`."""
    if isinstance(t, TensorType):
        if all(v in known for d in t.shape for v in free_vars(d)):
            return t
        return AnyTensorType(t.ndim, t.dtype)
    return TupleType(tuple(erased(f, known) for f in t.fields)) if isinstance(t, TupleType) else t


def called_type(f: FuncType, args: Sequence[Type], known: Container[Var] = ()) -> Type:
    """The type of the result of a call of `f`, with the extents that the operands determine.

    `known` are the symbols that caller and callee share, which a closure captures. A tensor with
    other symbols in its shape becomes an AnyTensorType.
    """
    by: Extents = {}
    for p, a in zip(f.params or (), args, strict=False):
        takes(p, a, by)
    return replaced(erased(f.result, _Known(by, known)), by)


class _Known:
    """The union of two containers of symbols, made without copying them."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Container[Var], second: Container[Var]):
        self._first, self._second = first, second

    def __contains__(self, v: object) -> bool:
        return v in self._first or v in self._second


def loop_type(body: FuncType, state: Sequence[Type], known: Container[Var] = ()) -> Type:
    """The type of the result of `while_loop`: the state as the body's parameters declare it, one
    value or a tuple. If the body returns a state of exactly that type, symbolic extents are those
    of the initial `state`; otherwise extents not in `known` are erased."""
    params = tuple(state) if body.params is None else body.params
    whole = params[0] if len(params) == 1 else TupleType(params)
    by: Extents = {}
    if body.result == whole and all(takes(p, a, by) for p, a in zip(params, state, strict=False)):
        return replaced(erased(whole, _Known(by, known)), by)
    return erased(whole, known)


def castable(given: Type, wanted: Type) -> bool:
    """Whether a value of type `given` can have the type `wanted` at run time."""
    match given, wanted:
        case (ObjectType(), _) | (_, ObjectType()) | (FuncType(), FuncType()):
            return True
        case TensorType(), TensorType():
            return takes(wanted, given, {})
        case TensorType() | AnyTensorType(), TensorType() | AnyTensorType():
            ranks, dtypes = (given.ndim, wanted.ndim), (given.dtype, wanted.dtype)
            return all(a is None or b is None or a == b for a, b in (ranks, dtypes))
        case TupleType(fields=a), TupleType(fields=b):
            return len(a) == len(b) and all(map(castable, a, b))
    return given == wanted


def is_condition(t: Type) -> bool:
    """Whether a value of type `t` can be a condition: a bool tensor of one element, or a bool."""
    if isinstance(t, TensorType):
        return t.dtype == BOOL and all(int_value(d) == 1 for d in t.shape)
    return t == PrimType(BOOL)


def function_type(f: AnyFunction) -> FuncType:
    """The type of `f` as a value. Tensor programs take any arguments and return any object."""
    if isinstance(f, TensorProgram):
        return FuncType(None, ObjectType())
    return FuncType(tuple(p.type for p in f.params), f.result.type)


__all__ = [
    "Extents",
    "accepts",
    "called_type",
    "castable",
    "erased",
    "function_type",
    "is_condition",
    "loop_type",
    "symbols",
    "takes",
]
