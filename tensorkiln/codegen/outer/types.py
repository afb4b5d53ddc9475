"""Static C tables that outer functions share: types to check values against, constants' shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorkiln.base.element_types import PARAMETER_TYPES
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_text.sizes import expression_text
from tensorkiln.codegen.c_text.text import quote
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.relax import (
    AnyTensorType,
    Constant,
    FuncType,
    PrimType,
    ShapeType,
    StringType,
    TensorType,
    TupleType,
    Type,
)

VarNames = Mapping[Var, str]


def c_dtype(dtype: DType | None) -> str:
    """The initialiser of a kiln_dtype; for None zeros, which stand for any type. UnsupportedError
    for an element type that host code does not have."""
    if dtype is None:
        return "{0, 0, 0}"
    if dtype.name not in PARAMETER_TYPES:
        raise UnsupportedError(
            f"values of element type {dtype.name} in an outer function",
            hint=f"cast to one of {', '.join(PARAMETER_TYPES)}",
        )
    return dtype.row.c_dtype


def type_text(t: Type, names: VarNames) -> str:
    """A type for people: `float32 [n, 4]`."""
    match t:
        case TensorType(shape, dtype):
            return f"{dtype.name} [{', '.join(expression_text(d, names) for d in shape)}]"
        case AnyTensorType(ndim, dtype):
            rank = "" if ndim is None else f" with {ndim} dimension{'' if ndim == 1 else 's'}"
            return f"a tensor{f' of {dtype.name}' if dtype else ''}{rank}"
        case TupleType(fields):
            return f"a tuple ({', '.join(type_text(f, names) for f in fields)})"
        case ShapeType(ndim):
            return f"a shape of {ndim}"
        case PrimType(dtype):
            return "a bool" if dtype.is_bool else f"a number ({dtype.name})"
        case StringType():
            return "a string"
        case FuncType():
            return "a function"
    return "any value"


def type_dims(t: Type) -> list[Expr]:
    """All dimensions in a type, in order: those that `kiln_match` sets or checks."""
    if isinstance(t, TensorType):
        return list(t.shape)
    if isinstance(t, AnyTensorType) and t.ndim is not None:
        return [_UNKNOWN] * t.ndim
    if isinstance(t, TupleType):
        return [d for f in t.fields for d in type_dims(f)]
    return []


_UNKNOWN = Var("any")  # a dimension of an AnyTensorType: every size matches it


def is_unknown(dim: Expr) -> bool:
    """Whether a dimension of `type_dims` may have any size."""
    return dim is _UNKNOWN


def _kind(t: Type) -> tuple[str, int, DType | None]:
    match t:
        case TensorType(shape, dtype):
            return "KILN_IS_TENSOR", len(shape), dtype
        case AnyTensorType(ndim, dtype):
            return "KILN_IS_TENSOR", -1 if ndim is None else ndim, dtype
        case TupleType(fields):
            return "KILN_IS_TUPLE", len(fields), None
        case ShapeType(ndim):
            return "KILN_IS_SHAPE", ndim, None
        case PrimType(dtype) if dtype.is_bool:
            return "KILN_IS_BOOL", 0, dtype
        case PrimType(dtype):
            return "KILN_IS_INT" if dtype.is_int else "KILN_IS_FLOAT", 0, dtype
        case StringType():
            return "KILN_IS_STRING", 0, None
        case FuncType():
            return "KILN_IS_FUNCTION", 0, None
    return "KILN_IS_ANYTHING", 0, None


class Tables:
    """Static data of all outer functions; equal entries are shared."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}

    def type(self, t: Type, names: VarNames) -> str:
        """The name of a type's table."""
        fields = "NULL"
        if isinstance(t, TupleType) and t.fields:
            refs = ", ".join(f"&{self.type(f, names)}" for f in t.fields)
            fields = self._entry("fields", "const kiln_type *const {}[] = ", f"{{{refs}}}")
        kind, count, dtype = _kind(t)
        row = f"{{{kind}, {count}, {c_dtype(dtype)}, {quote(type_text(t, names))}, {fields}}}"
        return self._entry("type", "const kiln_type {} = ", row)

    def constant_shape(self, c: Constant) -> str:
        """The name of the array of a constant's sizes; NULL for a scalar."""
        if not c.data.shape:
            return "NULL"
        return self._entry("dims", "int64_t {}[] = ", f"{{{', '.join(map(str, c.data.shape))}}}")

    def _entry(self, stem: str, declaration: str, content: str) -> str:
        key = declaration + content
        name = self._types.get(key)
        if name is None:
            name = self._types[key] = f"outer_{stem}_{len(self._types)}"
        return name

    def lines(self) -> Iterator[str]:
        """Yield the declarations, each after those that it refers to."""
        for key, name in self._types.items():
            head, _, content = key.partition(" = ")
            yield f"static {head.format(name)} = {content};"


__all__ = ["Tables", "VarNames", "c_dtype", "is_unknown", "type_dims", "type_text"]
