"""Operators that move elements: each output element is one input element, or a constant.

Programs clamp every index that may be out of bounds, even below a `select`, because both sides of a
`select` are evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    cast,
    const,
    int_value,
    logical_and,
    maximum,
    minimum,
    select,
)
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops import attribute as at
from tensorkiln.ops.attribute import ADDRESSES
from tensorkiln.ops.need import Needs
from tensorkiln.ops.op import Element, Infer, NumpyRef, OpDef, Operands, Program, TensorIn
from tensorkiln.ops.rules import (
    INTEGER,
    Shape,
    bad_attribute,
    broadcast_index,
    broadcast_shapes,
    clamp,
    extents,
    mismatch,
    normal_axis,
    require_addressable,
    require_dtype,
    require_same_dtype,
    require_value,
    same_extent,
    show_shape,
    show_type,
)
from tensorkiln.ops.shape_needs import PAD_NEEDS, RESHAPE_NEEDS, SLICE_NEEDS, TAKE_NEEDS

Ins = Sequence[TensorIn]
Arrays = Sequence[np.ndarray]

# --- reshape: row-major order, split into groups of dimensions with equal element counts ---------


def _infer_reshape(types: Operands, a: Attrs) -> TensorType:
    return TensorType(extents(a.shape), types[0].dtype)


def _prefixes(shape: Shape) -> list[Expr]:
    """Return the products of the first 0, 1, ... extents: [1, a, a*b, ...]."""
    out: list[Expr] = [IntImm(1)]
    for d in shape:
        out.append(simplify(out[-1] * d))
    return out


def reshape_groups(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Return the finest split of both shapes into consecutive ranges of dimensions with equal
    element counts: for `[B, S, 768] -> [B, S, 12, 64]` it is B:B, S:S, 768:(12, 64). The last group
    has all that is not proved. The shapes must have equal, non-zero element counts."""
    old_prefixes, new_prefixes = _prefixes(old), _prefixes(new)
    groups, i, j = [], 0, 0
    while (i, j) != (len(old), len(new)):
        ends = sorted(
            (p + q, p, q)
            for p in range(i, len(old) + 1)
            for q in range(j, len(new) + 1)
            if (p, q) != (i, j) and same_extent(old_prefixes[p], new_prefixes[q])
        )
        _, p, q = ends[0] if ends else (0, len(old), len(new))
        groups.append((range(i, p), range(j, q)))
        i, j = p, q
    return groups


