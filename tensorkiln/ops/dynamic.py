"""Operators whose result shape depends on operand values, such as `nonzero`. Host code runs each
of them as a step of its own.

Their type rules accept operands of unknown shape and return types without extents
(`AnyTensorType`): the result has a shape only at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import BOOL, FLOAT32, INT64, DType
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import AnyTensorType, PrimType, ShapeType, TensorType, TupleType, Type
from tensorkiln.ir.type_text import show
from tensorkiln.ops import attribute as at
from tensorkiln.ops.op import Signature
from tensorkiln.ops.rules import mismatch, normal_axis

Tensor = TensorType | AnyTensorType
Arrays = Sequence[Any]


@dataclass(frozen=True, slots=True)
class DynamicOp(Signature):
    """An operator with a data-dependent result shape. `infer` raises UserError if the operand types
    do not fit. `numpy` computes the result and raises ValueError for invalid operand values, such
    as a slice step of 0."""

    infer: Callable[[Sequence[Type], Attrs], Type]
    numpy: Callable[[Arrays, Attrs], Any]


def _tensor(op: str, name: str, t: Type, dtype: DType | None = None, ndim: int = -1) -> Tensor:
    """Return the operand's tensor type; raise UserError if it is not a tensor, or its dtype or rank
    is known and is not `dtype` or `ndim` (None, -1: any)."""
    if not isinstance(t, Tensor):
        raise mismatch(op, name, "a tensor", show(t), code="operand-kind")
    if dtype is not None and t.dtype not in (None, dtype):
        raise mismatch(op, name, str(dtype), show(t), code="dtype-mismatch")
    if ndim >= 0 and t.ndim not in (None, ndim):
        raise mismatch(op, name, f"{ndim} dimension(s)", show(t), code="rank-mismatch")
    return t


def _check_axis(op: str, x: Tensor, axis: int | None) -> None:
    if axis is not None and x.ndim is not None:
        normal_axis(op, axis, x.ndim)


# --- nonzero -------------------------------------------------------------------------------------


def _infer_nonzero(types: Sequence[Type], a: Attrs) -> Type:
    _tensor("nonzero", "x", types[0])
    return AnyTensorType(2, INT64)


def _np_nonzero(arrays: Arrays, a: Attrs) -> np.ndarray:
    x = arrays[0]
    indices = np.nonzero(np.atleast_1d(x))
    return np.array(indices if x.ndim else indices[:0], np.int64).reshape(x.ndim, len(indices[0]))


# --- compress ------------------------------------------------------------------------------------


def _infer_compress(types: Sequence[Type], a: Attrs) -> Type:
    x = _tensor("compress", "x", types[0])
    _tensor("compress", "condition", types[1], BOOL, 1)
    _check_axis("compress", x, a.axis)
    return AnyTensorType(1 if a.axis is None else x.ndim, x.dtype)


# --- unique --------------------------------------------------------------------------------------


def _infer_unique(types: Sequence[Type], a: Attrs) -> Type:
    x = _tensor("unique", "x", types[0])
    _check_axis("unique", x, a.axis)
    values = AnyTensorType(1 if a.axis is None else x.ndim, x.dtype)
    return TupleType((values, *[AnyTensorType(1, INT64)] * 3))


def _np_unique(arrays: Arrays, a: Attrs) -> tuple[np.ndarray, ...]:
    """Unique values, the index of the first occurrence of each, for each input element the index of
    its value, and the number of occurrences: the outputs of ONNX Unique."""
    x = arrays[0] if a.axis is not None else arrays[0].reshape(-1)
    axis = 0 if a.axis is None else a.axis
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not a.sorted:  # in order of first appearance
        order = np.argsort(first, kind="stable")
        place = np.argsort(order, kind="stable")
        values, inverse = np.take(values, order, axis), place[inverse]
        first, counts = first[order], counts[order]
    return values, *(v.astype(np.int64) for v in (first, inverse, counts))


# --- slice_dynamic: bounds are operands ----------------------------------------------------------

_BOUNDS = ("starts", "ends", "axes", "steps")


def _infer_slice(types: Sequence[Type], a: Attrs) -> Type:
    x = _tensor("slice_dynamic", "x", types[0])
    for name, t in zip(_BOUNDS, types[1:], strict=False):
        if isinstance(t, ShapeType):
            continue
        if isinstance(t, TupleType) and all(isinstance(f, PrimType) for f in t.fields):
            continue
        bounds = _tensor("slice_dynamic", name, t, ndim=1)
        if bounds.dtype is not None and not bounds.dtype.is_int:
            raise mismatch("slice_dynamic", name, "integers", show(t), code="dtype-mismatch")
    return AnyTensorType(x.ndim, x.dtype)


def _np_slice(arrays: Arrays, a: Attrs) -> np.ndarray:
    x, starts, ends, *axes_and_steps = arrays
    axes = axes_and_steps[0] if axes_and_steps else range(len(starts))
    steps = axes_and_steps[1] if len(axes_and_steps) > 1 else [1] * len(starts)
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(f"{a.node}: axis {axis} of a tensor with {x.ndim} dimensions")
        if step == 0:
            raise ValueError(f"{a.node}: the step of axis {axis} is 0")
        index[int(axis)] = _python_slice(int(start), int(end), int(step), x.shape[int(axis)])
    return np.ascontiguousarray(x[tuple(index)])


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    """Return the `slice` for ONNX bounds: negative ones count from the end, then all are clamped to
    the dimension. With a negative step, -1 after clamping is the position before element 0."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start, end = (min(max(v, low), high) for v in (start, end))
    return slice(start, end if end >= 0 else None, step) if start >= 0 else slice(0, 0)


