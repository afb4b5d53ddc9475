"""Columns of Arrow tables as tensors, one per row, without a copy where the memory layouts agree.

Imported only where tables are scored, since it needs pyarrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorkiln.artifact.metadata import ParamInfo
from tensorkiln.base.errors import UserError
from tensorkiln.base.schema import Dim

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Refusals = dict[int, str]  # why a row has no tensor, by its number in the batch

_HINT = "preprocess= makes the tensors"


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """The tensors of one column in a batch, one per row. Row i is `values[starts[i]:...]` in the
    shape `shapes[i]`; if `starts` is None, all rows have one shape and `values` is [rows, *shape].
    The values of rows that were refused are undefined."""

    values: Array
    starts: npt.NDArray[np.int64] | None = None
    shapes: Sequence[Shape] = ()

    def shape(self, row: int) -> Shape:
        """The shape of row i's tensor."""
        return self.values.shape[1:] if self.starts is None else self.shapes[row]

    def take(self, rows: Sequence[int]) -> Array:
        """The tensors of the rows with these numbers, which all have one shape, as [rows,
        *shape]."""
        if self.starts is None:
            first, last = rows[0], rows[-1]
            if last - first == len(rows) - 1 and all(a < b for a, b in pairwise(rows)):
                return self.values[first : last + 1]
            chosen: Array = self.values[np.asarray(rows)]
            return chosen
        size = math.prod(self.shapes[rows[0]])
        parts = [self.values[self.starts[r] : self.starts[r] + size] for r in rows]
        return np.stack(parts).reshape(len(rows), *self.shapes[rows[0]])


@dataclass(frozen=True, slots=True)
class Leaf:
    """The innermost element type of an Arrow type, the dimensions of each row (None for a list of
    any length), and whether the type states the shape or only a number of elements."""

    element: Any
    dims: tuple[int | None, ...]
    says_shape: bool = False