def reshaped_index(old: Shape, new: Shape, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index in shape `old` of the element that is at `index` in shape `new`."""
    # An empty tensor is never read, and element counts of 0 do not tell groups apart.
    empty = any(int_value(d) == 0 for d in old)
    indices: list[Expr] = [IntImm(0)] * len(old)
    for olds, news in [] if empty else reshape_groups(old, new):
        linear: Expr = IntImm(0)
        for d in news:
            linear = linear * new[d] + index[d]
        for d in reversed(olds[1:]):
            indices[d] = linear % old[d]
            linear = linear // old[d]
        if olds:
            indices[olds[0]] = linear
    return tuple(indices)


def _program_reshape(ins: Ins, a: Attrs, out: TensorType) -> Element:
    old = ins[0].type.shape
    return lambda *index: ins[0](*reshaped_index(old, out.shape, index))


# --- transpose, broadcast_to, tile ---------------------------------------------------------------


def _infer_transpose(types: Operands, a: Attrs) -> TensorType:
    x = types[0]
    if sorted(a.axes) != list(range(x.ndim)):
        raise bad_attribute("transpose", "axes", f"a permutation of {x.ndim} axes", repr(a.axes))
    return TensorType(tuple(x.shape[d] for d in a.axes), x.dtype)


def _program_transpose(ins: Ins, a: Attrs, out: TensorType) -> Element:
    inverse = [a.axes.index(d) for d in range(len(a.axes))]
    return lambda *index: ins[0](*(index[k] for k in inverse))


def _infer_broadcast_to(types: Operands, a: Attrs) -> TensorType:
    shape = extents(a.shape)
    joint_shape = broadcast_shapes("broadcast_to", ("shape", "x"), [shape, types[0].shape])
    if len(joint_shape) != len(shape) or not all(map(same_extent, joint_shape, shape)):
        expected = f"a shape that broadcasts to {show_shape(shape)}"
        raise mismatch("broadcast_to", "x", expected, show_type(types[0]))
    return TensorType(shape, types[0].dtype)


def _program_broadcast_to(ins: Ins, a: Attrs, out: TensorType) -> Element:
    return lambda *index: ins[0](*broadcast_index(ins[0].type.shape, index))


def _infer_tile(types: Operands, a: Attrs) -> TensorType:
    x, repeats = types[0], extents(a.repeats)
    if len(repeats) != x.ndim:
        raise bad_attribute("tile", "repeats", f"{x.ndim} repeats", show_shape(repeats))
    pairs = list(zip(x.shape, repeats, strict=True))
    numbers = [(int_value(d), int_value(r)) for d, r in pairs]
    require_addressable("tile", "the extent", [(d or 0) * (r or 0) for d, r in numbers])
    return TensorType(tuple(simplify(d * r) for d, r in pairs), x.dtype)


def _program_tile(ins: Ins, a: Attrs, out: TensorType) -> Element:
    shape = ins[0].type.shape

    def element(*index: Expr) -> Expr:
        # `%` by an extent of 0 is left out: nothing is read from an empty operand.
        return ins[0](
            *(
                i if int_value(r) == 1 or int_value(d) == 0 else i % d
                for i, d, r in zip(index, shape, a.repeats, strict=True)
            )
        )

    return element


# --- slice, concat, take -------------------------------------------------------------------------


def _infer_slice(types: Operands, a: Attrs) -> TensorType:
    x, shape = types[0], extents(a.shape)
    for key in ("begin", "strides", "shape"):
        values = a[key]
        if len(values) != x.ndim:
            raise bad_attribute("slice", key, f"{x.ndim} value(s)", repr(values))
    for begin, stride in zip(map(int_value, a.begin), map(int_value, a.strides), strict=True):
        if stride is not None and not 0 < abs(stride) <= ADDRESSES:
            expected = f"strides other than 0, of at most {ADDRESSES}"
            raise bad_attribute("slice", "strides", expected, repr(a.strides))
        if abs(begin or 0) > ADDRESSES:
            raise bad_attribute("slice", "begin", f"places below {ADDRESSES}", repr(a.begin))
    return TensorType(shape, x.dtype)


def _program_slice(ins: Ins, a: Attrs, out: TensorType) -> Element:
    def element(*index: Expr) -> Expr:
        return ins[0](*(i * s + b for i, s, b in zip(index, a.strides, a.begin, strict=True)))

    return element


def _np_slice(arrays: Arrays, a: Attrs) -> np.ndarray:
    picks = [b + s * np.arange(n) for b, s, n in zip(a.begin, a.strides, a.shape, strict=True)]
    return arrays[0][np.ix_(*picks)] if picks else arrays[0].copy()


def _infer_concat(types: Operands, a: Attrs) -> TensorType:
    names = [f"xs[{k}]" for k in range(len(types))]
    if not types:
        raise mismatch("concat", "xs", "one or more tensors", "none", code="operand-count")
    first, dtype = types[0], require_same_dtype("concat", names, types)
    axis = normal_axis("concat", a.axis, first.ndim)
    total: Expr = IntImm(0)
    for name, t in zip(names, types, strict=True):
        fits = t.ndim == first.ndim and all(
            d == axis or same_extent(t.shape[d], first.shape[d]) for d in range(first.ndim)
        )
        if not fits:
            expected = f"{show_shape(first.shape)} except in dimension {axis} (as 'xs[0]')"
            raise mismatch("concat", name, expected, show_type(t))
        total = total + t.shape[axis]
    shape = (*first.shape[:axis], simplify(total), *first.shape[axis + 1 :])
    return TensorType(shape, dtype)


def _program_concat(ins: Ins, a: Attrs, out: TensorType) -> Element:
    """Read every operand at a clamped index and select one of the values. An operand whose symbolic
    extent is 0 at run time is still read at index 0, so its memory must hold one element."""
    axis = normal_axis("concat", a.axis, out.ndim)
    parts = [x for x in ins if int_value(x.type.shape[axis]) != 0]

    def element(*index: Expr) -> Expr:
        offset: Expr = IntImm(0)
        pieces: list[tuple[Expr, Expr]] = []
        for k, x in enumerate(parts):
            extent = x.type.shape[axis]
            i = index[axis] - offset
            if len(parts) > 1:
                # Indices are never below the start of the first part or past the end of the last.
                i = minimum(i, extent - 1) if k < len(parts) - 1 else i
                i = maximum(i, 0) if k or int_value(extent) is None else i
            offset = simplify(offset + extent)
            pieces.append((offset, x(*index[:axis], i, *index[axis + 1 :])))
        if not pieces:
            return const(0, out.dtype)
        value = pieces[-1][1]
        for end, piece in reversed(pieces[:-1]):
            value = select(index[axis] < end, piece, value)
        return value

    return element


def _infer_take(types: Operands, a: Attrs) -> TensorType:
    x, indices = types
    require_dtype("take", "indices", indices, INTEGER)
    axis = normal_axis("take", a.axis, x.ndim)
    return TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)


def _program_take(ins: Ins, a: Attrs, out: TensorType) -> Element:
    """Negative indices count from the end. Indices out of range are clamped to it, so that no index
    reads outside of the operand: where they are errors, `check_indices` has them found before."""
    x, indices = ins
    axis = normal_axis("take", a.axis, x.type.ndim)
    extent = x.type.shape[axis]

    def element(*index: Expr) -> Expr:
        i = cast(indices(*index[axis : axis + indices.type.ndim]), INT64)
        if not indices.type.dtype.is_unsigned:
            i = select(i < 0, i + extent, i)
        return x(*index[:axis], clamp(i, extent), *index[axis + indices.type.ndim :])

    return element


def _np_take(arrays: Arrays, a: Attrs) -> np.ndarray:
    x, indices = arrays
    extent = x.shape[a.axis]
    i = indices.astype(np.int64)
    i = np.clip(np.where(i < 0, i + extent, i), 0, max(extent - 1, 0))
    return np.take(x, i, axis=a.axis)


# --- pad -----------------------------------------------------------------------------------------


def _infer_pad(types: Operands, a: Attrs) -> TensorType:
    x = types[0]
    require_value("pad", "value", a.value, x.dtype)
    before, after = (extents(a[key]) for key in ("before", "after"))
    for key, widths in (("before", before), ("after", after)):
        if len(widths) != x.ndim:
            raise bad_attribute("pad", key, f"{x.ndim} width(s)", show_shape(widths))
        require_addressable("pad", f"the width {key}", widths)
    shape = tuple(simplify(b + d + e) for b, d, e in zip(before, x.shape, after, strict=True))
    return TensorType(shape, x.dtype)


def _program_pad(ins: Ins, a: Attrs, out: TensorType) -> Element:
    x = ins[0]
    shape = x.type.shape
    padded = [
        d for d in range(len(shape)) if int_value(a.before[d]) != 0 or int_value(a.after[d]) != 0
    ]

    def element(*index: Expr) -> Expr:
        source, conds = list(index), []
        for d in padded:
            i = index[d] - a.before[d]
            low = int_value(a.before[d]) != 0
            high = int_value(a.after[d]) != 0
            if a.mode == "reflect":
                mirrored = maximum(i, -i) if low else i
                last = shape[d] - 1
                source[d] = minimum(mirrored, last * 2 - mirrored) if high else mirrored
                continue
            conds += [i >= 0] if low else []
            conds += [i < shape[d]] if high else []
            i = minimum(i, shape[d] - 1) if high else i
            source[d] = maximum(i, 0) if low or int_value(shape[d]) is None else i
        fill = const(a.value, out.dtype)
        if a.mode != "constant" or not padded:
            return x(*source)
        if any(int_value(shape[d]) == 0 for d in padded):
            return fill
        return select(logical_and(*conds), x(*source), fill)

    return element


def _np_pad(arrays: Arrays, a: Attrs) -> np.ndarray:
    x, widths = arrays[0], list(zip(a.before, a.after, strict=True))
    if x.ndim == 0:
        return x.copy()
    if a.mode == "constant":
        return np.pad(x, widths, constant_values=x.dtype.type(a.value))
    return np.pad(x, widths, mode=a.mode)


# --- full, arange, relayout ----------------------------------------------------------------------


def _infer_full(types: Operands, a: Attrs) -> TensorType:
    dtype = DType(a.dtype)
    require_value("full", "value", a.value, dtype)
    return TensorType(extents(a.shape), dtype)


def _program_full(ins: Ins, a: Attrs, out: TensorType) -> Element:
    return lambda *index: const(a.value, out.dtype)


def _infer_arange(types: Operands, a: Attrs) -> TensorType:
    dtype = DType(a.dtype)
    for key in ("start", "step"):
        require_value("arange", key, a[key], dtype)
    return TensorType(extents((a.count,)), dtype)


def _program_arange(ins: Ins, a: Attrs, out: TensorType) -> Element:
    """start + i * step for each element by itself, so that rounding errors do not add up."""

    def term(value: object) -> Expr:
        if isinstance(value, Expr):
            return cast(value, out.dtype)
        return const(value, out.dtype)  # type: ignore[arg-type]

    return lambda i: cast(i, out.dtype) * term(a.step) + term(a.start)


def _np_arange(arrays: Arrays, a: Attrs) -> np.ndarray:
    return np.asarray((np.arange(a.count) * a.step + a.start).astype(a.dtype))


def _infer_relayout(types: Operands, a: Attrs) -> TensorType:
    layout = Layout.parse(a.layout)
    if sorted({axis.dim for axis in layout.axes}) != list(range(types[0].ndim)):
        expected = f"a layout of {types[0].ndim} dimension(s)"
        raise bad_attribute("relayout", "layout", expected, repr(a.layout))
    return types[0].with_layout(layout)


def _np_full(arrays: Arrays, a: Attrs) -> np.ndarray:
    return np.full(a.shape, a.value, a.dtype)


def _injective(
    name: str,
    inputs: tuple[str, ...],
    infer: Infer,
    program: Program,
    numpy: NumpyRef,
    needs: Needs | None = None,
    **attrs: at.Attribute,
) -> OpDef:
    return OpDef(name, inputs, attrs, "injective", infer, numpy, program, needs)


_ALL = (
    _injective(
        "reshape", ("x",), _infer_reshape, _program_reshape,
        lambda arrays, a: arrays[0].reshape(a.shape), RESHAPE_NEEDS, shape=at.extents(),
    ),
    _injective(
        "transpose", ("x",), _infer_transpose, _program_transpose,
        lambda arrays, a: np.array(arrays[0].transpose(a.axes), order="C"), axes=at.axes(),
    ),
    _injective(
        "broadcast_to", ("x",), _infer_broadcast_to, _program_broadcast_to,
        lambda arrays, a: np.broadcast_to(arrays[0], a.shape).copy(), shape=at.extents(),
    ),
    _injective(
        "slice", ("x",), _infer_slice, _program_slice, _np_slice, SLICE_NEEDS,
        begin=at.places(), strides=at.places(), shape=at.extents(),
    ),
    _injective(
        "concat", ("xs*",), _infer_concat, _program_concat,
        lambda arrays, a: np.concatenate(list(arrays), axis=a.axis), axis=at.axis(),
    ),
    _injective(
        "pad", ("x",), _infer_pad, _program_pad, _np_pad, PAD_NEEDS,
        before=at.extents(), after=at.extents(), value=at.element(0.0),
        mode=at.choice("constant", "edge", "reflect", default="constant"),
    ),
    _injective(
        "take", ("x", "indices"), _infer_take, _program_take, _np_take, TAKE_NEEDS,
        axis=at.axis(0), outside=at.choice("error", "clamp", default="error"),
    ),
    _injective(
        "tile", ("x",), _infer_tile, _program_tile,
        lambda arrays, a: np.tile(arrays[0], a.repeats), repeats=at.extents(),
    ),
    _injective(
        "full", (), _infer_full, _program_full, _np_full,
        shape=at.extents(), value=at.element(), dtype=at.dtype("float32"),
    ),
    _injective(
        "arange", (), _infer_arange, _program_arange, _np_arange,
        start=at.scalar(), step=at.scalar(), count=at.extent(), dtype=at.dtype("int64"),
    ),
    _injective(
        "relayout", ("x",), _infer_relayout, lambda ins, a, out: ins[0].element,
        lambda arrays, a: arrays[0].copy(), layout=at.layout(),
    ),
)  # fmt: skip

SHAPE: dict[str, OpDef] = {op.name: op for op in _ALL}
