"""Derives every type again from the operators."""

from __future__ import annotations

from tensorkiln import ops
from tensorkiln.arith import simplify
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)  # fmt: skip
from tensorkiln.ops.rules import show_type
from tensorkiln.transform.relax.graph import same_type, substitute, substitute_value


def infer_types(mod: IRModule) -> IRModule:
    """Check every binding's type against what its operator says, and simplify its extents.

    Before:  y: (N * 1, 4) = relu(x)
    After:   y: (N, 4) = relu(x)
    Needs:   nothing. InternalError `type-mismatch` names function, binding and both types.
    """
    return mod.map_graphs(lambda f: _function(mod, f))


def _function(mod: IRModule, f: Function) -> Function:
    by: dict[RVar, Value] = {}
    out: list[Binding] = []
    for i, b in enumerate(f.bindings):
        bound = substitute(b.value, by)
        where = f"{f.name}/bindings[{i}] {b.var.name}"
        derived = _type_of(mod, bound, where)
        declared = b.var.type
        if derived is None:
            derived = declared
        elif not same_type(_logical(declared), _logical(derived)):
            raise InternalError(
                f"declared {_show(declared)}, derived {_show(derived)}",
                code="type-mismatch", where=where,
            )  # fmt: skip
        simple = _simplified(declared)
        if simple != declared:
            var = by[b.var] = RVar(b.var.name, simple)
            out.append(Binding(var, bound))
        else:
            out.append(b if bound is b.value else Binding(b.var, bound))
    if not by:
        return f
    result = substitute_value(f.result, by)
    return Function(f.name, f.params, tuple(out), result, f.attrs)


def _type_of(mod: IRModule, bound: Bound, where: str) -> Type | None:
    """The type a bound has, or None when it is a call of something without one."""
    match bound:
        case Call(callee=GlobalRef(name=name)):
            callee = mod.get(name)
            return callee.result.type if isinstance(callee, Function) else None
        case Call():
            try:
                return ops.infer(bound)
            except UserError as error:
                raise InternalError(
                    f"{bound.op}: {error.message}", code="type-mismatch", where=where
                ) from error
        case TupleItem(value=value, index=index):
            assert isinstance(value.type, TupleType), where
            return value.type.fields[index]
        case RVar() | Constant() | Tuple() | ShapeValue():
            return bound.type
    raise InternalError(f"unknown bound {type(bound).__name__}", where=where)


def _logical(t: Type) -> Type:
    """Without layouts, which type rules ignore."""
    if isinstance(t, TensorType):
        return t.with_layout(None)
    return TupleType(tuple(map(_logical, t.fields))) if isinstance(t, TupleType) else t


def _simplified(t: Type) -> Type:
    if isinstance(t, TensorType):
        return TensorType(tuple(map(simplify, t.shape)), t.dtype, t.layout)
    return TupleType(tuple(map(_simplified, t.fields))) if isinstance(t, TupleType) else t


def _show(t: Type) -> str:
    if isinstance(t, TensorType):
        return show_type(t)
    return f"({', '.join(map(_show, t.fields))})" if isinstance(t, TupleType) else str(t)