def leaf_of(kind: Any) -> Leaf | None:
    """The Leaf of an Arrow type; None if the type cannot hold tensors."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return Leaf(kind.value_type, tuple(kind.shape), True)
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_of(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return leaf_of(kind.value_type)
    if _is_list(kind):
        inner = leaf_of(kind.value_type)
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        return inner and Leaf(inner.element, (size, *inner.dims), bool(inner.dims))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return Leaf(kind, ())
    return None


def _is_list(kind: Any) -> bool:
    is_fixed = pa.types.is_fixed_size_list(kind)
    return bool(is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_bytes(kind: Any) -> bool:
    """Whether the values of a column are byte strings, which may be the bytes of tensors."""
    is_variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_variable or pa.types.is_fixed_size_binary(kind))


def require_column(name: str, kind: Any, param: ParamInfo, dtype: np.dtype[Any]) -> None:
    """Raise UserError (codes `column-type`, `column-shape`) for a column that can never be rows of
    the input: converting its elements would change values, or their number is another."""
    row = (param.shape or ())[1:]
    subject, row_text = f"input {param.name!r}", shown_dims(row)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_bytes(kind):
        size = static_size(row)
        if size is None:
            raise UserError(
                f"{subject} has rows of {shown_dims(row)}, and bytes do not say which",
                code="column-shape",
                where=f"column {name!r} ({kind})",
                hint=_HINT,
            )
        if pa.types.is_fixed_size_binary(kind) and kind.byte_width != size * dtype.itemsize:
            raise UserError(
                f"a row of {subject} has {size * dtype.itemsize} bytes ({param.dtype} {row_text})",
                code="column-shape",
                where=f"column {name!r} ({kind})",
                hint=_HINT,
            )
        return
    leaf = leaf_of(kind)
    if leaf is None or not np.can_cast(_numpy_type(leaf.element), dtype, "safe"):
        raise UserError(
            f"{subject} is {param.dtype}, which cannot hold every value of a column of {kind}",
            code="column-type",
            where=f"column {name!r}",
            hint=_HINT + ", or cast the column",
        )
    if None not in leaf.dims:
        sizes = tuple(d for d in leaf.dims if d is not None)
        if _fitted(sizes, row, leaf.says_shape) is None:
            raise UserError(
                f"a row of {subject} is {row_text}, one of the column {shown_dims(leaf.dims)}",
                code="column-shape",
                where=f"column {name!r} ({kind})",
                hint=_HINT,
            )
    elif len(leaf.dims) == 1 and sum(isinstance(d, str) for d in row) > 1:
        raise UserError(
            f"a row of {subject} is {row_text}: a flat list does not say which of these it is",
            code="column-shape",
            where=f"column {name!r} ({kind})",
            hint="nest lists, or " + _HINT,
        )


def _numpy_type(kind: Any) -> np.dtype[Any]:
    # Not by to_pandas_dtype(): before pyarrow 26 it imports pandas.
    numpy_type: np.dtype[Any] = pa.array([], kind).to_numpy(zero_copy_only=False).dtype
    return numpy_type


def shown_dims(dims: Sequence[Dim | None]) -> str:
    """Dimensions as text for messages, such as `[3, any]`."""
    return f"[{', '.join('any' if d is None else str(d) for d in dims)}]"


def static_size(dims: Sequence[Dim]) -> int | None:
    """The number of elements; None if a dimension is symbolic."""
    sizes = [d for d in dims if isinstance(d, int)]
    return math.prod(sizes) if len(sizes) == len(dims) else None


def _fitted(sizes: Shape, row_dims: Sequence[Dim], says_shape: bool) -> Shape | None:
    """The shape of a row of these sizes as `row_dims`, whose symbolic dimensions they determine;
    None if they do not fit. A flat list is read in row-major order; a type that states its shape
    must match."""
    if len(sizes) == len(row_dims) and all(
        isinstance(dim, str) or size == dim for size, dim in zip(sizes, row_dims, strict=True)
    ):
        return sizes
    if says_shape:
        return None
    count, fixed_count = math.prod(sizes), math.prod(d for d in row_dims if isinstance(d, int))
    symbols = [d for d in row_dims if isinstance(d, str)]
    if not symbols:
        return tuple(d for d in row_dims if isinstance(d, int)) if count == fixed_count else None
    if len(symbols) > 1 or fixed_count == 0 or count % fixed_count:
        return None
    return tuple(d if isinstance(d, int) else count // fixed_count for d in row_dims)


def tensors_of(
    column: Any, param: ParamInfo, dtype: np.dtype[Any], name: str, refused: Refusals
) -> ColumnRows:
    """The tensors of a column for an input [batch, ...] of `dtype`. `require_column` has passed.
    Rows that cannot be tensors of the input are added to `refused` with the reason."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray) and not isinstance(column.type, _TENSOR):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    for row in _null_rows(column):
        refused.setdefault(row, f"column {name!r} is null")
    row_dims = (param.shape or ())[1:]
    if is_bytes(column.type):
        return _of_bytes(column, row_dims, dtype, name, refused)
    leaf = leaf_of(column.type)
    assert leaf is not None  # by require_column
    values, ends = _elements(column, len(column))
    nulls = _null_rows(values)
    if len(nulls):
        starts = np.arange(len(column)) * _each(leaf) if ends is None else ends[:-1]
        for row in np.unique(np.searchsorted(starts, nulls, side="right") - 1):
            refused.setdefault(int(row), f"column {name!r} has a null in it")
        data = values.buffers()[1]  # whatever is where nothing is valid
        values = pa.Array.from_buffers(values.type, len(values), [None, data], offset=values.offset)
    flat = _as_numpy(values, dtype)
    if ends is None:
        sizes = tuple(d for d in leaf.dims if d is not None)
        shape = _fitted(sizes, row_dims, leaf.says_shape)
        assert shape is not None
        return ColumnRows(flat.reshape(len(column), *shape))
    if len(leaf.dims) > 1 and leaf.dims.count(None) + (leaf.dims[0] is not None) > 1:
        return _of_nested(column, leaf, row_dims, dtype, name, refused)
    inner = tuple(d for d in leaf.dims[1:] if d is not None)
    counts = np.diff(ends) // max(1, math.prod(inner))
    shapes: list[Shape] = []
    shape_of_count: dict[int, Shape | None] = {}
    for row, count in enumerate(counts.tolist()):
        if count not in shape_of_count:
            shape_of_count[count] = _fitted((count, *inner), row_dims, leaf.says_shape)
        shape = shape_of_count[count]
        if shape is None:
            row_text = shown_dims((count, *inner))
            text = f"column {name!r} has a row of {row_text}, expected {shown_dims(row_dims)}"
            refused.setdefault(row, text)
        shapes.append(shape or (0,))
    if not refused and len(shape_of_count) == 1 and len(shapes) * math.prod(shapes[0]) == len(flat):
        return ColumnRows(flat.reshape(len(column), *shapes[0]))
    return ColumnRows(flat, ends[:-1], shapes)


