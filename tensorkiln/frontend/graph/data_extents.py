"""Extents that data decides: of the results of NonZero and the like, and sizes that a model
computes.

Such an extent is a symbolic dimension which a `MatchCast` binds when the function runs. From there
on it is a dimension like any other, which type rules, shape arithmetic and kernels know; a function
that has one is an outer function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, as_expr, int_value
from tensorkiln.ir.relax import (
    AnyTensorType,
    Call,
    Constant,
    MatchCast,
    RVar,
    TensorType,
    TupleItem,
    TupleType,
    Value,
)

# Sizes that one `sized` binds: a tensor has up to 16 dimensions.
_AT_ONCE = 8


def with_shape(g: Context, x: Value, shape: Sequence[ExprLike | None], dtype: DType) -> RVar:
    """`x` as a tensor of the given shape, which is checked when the function runs. None stands for
    an extent that is known only then: it becomes a new dimension."""
    dims = tuple(g.dims.fresh("size") if d is None else as_expr(d) for d in shape)
    kind = TensorType(dims, dtype)
    return g.builder.bind(MatchCast(x, kind), kind, "sized")


def dynamic_results(
    g: Context, op: str, *args: Val, shapes: Sequence[Sequence[ExprLike | None]], **attrs: object
) -> list[RVar]:
    """The results of an operator of `ops.DYNAMIC`, each of one of `shapes` (as `with_shape` takes
    them)."""
    values = [g.value(a) for a in args]
    result = g.builder.emit(op, *values, span=g.span, **attrs)  # type: ignore[arg-type]
    if not isinstance(result.type, TupleType):
        return [_tensor(g, result, shapes[0])]
    items = [g.builder.bind(TupleItem(result, k), t, op) for k, t in enumerate(result.type.fields)]
    return [_tensor(g, item, shape) for item, shape in zip(items, shapes, strict=True)]


def _tensor(g: Context, x: RVar, shape: Sequence[ExprLike | None]) -> RVar:
    assert isinstance(x.type, AnyTensorType) and x.type.dtype is not None
    return with_shape(g, x, shape, x.type.dtype)


def elements(g: Context, x: Val, subject: str) -> list[Val]:
    """The elements of a 1-D operand as tensors [1]. Those that are known although others are not,
    as operands of a concatenation, are constants."""
    parts = [y for part in _joined(g, x) for y in _each(g, part, subject)]
    return [g.reshape(y, (1,)) for y in parts]


def _joined(g: Context, x: Val) -> Sequence[Val]:
    """The operands of the concatenation that makes a 1-D operand; itself if none does."""
    if not isinstance(x, RVar):
        return (x,)
    producer = next((b.value for b in reversed(g.builder.bindings) if b.var is x), None)
    if isinstance(producer, Call) and producer.op == "concat":
        return [y for v in producer.args if isinstance(v, RVar | Constant) for y in _joined(g, v)]
    return (x,)


def _each(g: Context, x: Val, subject: str) -> Iterator[Val]:
    count = int_value(g.shape(x)[0]) if g.rank(x) == 1 else None
    if count is None:
        raise unsupported(f"{subject} has a number of elements that is not known")
    for i in range(count):
        yield g.emit("slice", x, begin=(i,), strides=(1,), shape=(1,)) if count > 1 else x


def extents_of(
    g: Context, x: Val, subject: str, subject_value: Val | None = None, expected: str = "0 or more"
) -> tuple[Expr, ...]:
    """The elements of a 1-D integer operand as extents. Those that are computed from data become
    new dimensions, and a negative one is an error when the function runs: `subject` is the value of
    `subject_value`, or of x, and something else was `expected`."""
    if g.expressions(x) is not None or not isinstance(x, RVar):
        return g.extents(x, subject)
    count = int_value(x.tensor.shape[0]) if x.tensor.ndim == 1 else None
    if not x.tensor.dtype.is_int or x.tensor.ndim != 1:
        raise malformed(
            f"{subject} must be a 1-D integer tensor, got {x.tensor.dtype} of rank {g.rank(x)}"
        )
    if count is None:
        raise unsupported(
            f"{subject} has a number of elements that is not known", "its length is a rank"
        )
    parts = _joined(g, x)
    if len(parts) > 1:
        return tuple(
            d for part in parts for d in extents_of(g, part, subject, subject_value, expected)
        )
    extents = g.bound_sizes.get(x)
    if extents is None:
        description = _Description(subject, expected, subject_value)
        extents = g.bound_sizes[x] = tuple(
            d for part in _parts(g, x, count, description) for d in part
        )
    return extents


def _parts(g: Context, x: RVar, count: int, description: _Description) -> list[tuple[Expr, ...]]:
    whole = g.cast(x, "int64")
    extents = []
    for first in range(0, count, _AT_ONCE):
        n = min(_AT_ONCE, count - first)
        part = whole
        if n != count:
            part = g.emit("slice", whole, begin=(first,), strides=(1,), shape=(n,))
        empty = description.sized(g, part)
        extents.append(with_shape(g, empty, (*[None] * n, 0), BOOL).tensor.shape[:-1])
    return extents


def require(g: Context, holds: Val, subject: str, subject_value: Val, expected: str) -> None:
    """Refuse a call in which `holds`, a truth or a 0 or 1 that data decides, is not true: the
    operand `subject` has the value `subject_value`, and something else was `expected`."""
    ok = g.emit("sub", g.reshape(g.cast(holds, "int64"), (1,)), g.const([1], "int64"))
    with_shape(g, _Description(subject, expected, subject_value).sized(g, ok), (0, 0), BOOL)


def require_broadcast(g: Context, x: Val, shape: Val, count: int) -> None:
    """Refuse a call whose `shape`, of `count` extents that data decides, does not broadcast with
    the extents of x that are numbers other than 1."""
    numbers = [int_value(d) for d in g.shape(x)]
    fixed = [-1 if n is None or n == 1 else n for n in numbers]
    fixed = [-1] * (count - len(fixed)) + fixed[max(0, len(fixed) - count) :]
    if all(n < 0 for n in fixed):
        return
    requested_shape, fixed_shape = g.cast(shape, "int64"), g.const(fixed, "int64")
    alike = g.emit("equal", requested_shape, fixed_shape)
    is_one, free = (
        g.emit("equal", requested_shape, g.const(1, "int64")),
        g.const([n < 0 for n in fixed], "bool"),
    )
    meets = g.cast(g.emit("logical_or", g.emit("logical_or", alike, is_one), free), "int64")
    expected = (
        f"extents that broadcast with [{', '.join('?' if n is None else str(n) for n in numbers)}]"
    )
    require(g, g.emit("min", meets, axes=(0,), keepdims=True), "shape", shape, expected)


@dataclass(frozen=True, slots=True)
class _Description:
    """What the error of a negative size says; see `extents_of`."""

    what: str
    expected: str
    shown: Val | None

    def sized(self, g: Context, x: Val) -> RVar:
        """The sizes x as a tensor of this shape, and 0."""
        values = [x] if self.shown is None else [x, g.cast(self.shown, "int64")]
        return g.builder.emit(
            "sized",
            *map(g.value, values),
            span=g.span,
            what=f"{g.span}: {self.what}" if g.span else self.what,
            expected=self.expected,
        )


def extent_of(g: Context, x: Val, subject: str, subject_value: Val | None = None) -> Expr:
    """As `extents_of`, of an operand with one element."""
    if g.expressions(x) is None and g.dims.product(g.shape(x)) != IntImm(1):
        raise malformed(f"{subject} must have one element")
    (extent,) = extents_of(g, g.reshape(x, (1,)), subject, subject_value)
    return extent


def resolved_shape(g: Context, x: Val, shape: Val, allowzero: bool) -> tuple[Expr, ...]:
    """The new shape that Reshape's operand `shape` asks for, where data decides some of it: 0
    copies an extent of `x` (unless `allowzero`), and -1 is what is left of the number of
    elements."""
    extents, total = g.shape(x), g.shape_value([g.dims.product(g.shape(x))])
    count = int_value(g.shape(shape)[0])
    if count is None:
        raise unsupported("the shape of Reshape has a number of elements that is not known")
    requested = g.cast(shape, "int64")
    zero, unit = g.const([0], "int64"), g.const([1], "int64")
    if not allowzero:
        copied = g.shape_value([extents[i] if i < len(extents) else -2 for i in range(count)])
        requested = g.emit("where", g.emit("equal", requested, zero), copied, requested)
    free = g.emit("equal", requested, g.const([-1], "int64"))
    known_product = g.emit("prod", g.emit("where", free, unit, requested), axes=(0,), keepdims=True)
    remainder = g.emit("div", total, known_product)
    sizes = g.emit("where", free, remainder, requested)
    fits = g.emit("equal", g.emit("prod", sizes, axes=(0,), keepdims=True), total)
    expected = "sizes of as many elements as the operand has, one of them -1 at most"
    require(g, fits, "shape", shape, expected)
    return extents_of(g, sizes, "shape", shape, expected)


def checked_reshape(g: Context, x: Val, shape: Sequence[Expr]) -> Val:
    """Reshape to a shape whose number of elements is checked when the function runs."""
    flat = g.reshape(x, (g.dims.product(g.shape(x)),))
    count = g.dims.product(shape)
    if not g.dims.same(g.shape(flat)[0], count):
        flat = g.checked(flat, (count,))
    return g.reshape(flat, shape)


def is_computed(g: Context, x: Val) -> bool:
    """Whether the elements of a small integer operand are computed from data."""
    return isinstance(x, RVar) and g.expressions(x) is None


__all__ = [
    "checked_reshape",
    "dynamic_results",
    "elements",
    "extent_of",
    "extents_of",
    "is_computed",
    "require",
    "require_broadcast",
    "resolved_shape",
    "with_shape",
]
