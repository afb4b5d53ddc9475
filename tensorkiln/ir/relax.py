"""The graph level: functions of operators on whole tensors, in administrative normal form.

    Type     = TensorType(shape, dtype, layout) | AnyTensorType(ndim, dtype) | TupleType(fields)
             | ShapeType(ndim) | PrimType(dtype) | StringType() | FuncType(params, result)
             | ObjectType()                               anything; what call_packed may return
    Value    = RVar(name, type) | Constant(array, type) | Tuple(fields) | ShapeValue(values)
             | PrimValue(value) | StringValue(value) | GlobalRef(name)    a function as a value
    Bound    = Call(callee, args, attrs) | TupleItem(value, index) | Value
             | If(cond, then, orelse) | Lambda(function) | MatchCast(value, type)
    Body     = (bindings, result)                          a branch of an If
    callee   = an operator's name ("nn.conv2d", ...), GlobalRef(name) of a function here, or an
               RVar that holds a function
    Function = (params, bindings: (RVar, Bound)..., result: Value, attrs)

Operators have no side effects, so a binding whose variable is unused may be dropped; those named in
IMPURE_OPS do, and calls of functions may. Every RVar is bound once, before its uses, and carries
its type; a branch and a Lambda see what is bound before them. `span` names the node of the source
model.

A function that holds anything but operators, kernels and views on tensors of planned size is an
*outer* function (`is_outer`): it runs as a sequence of host steps, and calls graph functions for
the straight-line parts (`transform/relax/outline_dataflow.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, ExprLike, Var, as_expr, int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.padded import Padded
from tensorkiln.ir.text.scripted import Scripted
from tensorkiln.ir.visit import free_vars, substitute


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
    """`values`: names for the numbers of a parameter, symbolic dimensions that it binds."""

    ndim: int
    values: tuple[Expr, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AnyTensorType:
    """A tensor whose shape is known when it exists. None: the rank, or the dtype, is not known."""

    ndim: int | None = None
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class PrimType:
    """One number that is no tensor."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class StringType:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class FuncType:
    """A function as a value. `params` None: any arguments.

    Symbols that are extents of its parameters are the type's own: two types that differ in which
    symbols these are, are equal.
    """

    params: tuple[Type, ...] | None
    result: Type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FuncType) and self._with_numbered() == other._with_numbered()

    def __hash__(self) -> int:
        return hash((None if self.params is None else len(self.params), type(self.result)))

    def _with_numbered(self) -> tuple[Type | None, ...]:
        """Parameters and result, with symbols of the type's own by order of appearance."""
        own = dict.fromkeys(v for p in self.params or () for v in _bare_extents(p))
        by = {v: _numbered(i) for i, v in enumerate(own)}
        params = (None,) if self.params is None else tuple(replaced(p, by) for p in self.params)
        return (*params, replaced(self.result, by))


@dataclass(frozen=True, slots=True)
class ObjectType:
    """Any value at all."""


Type = (
    TensorType
    | AnyTensorType
    | TupleType
    | ShapeType
    | PrimType
    | StringType
    | FuncType
    | ObjectType
)


@functools.cache
def _numbered(i: int) -> Var:
    return Var(f"own{i}")


def _bare_extents(t: Type) -> Iterator[Var]:
    """Symbols that a value of type `t` gives by being an extent."""
    if isinstance(t, TensorType):
        yield from (d for d in t.shape if isinstance(d, Var))
    elif isinstance(t, TupleType):
        for f in t.fields:
            yield from _bare_extents(f)


def replaced(t: Type, by: Mapping[Var, Expr]) -> Type:
    """`t` with its symbolic extents replaced."""
    match t:
        case TensorType(shape, dtype, layout):
            return TensorType(tuple(substitute(d, by) for d in shape), dtype, layout)
        case TupleType(fields):
            return TupleType(tuple(replaced(f, by) for f in fields))
        case FuncType(params, result):
            new = None if params is None else tuple(replaced(p, by) for p in params)
            return FuncType(new, replaced(result, by))
    return t


def tensor(shape: Sequence[ExprLike], dtype: str | DType) -> TensorType:
    """A row-major tensor type from Python numbers and a dtype's name."""
    return TensorType(tuple(as_expr(d) for d in shape), DType.parse(dtype))


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
    """A literal tensor. `data` is the physical data of `type` (packed when it has a layout);
    it may be a read-only view of the model's file, or of that with padding nowhere in memory.
    `name` is the initializer's, when known."""

    data: np.ndarray | Padded
    type: TensorType
    name: str = ""

    @property
    def array(self) -> np.ndarray:
        """`data` in memory: a copy, each time, where it is `Padded`."""
        return self.data if isinstance(self.data, np.ndarray) else np.asarray(self.data)

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


@dataclass(frozen=True, slots=True)
class PrimValue:
    """A number: a constant, or an expression over symbolic dimensions."""

    value: Expr

    @property
    def type(self) -> PrimType:
        return PrimType(self.value.dtype)


@dataclass(frozen=True, slots=True)
class StringValue:
    value: str

    @property
    def type(self) -> StringType:
        return StringType()


@dataclass(frozen=True, slots=True)
class GlobalRef:
    """A function of the same module; as a value, the function itself."""

    name: str

    @property
    def type(self) -> FuncType:
        return FuncType(None, ObjectType())


Value = RVar | Constant | Tuple | ShapeValue | PrimValue | StringValue | GlobalRef

