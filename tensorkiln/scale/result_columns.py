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


def output_type(param: ParamInfo) -> tuple[Any, np.dtype[Any]]:
    """The Arrow type of a result's column, and the NumPy type of its elements. One number per row
    is a plain column, one dimension a list; several dimensions are Arrow's tensors of fixed shape,
    or nested lists where a dimension is symbolic. Raises UserError (codes `column-type`,
    `column-shape`) for element types that Arrow lacks, and for rows without elements."""
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
    if len(row) > 1 and static_size(row):
        return pa.fixed_shape_tensor(element, tuple(d for d in row if isinstance(d, int))), dtype
    kind = element
    for d in reversed(row):
        kind = pa.list_(kind, d) if isinstance(d, int) else pa.list_(kind)
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
    if static_size(row) is None:
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
    arrow_mask = None if mask is None else pa.array(mask)
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(kind, _fixed(storage, kind.storage_type, arrow_mask))
    return _fixed(storage, kind, arrow_mask)


def _fixed(values: Any, kind: Any, mask: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)


def _ragged(
    pieces: Sequence[tuple[Sequence[int], Array]],
    count: int,
    kind: Any,
    dtype: np.dtype[Any],
    row: Sequence[Dim],
    mask: npt.NDArray[np.bool_] | None,
) -> Any:
    """Nested lists, for tensors whose sizes differ from row to row."""
    empty_shape = tuple(d if isinstance(d, int) else 0 for d in row)
    row_tensors: list[Array] = [np.zeros(empty_shape, dtype)] * count
    for rows, tensors in pieces:
        for r, tensor in zip(rows, tensors, strict=True):
            row_tensors[r] = np.ascontiguousarray(tensor, dtype)
    values = pa.array(np.concatenate([t.reshape(-1) for t in row_tensors] or [np.empty(0, dtype)]))
    kinds = [kind]
    for _ in row[1:]:
        kinds.append(kinds[-1].value_type)
    for level in reversed(range(len(row))):
        level_mask = None if mask is None or level else pa.array(mask)
        if pa.types.is_fixed_size_list(kinds[level]):
            values = _fixed(values, kinds[level], level_mask)
            continue
        sizes = [n for t in row_tensors for n in [t.shape[level]] * math.prod(t.shape[:level])]
        ends = np.cumsum([0, *sizes], dtype=np.int32)
        if level_mask is None:
            values = pa.ListArray.from_arrays(pa.array(ends), values, type=kinds[level])
        else:
            values = pa.ListArray.from_arrays(
                pa.array(ends), values, type=kinds[level], mask=level_mask
            )
    return values
