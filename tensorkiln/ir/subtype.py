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


def _equal_extents(a: Expr, b: Expr) -> bool:
    return a == b


def logical(t: Type) -> Type:
    """`t` without layouts, which type rules ignore."""
    if isinstance(t, TensorType):
        return t.with_layout(None)
    return TupleType(tuple(map(logical, t.fields))) if isinstance(t, TupleType) else t


def accepts(target: Type, source: Type, equal_extents: Same = _equal_extents) -> bool:
    """Whether every value of type `source` also has the type `target`.

    `equal_extents` decides whether two extents are equal; by default, structurally.
    """
    match target, source:
        case ObjectType(), _:
            return True
        case AnyTensorType(), TensorType() | AnyTensorType():
            if isinstance(source, TensorType) and source.layout is not None:
                return False
            return target.ndim in (None, source.ndim) and target.dtype in (None, source.dtype)
        case TensorType(), TensorType():
            alike = target.dtype == source.dtype and target.memory == source.memory
            return alike and all(map(equal_extents, target.shape, source.shape))
        case TupleType(fields=a), TupleType(fields=b):
            return len(a) == len(b) and all(
                accepts(x, y, equal_extents) for x, y in zip(a, b, strict=True)
            )
        case FuncType(), FuncType():
            return _accepts_function(target, source, equal_extents)
    return target == source


def _accepts_function(target: FuncType, source: FuncType, equal_extents: Same) -> bool:
    """Whether a function of type `source` can stand in for a `target`: it takes the parameters of
    `target`, with its own symbolic extents bound to theirs, and its result fits."""
    by: Extents = {}
    if source.params is not None and target.params is None:
        return isinstance(target.result, ObjectType)
    if source.params is not None and target.params is not None:
        if len(source.params) != len(target.params):
            return False
        pairs = zip(source.params, target.params, strict=True)
        if not all(takes(p, a, by) for p, a in pairs):
            return False
    return accepts(target.result, replaced(source.result, by), equal_extents)


def takes(param: Type, operand: Type, by: Extents) -> bool:
    """Whether a value of type `operand` may be passed for `param`, as far as known when compiling.

    Symbolic extents of `param` are bound in `by`, or must match their binding there. Two extents
    that are not both constants are accepted here and compared when the call runs.
    """
    if isinstance(param, TensorType) and isinstance(operand, TensorType):
        if (
            param.ndim != operand.ndim
            or param.dtype != operand.dtype
            or param.memory != operand.memory
        ):
            return False
        return all(_takes_extent(p, g, by) for p, g in zip(param.shape, operand.shape, strict=True))
    if isinstance(param, TupleType) and isinstance(operand, TupleType):
        if len(param.fields) != len(operand.fields):
            return False
        pairs = zip(param.fields, operand.fields, strict=True)
        return all(takes(p, g, by) for p, g in pairs)
    return accepts(param, operand)


def _takes_extent(param: Expr, extent: Expr, by: Extents) -> bool:
    if isinstance(param, Var) and param not in by:
        by[param] = extent
        return True
    want, have = int_value(substitute(param, by)), int_value(extent)
    return want is None or have is None or want == have


def symbols(t: Type) -> dict[Var, None]:
    """The symbolic dimensions of the tensors in `t`, in order; those of function types excluded."""
    if isinstance(t, TensorType):
        return dict.fromkeys(v for d in t.shape for v in free_vars(d))
    if isinstance(t, TupleType):
        return {v: None for f in t.fields for v in symbols(f)}
    return {}


def erased(t: Type, symbols: Container[Var]) -> Type:
    """`t` with AnyTensorType for every tensor type that uses a symbol outside `symbols`."""
    if isinstance(t, TensorType):
        if all(v in symbols for d in t.shape for v in free_vars(d)):
            return t
        return AnyTensorType(t.ndim, t.dtype)
    return TupleType(tuple(erased(f, symbols) for f in t.fields)) if isinstance(t, TupleType) else t


def called_type(f: FuncType, args: Sequence[Type], symbols: Container[Var] = ()) -> Type:
    """The type of the result of a call of `f`, with the extents that the operands determine.

    `symbols` are those that caller and callee share, which a closure captures. A tensor with
    other symbols in its shape becomes an AnyTensorType.
    """
    by: Extents = {}
    for p, a in zip(f.params or (), args, strict=False):
        takes(p, a, by)
    return replaced(erased(f.result, _SymbolUnion(by, symbols)), by)


class _SymbolUnion:
    """The union of two containers of symbols, made without copying them."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Container[Var], second: Container[Var]):
        self._first, self._second = first, second

    def __contains__(self, v: object) -> bool:
        return v in self._first or v in self._second


def loop_type(body: FuncType, state: Sequence[Type], symbols: Container[Var] = ()) -> Type:
    """The type of the result of `while_loop`: the state as the body's parameters declare it, one
    value or a tuple. If the body returns a state of exactly that type, symbolic extents are those
    of the initial `state`; otherwise extents not in `symbols` are erased."""
    params = tuple(state) if body.params is None else body.params
    whole = params[0] if len(params) == 1 else TupleType(params)
    by: Extents = {}
    if body.result == whole and all(takes(p, a, by) for p, a in zip(params, state, strict=False)):
        return replaced(erased(whole, _SymbolUnion(by, symbols)), by)
    return erased(whole, symbols)


def castable(source: Type, target: Type) -> bool:
    """Whether a value of type `source` can have the type `target` at run time."""
    match source, target:
        case (ObjectType(), _) | (_, ObjectType()) | (FuncType(), FuncType()):
            return True
        case TensorType(), TensorType():
            return takes(target, source, {})
        case TensorType() | AnyTensorType(), TensorType() | AnyTensorType():
            ranks, dtypes = (source.ndim, target.ndim), (source.dtype, target.dtype)
            return all(a is None or b is None or a == b for a, b in (ranks, dtypes))
        case TupleType(fields=a), TupleType(fields=b):
            return len(a) == len(b) and all(map(castable, a, b))
    return source == target


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