_TENSOR = pa.FixedShapeTensorType


def _null_rows(column: Any) -> npt.NDArray[np.int64]:
    if column.null_count == 0:
        return np.empty(0, np.int64)
    return np.flatnonzero(np.asarray(column.is_null()))


def _each(leaf: Leaf) -> int:
    return math.prod(d for d in leaf.dims if d is not None)


def _elements(column: Any, count: int) -> tuple[Any, npt.NDArray[np.int64] | None]:
    """The elements of a column, and the offsets at which each row begins and the last ends; None
    for the offsets if all rows have the same number of elements. Nested lists of fixed size are
    flattened together."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        inner = column.values.slice(column.offset * size, len(column) * size)
        values, ends = _elements(inner, len(inner))
        return values, None if ends is None else ends[::size]
    if _is_list(column.type):
        # Rows that are null may be of any length, so those of `flatten` would be shifted.
        ends = np.asarray(column.offsets).astype(np.int64)
        inner = column.values.slice(ends[0], ends[-1] - ends[0])
        values, within = _elements(inner, len(inner))
        ends = ends - ends[0]
        if within is not None:
            return values, within[ends]
        return values, ends * (len(values) // len(inner) if len(inner) else 1)
    return column, None


def _as_numpy(values: Any, dtype: np.dtype[Any]) -> Array:
    array: Array = values.to_numpy(zero_copy_only=False)
    return array if array.dtype == dtype else array.astype(dtype)


def _of_bytes(
    column: Any, row_dims: Sequence[Dim], dtype: np.dtype[Any], name: str, refused: Refusals
) -> ColumnRows:
    """Tensors from a column of byte strings: row-major elements in this machine's byte order."""
    shape = tuple(d for d in row_dims if isinstance(d, int))
    size = math.prod(shape) * dtype.itemsize
    if pa.types.is_fixed_size_binary(column.type) and column.null_count == 0:
        data = column.buffers()[1]
        begin = column.offset * size
        flat = np.frombuffer(data, np.uint8)[begin : begin + len(column) * size]
        if flat.ctypes.data % dtype.alignment == 0:
            return ColumnRows(flat.view(dtype).reshape(len(column), *shape))
    tensors = np.zeros((len(column), *shape), dtype)
    rows = tensors.reshape(len(column), -1).view(np.uint8)
    for row, value in enumerate(column):
        if not value.is_valid:
            continue
        buffer = value.as_buffer()
        if buffer.size != size:
            row_text = shown_dims(row_dims)
            text = f"column {name!r} has {buffer.size} bytes, expected {size} of {row_text}"
            refused.setdefault(row, text)
            continue
        rows[row] = np.frombuffer(buffer, np.uint8)
    return ColumnRows(tensors)


def _of_nested(
    column: Any,
    leaf: Leaf,
    row_dims: Sequence[Dim],
    dtype: np.dtype[Any],
    name: str,
    refused: Refusals,
) -> ColumnRows:
    """Tensors from nested lists of variable size, whose shapes only their values tell."""
    parts: list[Array] = []
    shapes: list[Shape] = []
    for row, value in enumerate(column):
        part: Array = np.empty(0, dtype)
        shape: Shape | None = None
        if row not in refused:
            try:
                part = np.asarray(value.as_py(), dtype)
                shape = _fitted(part.shape, row_dims, True)
                text = f"a row of {shown_dims(part.shape)}, expected {shown_dims(row_dims)}"
            except ValueError:
                text = "a list whose parts are of several lengths"
            if shape is None:
                refused.setdefault(row, f"column {name!r} has {text}")
        parts.append(part.reshape(-1))
        shapes.append(shape or (0,))
    starts = np.cumsum([0, *(len(p) for p in parts)], dtype=np.int64)
    return ColumnRows(np.concatenate(parts) if parts else np.empty(0, dtype), starts[:-1], shapes)