# --- non_max_suppression -------------------------------------------------------------------------


def _infer_nms(types: Sequence[Type], a: Attrs) -> Type:
    for name, t in zip(("boxes", "scores"), types, strict=False):
        _tensor("non_max_suppression", name, t, FLOAT32, 3)
    return AnyTensorType(2, INT64)


def _np_nms(arrays: Arrays, a: Attrs) -> np.ndarray:
    """Return int64 rows (batch, class, box), for each class by decreasing score: ONNX
    NonMaxSuppression."""
    boxes, scores = arrays[:2]
    limit, overlap, threshold = (_number(arrays, k) for k in (2, 3, 4))
    corners = _corners(boxes, a.center_point_box)
    rows: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            selection: list[int] = []
            for box in np.argsort(-scores[batch, kind], kind="stable"):
                if len(selection) >= (limit or 0):
                    break
                if threshold is not None and not scores[batch, kind, box] > threshold:
                    continue
                if all(_overlap(corners[batch], box, k) <= (overlap or 0) for k in selection):
                    selection.append(int(box))
            rows += [(batch, kind, box) for box in selection]
    return np.array(rows, np.int64).reshape(-1, 3)


def _number(arrays: Arrays, k: int) -> float | None:
    return float(np.asarray(arrays[k]).reshape(())) if k < len(arrays) else None


def _corners(boxes: np.ndarray, center: bool) -> np.ndarray:
    """Return boxes [batch, box, 4] as the low and the high corner. Any two opposite corners may be
    given or, with `center`, the centre and the size."""
    a, b = boxes[..., :2], boxes[..., 2:]
    if center:
        a, b = a - b / 2, a + b / 2
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _overlap(corners: np.ndarray, i: int, k: int) -> float:
    """Intersection over union of boxes i and k; 0 if they do not intersect."""
    box_i, box_k = corners[i], corners[k]
    sides = np.minimum(box_i[2:], box_k[2:]) - np.maximum(box_i[:2], box_k[:2])
    if (sides <= 0).any():
        return 0.0
    shared = sides[0] * sides[1]
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (box_i, box_k)]
    whole = areas[0] + areas[1] - shared
    return float(shared / whole) if whole > 0 else 0.0


# --- sized ---------------------------------------------------------------------------------------


def _infer_sized(types: Sequence[Type], a: Attrs) -> Type:
    x = _tensor("sized", "x", types[0], ndim=1)
    if x.dtype is not None and not (x.dtype.is_int and not x.dtype.is_unsigned):
        raise mismatch("sized", "x", "signed integers", show(x), code="dtype-mismatch")
    count = int_value(x.shape[0]) if isinstance(x, TensorType) else None
    return AnyTensorType(None if count is None else count + 1, BOOL)


def _np_sized(arrays: Arrays, a: Attrs) -> np.ndarray:
    """Return a tensor of shape [x[0], x[1], ..., 0], which has no elements. A `MatchCast` of it
    binds the elements of x to symbolic dimensions. Of a negative one the error says what `what` is,
    a value `source` or x, and what was `expected` of it."""
    if min(arrays[0], default=0) < 0:
        if a.what:
            source = arrays[0] if len(arrays) < 2 or arrays[1] is None else arrays[1]
            value = list(map(int, np.ravel(source)))
            text = value[0] if len(value) == 1 else value
            raise ValueError(f"{a.what} is {text}, expected {a.expected}")
        raise ValueError(f"a size is {min(arrays[0])}")
    return np.empty((*map(int, arrays[0]), 0), np.bool_)


# --- append --------------------------------------------------------------------------------------


def _infer_append(types: Sequence[Type], a: Attrs) -> Type:
    stack, rows = (_tensor("append", n, t) for n, t in zip(("stack", "rows"), types, strict=True))
    if stack.ndim == 0:
        raise mismatch("append", "stack", "1 dimension or more", show(stack), code="rank-mismatch")
    _tensor("append", "rows", rows, stack.dtype, -1 if stack.ndim is None else stack.ndim)
    ndim = rows.ndim if stack.ndim is None else stack.ndim
    return AnyTensorType(ndim, stack.dtype or rows.dtype)


_ALL = (
    DynamicOp("nonzero", ("x",), {}, _infer_nonzero, _np_nonzero),
    DynamicOp(
        "compress",
        ("x", "condition"),
        {"axis": at.axis().or_none()},
        _infer_compress,
        lambda arrays, a: np.compress(arrays[1], arrays[0], axis=a.axis),
    ),
    DynamicOp(
        "unique",
        ("x",),
        {"axis": at.axis().or_none(), "sorted": at.flag(True)},
        _infer_unique,
        _np_unique,
    ),
    DynamicOp(
        "slice_dynamic",
        ("x", "starts", "ends", "axes?", "steps?"),
        {"node": at.text("slice")},
        _infer_slice,
        _np_slice,
    ),
    DynamicOp(
        "sized",
        ("x", "shown?"),
        {"what": at.text(""), "expected": at.text("0 or more")},
        _infer_sized,
        _np_sized,
    ),
    DynamicOp(
        "append",
        ("stack", "rows"),
        {},
        _infer_append,
        lambda arrays, a: np.concatenate([arrays[0], arrays[1]]),
    ),
    DynamicOp(
        "non_max_suppression",
        ("boxes", "scores", "max_output_boxes?", "iou_threshold?", "score_threshold?"),
        {"center_point_box": at.flag(False)},
        _infer_nms,
        _np_nms,
    ),
)

DYNAMIC: dict[str, DynamicOp] = {op.name: op for op in _ALL}
