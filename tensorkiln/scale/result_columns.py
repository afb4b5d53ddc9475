"""Results of a library as columns of Arrow tables.

Imported only where tables are scored, since it needs pyarrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorkiln.artifact.metadata import ParamInfo
from tensorkiln.base.element_types import PARAMETER_TYPES
from tensorkiln.base.errors import UserError
from tensorkiln.base.schema import Dim
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.scale.columns import Array, shown_dims, static_size

# What Arrow has no type for becomes one that holds the same values.
_STORED = {
    name: row.storage if row.is_integer else FLOAT32.name
    for name, row in PARAMETER_TYPES.items()
    if not row.in_numpy
}

# Older ones write no null list of a fixed size, or do not read it again.
_HAS_NULL_TENSORS = int(pa.__version__.partition(".")[0]) >= 26


def output_type(param: ParamInfo) -> tuple[Any, np.dtype[Any]]:
    """The Arrow type of a result's column, and the NumPy type of its elements. One number per row
    is a plain column, one dimension a list; several dimensions are Arrow's tensors of fixed shape,
    or nested lists where a dimension is symbolic or pyarrow older than 26. Raises UserError (codes
    `column-type`, `column-shape`) for element types that Arrow lacks, and for rows without
    elements."""
    try:
        dtype = np.dtype(_STORED.get(param.dtype, param.dtype))
        element = pa.from_numpy_dtype(dtype)
    except (TypeError, pa.ArrowNotImplementedError):
        raise UserError(
            f"output {param.name!r} is {param.dtype}, for which Arrow has no type",
            code="column-type",
            hint="leave it out of outputs=, or cast it in the model",
        ) from None
    row = (param.shape or ())[1:]
    if static_size(row) == 0:
        raise UserError(
            f"output {param.name!r} has no elements in a row: {shown_dims(row)}",
            code="column-shape",
            hint="leave it out of outputs=",
        )
    if len(row) > 1 and static_size(row) and _HAS_NULL_TENSORS:
        return pa.fixed_shape_tensor(element, tuple(d for d in row if isinstance(d, int))), dtype
    kind = element
    for _ in row:
        kind = pa.list_(kind)
    return kind, dtype


def column_of(
    pieces: Sequence[tuple[Sequence[int], Array]],
    count: int,
    param: ParamInfo,
    refused: Mapping[int, str],
) -> Any:
    """A column of `count` rows from pieces, each the numbers of rows and their tensors [rows,
    *shape]. Rows that were refused are in no piece, and become null."""
    kind, dtype = output_type(param)
    row = (param.shape or ())[1:]
    mask = None
    if refused:
        mask = np.zeros(count, bool)
        mask[list(refused)] = True
    if static_size(row) is None or (len(row) > 1 and not _HAS_NULL_TENSORS):
        return _ragged(pieces, count, kind, dtype, row, mask)
    shape = tuple(d for d in row if isinstance(d, int))
    if len(pieces) == 1 and len(pieces[0][0]) == count:
        stacked = np.ascontiguousarray(pieces[0][1], dtype)
    else:
        stacked = np.zeros((count, *shape), dtype)
        for rows, tensors in pieces:
            stacked[np.asarray(rows)] = tensors
    if not shape:
        return pa.array(stacked, type=kind, mask=mask)
    storage = pa.array(stacked.reshape(-1))
    if isinstance(kind, pa.FixedShapeTensorType):
        arrow_mask = None if mask is None else pa.array(mask)
        fixed = pa.FixedSizeListArray.from_arrays(storage, type=kind.storage_type, mask=arrow_mask)
        return pa.ExtensionArray.from_storage(kind, fixed)
    sizes = np.full(count, shape[0])
    if mask is not None:
        sizes[mask], storage = 0, pa.array(stacked[~mask].reshape(-1))
    return _lists(sizes, storage, kind, mask)


def _lists(
    sizes: npt.NDArray[np.integer], values: Any, kind: Any, mask: npt.NDArray[np.bool_] | None
) -> Any:
    """Lists of so many values each. A null one has none: before pyarrow 25 Parquet's writer refuses
    others."""
    total = int(np.sum(sizes, dtype=np.int64))
    if total >= 2**31:
        raise UserError(
            f"a column of {total} elements, and a list of Arrow ends below 2147483648",
            code="column-shape",
            hint="score fewer rows at once",
        )
    ends = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    masked = {} if mask is None else {"mask": pa.array(mask)}
    return pa.ListArray.from_arrays(ends, values, type=kind, **masked)


def _ragged(
    pieces: Sequence[tuple[Sequence[int], Array]],
    count: int,
    kind: Any,
    dtype: np.dtype[Any],
    row: Sequence[Dim],
    mask: npt.NDArray[np.bool_] | None,
) -> Any:
    """Nested lists, for tensors whose sizes differ from row to row."""
    row_tensors: list[Array] = [np.zeros((0,) * len(row), dtype)] * count
    for rows, tensors in pieces:
        for r, tensor in zip(rows, tensors, strict=True):
            row_tensors[r] = np.ascontiguousarray(tensor, dtype)
    values = pa.array(np.concatenate([t.reshape(-1) for t in row_tensors] or [np.empty(0, dtype)]))
    kinds = [kind]
    for _ in row[1:]:
        kinds.append(kinds[-1].value_type)
    for level in reversed(range(len(row))):
        sizes = [n for t in row_tensors for n in [t.shape[level]] * math.prod(t.shape[:level])]
        values = _lists(np.asarray(sizes, int), values, kinds[level], None if level else mask)
    return values
