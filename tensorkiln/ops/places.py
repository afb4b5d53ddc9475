"""Operators about computed places: which elements come first, and elements put to places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.dtype import FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64, DType
from tensorkiln.ir.expr import (
    Expr,
    ExprLike,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    intrin,
    select,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.broadcast import extreme
from tensorkiln.ops.need import Need, Needs, at_least
from tensorkiln.ops.op import Element, OpDef, Operands, TensorIn
from tensorkiln.ops.rules import (
    INTEGER,
    mismatch,
    require_dtype,
    require_ndim,
    require_same_dtype,
    require_shape,
    show_type,
)

Arrays = Sequence[np.ndarray]

# --- top_k ---------------------------------------------------------------------------------------


def key_type(dtype: DType) -> DType:
    """The type of the integers by which `order_key` orders elements of a type."""
    return INT64 if dtype.bits > 32 or dtype == UINT32 else INT32


def order_key(x: Expr, largest: bool) -> Expr:
    """An integer that is the greater the earlier `x` comes: of a float its bits, turned where it is
    negative. NaN is greater than all numbers; both zeros are equal."""
    to = key_type(x.dtype)
    if x.dtype.is_float:
        wide = cast(x, FLOAT64 if to.bits == 64 else FLOAT32)
        bits = intrin(f"bitcast_i{to.bits}", wide + const(0.0, wide.dtype))
        max_key = const((1 << (to.bits - 1)) - 1, to)
        key = select(bits < 0, binary("bitxor", bits, max_key), bits)
        key = select(intrin("isnan", wide), max_key, key)
    elif x.dtype == UINT64:
        key = binary("bitxor", cast(x, to), const(-(1 << 63), to))
    else:
        key = cast(x, to)
    return key if largest else binary("bitxor", key, const(-1, to))


def _infer_top_k(types: Operands, a: Attrs) -> TensorType:
    x = types[0]
    if x.ndim == 0:
        raise mismatch("top_k", "x", "a last dimension", show_type(x), code="rank-mismatch")
    return TensorType((*x.shape[:-1], const(a.k)), INT64)


def _top_k_needs(
    types: Operands, a: Attrs, constants: Sequence[np.ndarray | None]
) -> Iterator[Need]:
    expected = f"a last dimension of {a.k} or more"
    yield at_least(types[0].shape[-1], a.k, 0, expected, "out-of-range")


def _np_top_k(arrays: Arrays, a: Attrs) -> np.ndarray:
    """Places of the first elements of the last dimension in order; of equal ones the first. NaN is
    greater than all numbers."""
    x = arrays[0]
    if x.dtype.kind == "f":
        rank = np.unique(x, return_inverse=True)[1].reshape(x.shape)
        rank = np.where(np.isnan(x), x.size, rank)
    else:
        rank = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    rank = -rank if a.largest else rank
    return np.argsort(rank, axis=-1, kind="stable")[..., : a.k].astype(np.int64)


# --- scatter -------------------------------------------------------------------------------------

REDUCTIONS = ("none", "add", "mul", "max", "min")
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def combined(old: Expr, new: Expr, reduction: str) -> Expr:
    """The new value of an element when `new` is stored there, or combined with it."""
    if reduction == "none":
        return new
    if reduction in ("max", "min"):
        return extreme(reduction)(old, new, NO_ATTRS)
    return binary(reduction, old, new)


def _infer_scatter(types: Operands, a: Attrs) -> TensorType:
    x, places, updates = types
    op = "scatter"
    require_ndim(op, "x", x, 2, "(rows, columns)")
    require_dtype(op, "places", places, INTEGER)
    require_ndim(op, "places", places, 1, "(updates,)")
    require_same_dtype(op, ("x", "updates"), (x, updates))
    shape = (places.shape[0], x.shape[1])
    require_shape(op, "updates", updates, shape, "a row for each place")
    if x.dtype.is_bool and a.reduction != "none":
        raise mismatch(op, "x", "numbers to combine", show_type(x), code="dtype-mismatch")
    return TensorType(x.shape, x.dtype)


def _np_scatter(arrays: Arrays, a: Attrs) -> np.ndarray:
    """x with rows of updates put to, or combined with, the rows of these numbers, one after the
    other. Numbers of no row are nowhere."""
    x, places, updates = arrays
    out = x.copy()
    inside = (places >= 0) & (places < len(x))
    for row, values in zip(places[inside], updates[inside], strict=True):
        with np.errstate(all="ignore"):
            out[row] = values if a.reduction == "none" else _UFUNCS[a.reduction](out[row], values)
    return out


# --- bounds_check --------------------------------------------------------------------------------


def index_limits(dtype: DType, a: Attrs) -> tuple[ExprLike, Expr]:
    """The least and the greatest index that a `bounds_check` of indices of a type accepts."""
    extent = as_expr(a.extent)
    counts_back = a.negative and not dtype.is_unsigned
    return (0 - extent if counts_back else 0), extent - 1


def _infer_bounds_check(types: Operands, a: Attrs) -> TensorType:
    require_dtype("bounds_check", "indices", types[0], INTEGER)
    return types[0]


def _program_bounds_check(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
    """The indices themselves: that they are inside is for the host to check."""
    return ins[0].element


def _np_bounds_check(arrays: Arrays, a: Attrs) -> np.ndarray:
    """The indices. Raises UserError (code `index`) for the first that is outside."""
    (indices,) = arrays
    low, high = index_limits(DType(indices.dtype.name), a)
    outside = np.argwhere((indices < int_value(low)) | (indices > int_value(high)))
    if len(outside):
        place = tuple(map(int, outside[0]))
        raise UserError(outside_message(int(indices[place]), place, a), code="index")
    return np.array(indices)


def outside_message(index: int, place: tuple[int, ...], a: Attrs) -> str:
    """The sentence about an index that is outside; crt/error.c says the same at run time."""
    extent = int_value(as_expr(a.extent))
    lowest = f"-{extent}" if a.negative and extent else "0"
    legal = f"expected {lowest} to {(extent or 0) - 1}" if extent else "which has no elements"
    return f"index {index} at {list(place)} is outside of a dimension of {extent}, {legal}"


PLACES: dict[str, OpDef] = {
    # What reads at the indices comes after it, so where one is outside nothing has read there.
    "bounds_check": OpDef(
        "bounds_check",
        ("indices",),
        {"extent": at.extent(), "negative": at.flag(True)},
        "opaque",
        _infer_bounds_check,
        _np_bounds_check,
        _program_bounds_check,
    ),
    # Kernels of their own compute these: they have no program per output element.
    "top_k": OpDef(
        "top_k",
        ("x",),
        {"k": at.integer(0), "largest": at.flag(True)},
        "opaque",
        _infer_top_k,
        _np_top_k,
        needs=Needs("`k` elements or more in the last dimension", _top_k_needs),
    ),
    "scatter": OpDef(
        "scatter",
        ("x", "places", "updates"),
        {"reduction": at.choice(*REDUCTIONS, default="none")},
        "opaque",
        _infer_scatter,
        _np_scatter,
    ),
}
