"""Short descriptions of graph types, for messages."""

from __future__ import annotations

from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.relax import (
    AnyTensorType,
    FuncType,
    ObjectType,
    PrimType,
    ShapeType,
    StringType,
    TensorType,
    TupleType,
)


def show(t: object) -> str:
    """A short description of a type, such as `float32[n, 4]`; the repr of anything else."""
    match t:
        case TensorType(shape, dtype, layout, device):
            dims = ", ".join(map(_extent, shape))
            memory = f" in {layout}" if layout is not None else ""
            return f"{dtype}[{dims}]{memory}" + (f" on {device}" if device else "")
        case AnyTensorType(ndim, dtype):
            rank = "..." if ndim is None else ", ".join("?" * ndim)
            return f"{dtype or 'tensor'}[{rank}]"
        case TupleType(fields):
            return f"({', '.join(map(show, fields))})"
        case ShapeType(ndim):
            return f"shape of {ndim}"
        case PrimType(dtype):
            return f"number {dtype}"
        case FuncType(params, result):
            inner = "..." if params is None else ", ".join(map(show, params))
            return f"function ({inner}) -> {show(result)}"
    if isinstance(t, StringType | ObjectType):
        return "string" if isinstance(t, StringType) else "object"
    return repr(t)


def _extent(d: Expr) -> str:
    number = int_value(d)
    if number is not None:
        return str(number)
    return d.name if isinstance(d, Var) else "?"
