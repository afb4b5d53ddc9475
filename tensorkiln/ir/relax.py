"""The graph level: functions of operators on whole tensors, in administrative normal form (ANF).

    Type     = TensorType(shape, dtype, layout, device) | AnyTensorType(ndim, dtype)
             | TupleType(fields)
             | ShapeType(ndim) | PrimType(dtype) | StringType() | FuncType(params, result)
             | ObjectType()                               any value, e.g. a result of call_packed
    Value    = RVar(name, type) | Constant(array, type) | Tuple(fields) | ShapeValue(values)
             | PrimValue(value) | StringValue(value) | GlobalRef(name)    a function as a value
    Bound    = Call(callee, args, attrs) | TupleItem(value, index) | Value
             | If(cond, then, orelse) | Lambda(function) | MatchCast(value, type)
    Body     = (bindings, result)                          a branch of an If
    callee   = an operator's name ("nn.conv2d", ...), a GlobalRef to a function of this module, or
               an RVar that holds a function
    Function = (params, bindings: (RVar, Bound)..., result: Value, attrs)

Operators have no side effects, so a binding whose variable is unused may be dropped. The exceptions
are the operators in IMPURE_OPS, and calls of functions, which may contain one. Every RVar is bound
once, before its uses, and carries its type; the body of a branch or Lambda may use variables bound
before it in the enclosing function. `span` names the node of the source model.

A call plan runs straight-line calls of operators and kernels on tensors whose size follows from the
function's inputs. A function that holds anything else is an *outer* function (`is_outer`): it runs
as a sequence of host steps and calls graph functions for its straight-line parts
(`transform/relax/outline_dataflow.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorkiln.base.errors import UserError
from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, ExprLike, Var, as_expr, int_value
from tensorkiln.ir.fields import Inner
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.padded import Padded
from tensorkiln.ir.text.scripted import Scripted
from tensorkiln.ir.visit import free_vars, substitute

# A model of 100 layers whose states are tuples has a few hundred.
MOST_LEAVES = 4096


@dataclass(frozen=True, slots=True)
class TensorType:
    """`shape` is the logical one, in elements; a `layout` of None means row-major memory.

    `device` is the key of the device that makes the value, and in whose memory a parameter or
    result is; empty: of any. It does not count in comparisons of types: type rules know no devices.
    """

    shape: tuple[Expr, ...]
    dtype: DType
    layout: Layout | None = None
    device: str = field(default="", compare=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def memory(self) -> Layout:
        """The layout as a Layout object: `layout`, or the row-major one where that is None."""
        return self.layout or Layout.plain(self.ndim)

    @property
    def physical_shape(self) -> tuple[Expr, ...]:
        return self.memory.physical_shape(self.shape)

    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as integers, or None when a dimension is symbolic."""
        values = [int_value(d) for d in self.shape]
        return None if None in values else tuple(values)  # type: ignore[arg-type]

    def with_layout(self, layout: Layout | None) -> TensorType:
        layout = None if layout is None or layout.is_plain else layout
        return TensorType(self.shape, self.dtype, layout, self.device)


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple of values. UserError (code `too-large`) for tuples of tuples that hold more than
    `MOST_LEAVES` values in all: `t = (t, t)` doubles them, and what visits a type visits each."""

    fields: tuple[Type, ...]

    def __post_init__(self) -> None:
        if any(isinstance(t, TupleType) for t in self.fields):
            count = sum(1 for _ in self.leaves())
            if count > MOST_LEAVES:
                raise UserError(
                    f"tuples of tuples of {count} values, expected {MOST_LEAVES} at most",
                    code="too-large",
                )

    def leaves(self) -> Iterator[Type]:
        """The types in it that are not tuples, in order."""
        for t in self.fields:
            if isinstance(t, TupleType):
                yield from t.leaves()
            else:
                yield t


@dataclass(frozen=True, slots=True)
class ShapeType:
    """A shape of `ndim` sizes as a value.

    As the type of a parameter it may give `values`: the symbolic dimensions that the parameter
    binds, as `R.Shape(("n",))` binds n. They do not count in comparisons of types.
    """

    ndim: int
    values: tuple[Expr, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AnyTensorType:
    """A tensor whose shape is known only at run time; None for an unknown rank or dtype."""

    ndim: int | None = None
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class PrimType:
    """A single number that is not a tensor.

    As the type of a parameter or a MatchCast it may give `value`: the symbol that the number binds,
    for expressions of sizes. It does not count in comparisons of types.
    """

    dtype: DType
    value: Var | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StringType:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class FuncType:
    """The type of a function as a value; with `params` None it takes any arguments.

    Symbols that appear as extents of its parameters are bound by the type, so types compare equal
    up to renaming them: [n] -> [n] equals [m] -> [m].
    """

    params: tuple[Type, ...] | None
    result: Type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FuncType) and self._with_numbered() == other._with_numbered()

    def __hash__(self) -> int:
        return hash((None if self.params is None else len(self.params), type(self.result)))

    def _with_numbered(self) -> tuple[Type | None, ...]:
        """Parameters and result, with the bound symbols numbered by order of appearance."""
        symbols = dict.fromkeys(v for p in self.params or () for v in _bare_extents(p))
        by = {v: _numbered(i) for i, v in enumerate(symbols)}
        params = (None,) if self.params is None else tuple(replaced(p, by) for p in self.params)
        return (*params, replaced(self.result, by))


@dataclass(frozen=True, slots=True)
class ObjectType:
    """Any value."""


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
    """Symbols that stand alone as an extent in `t`, so that a value of the type determines them.

    In [n, n + m] that is only n.
    """
    if isinstance(t, TensorType):
        yield from (d for d in t.shape if isinstance(d, Var))
    elif isinstance(t, TupleType):
        for f in t.fields:
            yield from _bare_extents(f)


def replaced(t: Type, by: Mapping[Var, Expr]) -> Type:
    """`t` with the symbols in its extents replaced by expressions."""
    match t:
        case TensorType(shape, dtype, layout, device):
            return TensorType(tuple(substitute(d, by) for d in shape), dtype, layout, device)
        case TupleType(fields):
            return TupleType(tuple(replaced(f, by) for f in fields))
        case FuncType(params, result):
            new = None if params is None else tuple(replaced(p, by) for p in params)
            return FuncType(new, replaced(result, by))
    return t


def tensor(shape: Sequence[ExprLike], dtype: str | DType) -> TensorType:
    """A row-major tensor type; `shape` may mix Python integers and expressions."""
    return TensorType(tuple(as_expr(d) for d in shape), DType.parse(dtype))


@dataclass(frozen=True, slots=True, eq=False)
class RVar:
    """A variable that holds a graph value. Compared by identity, not by name."""

    name: str
    type: Type

    @property
    def tensor(self) -> TensorType:
        """`type`, asserted to be a TensorType."""
        assert isinstance(self.type, TensorType), self
        return self.type

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A literal tensor. `data` has the physical form of `type` (packed when that has a layout). It
    may be a read-only view of the model's file, or a `Padded`, which adds the zeros of the layout
    to such a view only when it is read. `name` is the initializer's in the model, if known."""

    data: np.ndarray | Padded
    type: TensorType
    name: str = ""

    @property
    def array(self) -> np.ndarray:
        """`data` as a NumPy array; each access makes a new copy if it is a `Padded`."""
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
    """A reference by name to a function of the same module, as a callee or as a value."""

    name: str

    @property
    def type(self) -> FuncType:
        return FuncType(None, ObjectType())