# Operators that act on the world or whose result is not decided by their operands alone. Their
# order is kept and none is dropped.
#   call_packed(*args), attrs name:    a function registered by name, or of the loaded library
#   call_dps_packed(*args, *outs), attrs name: the same, writing into its last arguments
#   call_tir_inplace(f, *args), attrs inplace: a PrimFunc that writes into some of its arguments
#   alloc_storage(), attrs size: that many bytes, which are nobody else's
#   while_loop(cond, body, *state): state = body(*state) as long as cond(*state); gives the state
IMPURE_OPS = (
    "call_packed",
    "call_dps_packed",
    "call_tir_inplace",
    "alloc_storage",
    "while_loop",
)
# Operators whose result's shape depends on the operands' elements.
DYNAMIC_OPS = ("nonzero", "unique", "non_max_suppression", "slice_dynamic", "compress")


@dataclass(frozen=True, slots=True)
class Call:
    callee: str | GlobalRef | RVar
    args: tuple[Value, ...]
    attrs: Attrs = NO_ATTRS
    span: str = field(default="", compare=False)

    @property
    def op(self) -> str:
        """The operator's name, or "" for a call of a function."""
        return self.callee if isinstance(self.callee, str) else ""


@dataclass(frozen=True, slots=True)
class TupleItem:
    value: Value
    index: int


@dataclass(frozen=True, slots=True)
class Body:
    """Bindings and the value they lead to."""

    bindings: tuple[Binding, ...]
    result: Value


@dataclass(frozen=True, slots=True)
class If:
    """`cond` is a bool: a tensor of one element, or a PrimValue. Both branches have one type."""

    cond: Value
    then: Body
    orelse: Body


@dataclass(frozen=True, slots=True)
class Lambda:
    """A function made here; variables of the outer function that it uses are captured."""

    function: Function

    @property
    def type(self) -> FuncType:
        f = self.function
        return FuncType(tuple(p.type for p in f.params), f.result.type)


@dataclass(frozen=True, slots=True)
class MatchCast:
    """`value`, checked when it runs to have `type`; symbolic dimensions of `type` that nothing
    bound before get their values here."""

    value: Value
    type: Type


Bound = Call | TupleItem | If | Lambda | MatchCast | Value


@dataclass(frozen=True, slots=True)
class Binding:
    var: RVar
    value: Bound


@dataclass(frozen=True, slots=True)
class Function(Scripted):
    """A graph function. `attrs`: `primitive` marks a fused group that becomes one kernel;
    `external` names the external code generator that makes it, instead of a schedule; `planned`
    and `storages` mark the two graph functions that `partial_graph_aot` makes of one."""

    name: str
    params: tuple[RVar, ...]
    bindings: tuple[Binding, ...]
    result: Value
    attrs: Attrs = NO_ATTRS

    @property
    def is_primitive(self) -> bool:
        return bool(self.attrs.get("primitive", False))

    @property
    def is_outer(self) -> bool:
        """Whether it runs as host steps: marked so, or holding what no call plan can."""
        if self.is_primitive or self.external or self.is_planned or self.makes_storages:
            return False
        return bool(self.attrs.get("outer", False)) or not is_straight_line(self)

    @property
    def is_planned(self) -> bool:
        """Whether its memory is planned and its kernels are called by one tensor program."""
        return bool(self.attrs.get("planned", False))

    def __repr__(self) -> str:
        """Its name, parameters and size; `script()` is all of it."""
        params = listed((p.name for p in self.params), 8)
        return f"<graph function {self.name}({params}): {len(self.bindings)} bindings>"

    @property
    def makes_storages(self) -> bool:
        """Whether it only makes the storages of a planned function."""
        return bool(self.attrs.get("storages", False))

    @property
    def is_private(self) -> bool:
        """Whether only functions of its module call it."""
        return bool(self.attrs.get("private", False))

    @property
    def external(self) -> str:
        """The external code generator that compiles it; "" for none."""
        return str(self.attrs.get("external", ""))


def constant(array: np.ndarray, name: str = "") -> Constant:
    """A row-major constant of the array's shape and dtype."""
    return Constant(array, tensor(array.shape, str(array.dtype)), name)


def is_straight_line(f: Function) -> bool:
    """Whether a call plan can run it: tensors of planned size in and out (one, or a flat tuple),
    and nothing between but operators, kernels and views."""
    results = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
    if not all(isinstance(p.type, TensorType) for p in f.params):
        return False
    if not all(isinstance(r, RVar | Constant) and isinstance(r.type, TensorType) for r in results):
        return False
    return all(_is_plain(b.value) and _is_planned(b.var.type) for b in f.bindings)


def _is_planned(t: Type) -> bool:
    """Whether a value of this type has a place before the function runs."""
    if isinstance(t, TupleType):
        return all(map(_is_planned, t.fields))
    return isinstance(t, TensorType | ShapeType)


_OPERANDS = (RVar, Constant, ShapeValue, Tuple)


def _is_plain(value: Bound) -> bool:
    """Without `match` and hashes of references: each pass asks it of every binding."""
    if not isinstance(value, Call):
        return isinstance(value, (TupleItem, *_OPERANDS))
    callee = value.callee
    if isinstance(callee, RVar):
        return False
    if isinstance(callee, str) and (callee in IMPURE_OPS or callee in DYNAMIC_OPS):
        return False
    return all(isinstance(a, _OPERANDS) for a in value.args)


def size_symbols(f: Function) -> tuple[Var, ...]:
    """Symbolic dimensions in a function of one block, in order of their first appearance."""
    return tuple(dict.fromkeys(v for e in _extents(f) for v in free_vars(e)))


def _extents(f: Function) -> Iterator[Expr]:
    for t in (*(p.type for p in f.params), *(b.var.type for b in f.bindings)):
        if isinstance(t, TensorType):
            yield from t.shape
    for b in f.bindings:
        if isinstance(b.value, Call):
            yield from b.value.attrs.exprs()
