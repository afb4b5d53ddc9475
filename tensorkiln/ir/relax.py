"""The graph level: functions of operators on whole tensors, in administrative normal form.

    Type     = TensorType(shape, dtype, layout) | TupleType(fields) | ShapeType(ndim)
    Value    = RVar(name, type) | Constant(array, type) | Tuple(fields) | ShapeValue(values)
    Bound    = Call(callee, args, attrs) | TupleItem(value, index) | Value
    callee   = an operator's name ("nn.conv2d", ...), or GlobalRef(name) of a function here
    Function = (params, bindings: (RVar, Bound)..., result: Value, attrs)

Operators have no side effects, so a binding whose variable is unused may be dropped. Every RVar
is bound once, before its uses, and carries its type. `span` names the node of the source model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value
from tensorkiln.ir.layout import Layout

AttrValue: TypeAlias = "bool | int | float | str | tuple[AttrValue, ...] | Expr | None"


@dataclass(frozen=True, slots=True)
class TensorType:
    """`shape` in elements of the logical tensor; `layout` None is row-major."""

    shape: tuple[Expr, ...]
    dtype: DType
    layout: Layout | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def memory(self) -> Layout:
        """The layout, spelled out."""
        return self.layout or Layout.plain(self.ndim)

    @property
    def physical_shape(self) -> tuple[Expr, ...]:
        return self.memory.physical_shape(self.shape)

    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as integers, or None when a dimension is symbolic."""
        values = [int_value(d) for d in self.shape]
        return None if None in values else tuple(values)  # type: ignore[arg-type]

    def with_layout(self, layout: Layout | None) -> TensorType:
        return TensorType(
            self.shape, self.dtype, None if layout is None or layout.is_plain else layout
        )


@dataclass(frozen=True, slots=True)
class TupleType:
    fields: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class ShapeType:
    ndim: int


Type = TensorType | TupleType | ShapeType


def tensor(shape: Sequence[ExprLike], dtype: str | DType) -> TensorType:
    """A row-major tensor type from Python numbers and a dtype's name."""
    return TensorType(tuple(as_expr(d) for d in shape), DType.parse(dtype))


@dataclass(frozen=True, slots=True)
class Attrs(Mapping[str, Any]):
    """An operator's attributes, sorted by name; `attrs["strides"]`, or `attrs.strides`.

    Each value is an AttrValue; which one, the operator's definition says.
    """

    items_: tuple[tuple[str, AttrValue], ...] = ()

    @staticmethod
    def of(**values: AttrValue) -> Attrs:
        def freeze(v: object) -> object:
            return tuple(freeze(x) for x in v) if isinstance(v, (list, tuple)) else v

        return Attrs(tuple(sorted((k, freeze(v)) for k, v in values.items())))  # type: ignore

    def __getitem__(self, key: str) -> Any:
        for k, v in self.items_:
            if k == key:
                return v
        raise KeyError(key)

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __iter__(self) -> Iterator[str]:
        return (k for k, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)


@dataclass(frozen=True, slots=True, eq=False)
class RVar:
    """A graph value. Identity is its meaning."""

    name: str
    type: Type

    @property
    def tensor(self) -> TensorType:
        """Its type, known to be a tensor."""
        assert isinstance(self.type, TensorType), self
        return self.type

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A literal tensor. `array` is the physical data of `type` (packed when it has a layout);
    it may be a read-only view of the model's file. `name` is the initializer's, when known."""

    array: np.ndarray
    type: TensorType
    name: str = ""

    @property
    def tensor(self) -> TensorType:
        return self.type


@dataclass(frozen=True, slots=True)
class Tuple:
    fields: tuple[Value, ...]

    @property
    def type(self) -> TupleType:
        return TupleType(tuple(f.type for f in self.fields))


@dataclass(frozen=True, slots=True)
class ShapeValue:
    values: tuple[Expr, ...]

    @property
    def type(self) -> ShapeType:
        return ShapeType(len(self.values))


Value = RVar | Constant | Tuple | ShapeValue


@dataclass(frozen=True, slots=True)
class GlobalRef:
    """A function of the same module."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    callee: str | GlobalRef
    args: tuple[Value, ...]
    attrs: Attrs = Attrs()
    span: str = field(default="", compare=False)

    @property
    def op(self) -> str:
        """The operator's name, or "" for a call of a function."""
        return self.callee if isinstance(self.callee, str) else ""


@dataclass(frozen=True, slots=True)
class TupleItem:
    value: Value
    index: int


Bound = Call | TupleItem | RVar | Constant | Tuple | ShapeValue


@dataclass(frozen=True, slots=True)
class Binding:
    var: RVar
    value: Bound


@dataclass(frozen=True, slots=True)
class Function:
    """A graph function. `attrs`: `primitive` marks a fused group that becomes one kernel;
    `external` names the external code generator that makes it, instead of a schedule."""

    name: str
    params: tuple[RVar, ...]
    bindings: tuple[Binding, ...]
    result: Value
    attrs: Attrs = Attrs()

    @property
    def is_primitive(self) -> bool:
        return bool(self.attrs.get("primitive", False))

    @property
    def external(self) -> str:
        """The external code generator that compiles it; "" for none."""
        return str(self.attrs.get("external", ""))


def constant(array: np.ndarray, name: str = "") -> Constant:
    """A row-major constant of the array's shape and dtype."""
    return Constant(array, tensor(array.shape, str(array.dtype)), name)