Value = RVar | Constant | Tuple | ShapeValue | PrimValue | StringValue | GlobalRef

# Operators with side effects, or whose result does not depend on their operands alone. Passes keep
# their order and drop none of them.
#   call_packed(*args), attrs name:    calls a function registered by name, or of the loaded library
#   call_dps_packed(*args, *outs), attrs name: the same, but it writes into its last arguments
#   call_tir_inplace(f, *args), attrs inplace: calls a PrimFunc that writes some of its arguments
#   alloc_storage(), attrs size: a new allocation of that many bytes; optional attrs pool: the name
#     of the target's memory that has it, align: what its address is a multiple of
#   while_loop(cond, body, *state): repeats state = body(*state) while cond(*state); the final state
IMPURE_OPS = (
    "call_packed",
    "call_dps_packed",
    "call_tir_inplace",
    "alloc_storage",
    "while_loop",
)
# The alignments in bytes that storages may have, and that of one which does not say. Elements have
# at most 8 bytes, and the runtime aligns its workspace to 64.
STORAGE_ALIGNS, STORAGE_ALIGN = (8, 16, 32, 64), 64
# Operators whose result shape depends on the values of their operands, not only on their shapes.
DYNAMIC_OPS = (
    "nonzero",
    "unique",
    "non_max_suppression",
    "slice_dynamic",
    "compress",
    "sized",
    "append",
)


@dataclass(frozen=True, slots=True)
class Call:
    callee: str | GlobalRef | RVar
    args: tuple[Value, ...]
    attrs: Attrs = NO_ATTRS
    span: str = field(default="", compare=False)

    @property
    def op(self) -> str:
        """The operator's name, or "" if the callee is a function."""
        return self.callee if isinstance(self.callee, str) else ""


@dataclass(frozen=True, slots=True)
class TupleItem:
    value: Value
    index: int


@dataclass(frozen=True, slots=True)
class Body(Inner):
    """Bindings, and the value that they compute: one branch of an If."""

    bindings: tuple[Binding, ...]
    result: Value


@dataclass(frozen=True, slots=True)
class If:
    """`cond` is one bool: a tensor of one element, or a PrimValue. Both branches have one type."""

    cond: Value
    then: Body
    orelse: Body


@dataclass(frozen=True, slots=True)
class Lambda:
    """A closure: it captures the variables of the enclosing function that it uses."""

    function: Function

    @property
    def type(self) -> FuncType:
        f = self.function
        return FuncType(tuple(p.type for p in f.params), f.result.type)


@dataclass(frozen=True, slots=True)
class MatchCast:
    """`value`, checked at run time to have `type`. Symbolic dimensions of `type` that are not bound
    yet are bound to the sizes of `value`."""

    value: Value
    type: Type


Bound = Call | TupleItem | If | Lambda | MatchCast | Value


@dataclass(frozen=True, slots=True)
class Binding:
    var: RVar
    value: Bound


@dataclass(frozen=True, slots=True)
class Function(Inner, Scripted):
    """A graph function. In `attrs`, `primitive` marks a fused group, which becomes one kernel;
    `external` names the external code generator that compiles it instead of a schedule; `planned`
    and `storages` mark the two graph functions that `partial_graph_aot` makes of one: the function
    itself, and the one that allocates its storages."""

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
        """Whether it runs as host steps: attrs["outer"] is set, or a call plan cannot run it."""
        if self.is_primitive or self.external or self.is_planned or self.makes_storages:
            return False
        return bool(self.attrs.get("outer", False)) or not is_straight_line(self)

    @property
    def is_planned(self) -> bool:
        """Whether its memory is planned, and one tensor program calls all of its kernels."""
        return bool(self.attrs.get("planned", False))

    def __repr__(self) -> str:
        """Name, parameters and number of bindings; `script()` gives the whole text."""
        params = listed((p.name for p in self.params), 8)
        return f"<graph function {self.name}({params}): {len(self.bindings)} bindings>"

    @property
    def results(self) -> tuple[Value, ...]:
        """What it returns: the items of a tuple."""
        return self.result.fields if isinstance(self.result, Tuple) else (self.result,)

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        """The types of the tensors that a straight-line function returns."""
        t = self.result.type
        fields = t.fields if isinstance(t, TupleType) else (t,)
        return tuple(x for x in fields if isinstance(x, TensorType))

    @property
    def makes_storages(self) -> bool:
        """Whether it only allocates the storages of a planned function."""
        return bool(self.attrs.get("storages", False))

    @property
    def is_private(self) -> bool:
        """Whether only functions of its module call it."""
        return bool(self.attrs.get("private", False))

    @property
    def external(self) -> str:
        """The name of the external code generator that compiles it, or ""."""
        return str(self.attrs.get("external", ""))


def constant(array: np.ndarray, name: str = "") -> Constant:
    """A row-major constant of the array's shape and dtype; it refers to `array`, without a copy."""
    return Constant(array, tensor(array.shape, str(array.dtype)), name)


def is_straight_line(f: Function) -> bool:
    """Whether a call plan can run `f`: its parameters and results are tensors of known rank (one
    result, or a flat tuple), and its body holds only tuples, views, and calls of kernels and of
    operators without side effects or data-dependent shapes."""
    if not all(isinstance(p.type, TensorType) for p in f.params):
        return False
    if not all(
        isinstance(r, RVar | Constant) and isinstance(r.type, TensorType) for r in f.results
    ):
        return False
    return all(_is_plain(b.value) and _is_planned(b.var.type) for b in f.bindings)


def _is_planned(t: Type) -> bool:
    """Whether memory for a value of this type can be planned before the function runs."""
    if isinstance(t, TupleType):
        return all(map(_is_planned, t.fields))
    return isinstance(t, TensorType | ShapeType)


_OPERANDS = (RVar, Constant, ShapeValue, Tuple)


def _is_plain(value: Bound) -> bool:
    """Whether a call plan can run this binding. Every pass evaluates it for every binding, so it
    uses isinstance, which is faster than a match statement."""
    if not isinstance(value, Call):
        return isinstance(value, (TupleItem, *_OPERANDS))
    callee = value.callee
    if isinstance(callee, RVar):
        return False
    if isinstance(callee, str) and (callee in IMPURE_OPS or callee in DYNAMIC_OPS):
        return False
    return all(isinstance(a, _OPERANDS) for a in value.args)


def size_symbols(f: Function) -> tuple[Var, ...]:
    """Symbolic dimensions of a straight-line function, in order of first appearance: in the types
    of parameters and bindings, then in attributes."""
    return tuple(dict.fromkeys(v for e in _extents(f) for v in free_vars(e)))


def _extents(f: Function) -> Iterator[Expr]:
    for t in (*(p.type for p in f.params), *(b.var.type for b in f.bindings)):
        if isinstance(t, TensorType):
            yield from t.shape
    for b in f.bindings:
        if isinstance(b.value, Call):
            yield from b.value.attrs.exprs()
