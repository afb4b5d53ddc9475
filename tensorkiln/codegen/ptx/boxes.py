"""Finds the nests of copies that the tensor memory accelerator (TMA) of a GPU can make by itself.

TMA copies a *box*, a rectangle of rows and columns of a tensor, to shared memory, given only where
the box begins. Elements outside of the tensor become zeros. Rows of the box have 128 bytes, and
their pieces of 16 bytes are permuted by the last bits of the row's number, so that columns lie in
different banks. A ring may have its copies made so (`tensor_maps` of `ir/rings.py`). This file
decides, from the statements of a nest and not from who wrote them, whether the nest copies exactly
what the hardware would: indices and conditions are compared as expressions, and the places in
shared memory by going through all pieces. If not, it says why, and threads make the copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.codegen.host.tensor_maps import (
    MAPPED_TYPES,
    MOST_MAPS,
    MOST_PARAMS,
    SWIZZLE_BYTES,
    Size,
    TensorMap,
)
from tensorkiln.codegen.llvm.addresses import alignment
from tensorkiln.codegen.ptx.box_pieces import (
    PATTERN_BYTES,
    PATTERN_ROWS,
    SOURCE_ALIGN,
    CopyPiece,
    NoBox,
    TensorMapBox,
    conjuncts,
    first_lane,
    is_zero,
    param_of,
    require,
    require_vectors,
    tensor_pieces,
)
from tensorkiln.codegen.ptx.loop_values import Values, loop_values, values_of
from tensorkiln.codegen.ptx.window_boxes import window_box
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Var, int_value
from tensorkiln.ir.rings import ring_of
from tensorkiln.ir.stmt import For, PrimFunc
from tensorkiln.ir.visit import free_vars, substitute, walk_stmt

_MOST_ROWS = 256  # of a box
_DIMS = range(2, 6)  # of a tensor
# Indices are int32, and may be beyond the last one by less than a tile.
_MOST_DIM, _MOST_STRIDE = (1 << 31) - 1024, 1 << 40
_NO_ROWS = "its rows and columns do not follow each other"
_PARTS = "it has zeros within the tensor, or reads a part of it"


def boxes_of(f: PrimFunc) -> list[tuple[For, TensorMapBox | str]]:
    """The nests of copies of rings that allow TMA: for each the boxes that it copies, or the reason
    why threads copy it. A kernel can have only so many maps, each of which is a parameter."""
    boxes: list[tuple[For, TensorMapBox | str]] = []
    rings = (ring_of(s) for s in walk_stmt(f.body))
    for nest in (n for r in rings if r is not None and r.tensor_maps for n in r.copies):
        try:
            boxes.append((nest, _box(f, nest)))
        except NoBox as reason:
            boxes.append((nest, _windows(f, nest) or str(reason)))
    room = max(0, min(MOST_MAPS, MOST_PARAMS - len(f.params)))
    maps = maps_of(boxes)[:room]
    return [
        (nest, box if isinstance(box, str) or box.map in maps else "the kernel has no room for it")
        for nest, box in boxes
    ]


def _windows(f: PrimFunc, nest: For) -> TensorMapBox | None:
    try:
        return window_box(f, nest)
    except NoBox:
        return None


def maps_of(boxes: list[tuple[For, TensorMapBox | str]]) -> tuple[TensorMap, ...]:
    """The maps that boxes need, each once."""
    return tuple(dict.fromkeys(box.map for _, box in boxes if isinstance(box, TensorMapBox)))


# ---- what a nest does ----------------------------------------------------------------------------


def _box(f: PrimFunc, nest: For) -> TensorMapBox:
    pieces, source, into = tensor_pieces(nest)
    first = pieces[0].copy
    param, tensor = param_of(f, source), _tensor(f, source)
    lanes = SOURCE_ALIGN // source.dtype.bytes
    require_vectors(pieces, lanes)
    # Where the first piece comes from and where it goes; then the distance of every other piece
    # from these, which must be a number for each round of the loops.
    zeros: dict[Var, Expr] = dict.fromkeys((v for p in pieces for v in p.loops), IntImm(0))
    start, place = (
        tuple(simplify(substitute(first_lane(i), zeros)) for i in m.indices)
        for m in (first.load, first.store)
    )
    steps = [int_value(s) or 0 for s in into.strides]
    place_of: dict[tuple[int, ...], int] = {}
    count = 0
    for p in pieces:
        coordinates = _distances(p, p.copy.load.indices, start)
        places = np.dot(steps, _distances(p, p.copy.store.indices, place))
        place_of |= zip(map(tuple, coordinates.T.tolist()), places.tolist(), strict=True)
        count += len(places)
    require(count == len(place_of), "it copies elements several times")
    rows, axis, count = _shape(place_of, lanes, source.dtype.bytes)
    aligned = alignment(into, place) % PATTERN_BYTES == 0
    require(aligned, f"its place in shared memory is no multiple of {PATTERN_BYTES} bytes")
    tensor, start, axis = _divided(f, pieces, tensor, lanes, start, axis)
    box = [1] * len(tensor.dims)
    box[-1], box[axis] = SWIZZLE_BYTES // source.dtype.bytes, rows
    strides = tuple(s.times(source.dtype.bytes) for s in tensor.strides[:-1])
    tensor_map = TensorMap(
        param, source.dtype.name, tensor.dims[::-1], strides[::-1], tuple(box[::-1])
    )
    return TensorMapBox(tensor_map, source, start, into, place, count)


# ---- the tensor ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as a map describes it: extents and strides of its dimensions. `shape` are the
    extents as expressions of the program."""

    dims: tuple[Size, ...]
    strides: tuple[Size, ...]
    shape: tuple[Expr, ...]

    def divided(self, d: int, inner: int) -> _Tensor:
        """The tensor with dimension d as two, the inner of which has `inner` elements."""
        n = self.dims[d]
        whole = n.param is None and n.factor % inner == 0 and len(self.dims) + 1 in _DIMS
        require(whole, _PARTS)
        parts = Size(n.factor // inner), Size(inner)
        return _Tensor(
            (*self.dims[:d], *parts, *self.dims[d + 1 :]),
            (*self.strides[:d], self.strides[d].times(inner), *self.strides[d:]),
            (*self.shape[:d], *(IntImm(p.factor) for p in parts), *self.shape[d + 1 :]),
        )


def _tensor(f: PrimFunc, source: Buffer) -> _Tensor:
    """The description of a tensor, if its type, sizes and strides are among those that a map can
    have."""
    require(source.dtype.name in MAPPED_TYPES, f"its elements are {source.dtype}")
    require(len(source.shape) in _DIMS, f"it has {len(source.shape)} dimensions")
    dims = tuple(_size(f, d) for d in source.shape)
    strides = tuple(_size(f, s) for s in source.strides)
    fits = all(0 < d.factor <= _MOST_DIM for d in dims)
    require(fits, "it has no elements, or too many")
    require(strides[-1] == Size(1), "elements of its rows are not adjacent")
    for stride, within in itertools.pairwise(strides):
        size = stride.times(source.dtype.bytes)
        fits = size.factor % SOURCE_ALIGN == 0 and 0 < size.factor < _MOST_STRIDE
        apart = f"its rows are {size.factor} bytes apart, no multiple of {SOURCE_ALIGN}"
        require(fits or size.param is not None, apart)
        require(fits, "how far its rows are apart is not known before it runs")
        contains = stride.factor % within.factor == 0 and within.param in (None, stride.param)
        require(contains, "its dimensions do not contain each other")
    # TMA writes zeros behind a row that ends within a piece of 16 bytes; threads would copy what
    # memory has there.
    row = dims[-1].times(source.dtype.bytes)
    require(row.param is None, "the length of its rows is not known before it runs")
    whole = row.factor % SOURCE_ALIGN == 0
    require(whole, f"its rows have {row.factor} bytes, no whole pieces of {SOURCE_ALIGN}")
    return _Tensor(dims, strides, source.shape)


def _size(f: PrimFunc, e: Expr) -> Size:
    """An extent or stride: a number, or a number times an int64 parameter, which a launch can
    compute."""
    n = int_value(e)
    if n is not None:
        return Size(n)
    variables = free_vars(e)
    param = next((i for i, p in enumerate(f.params) if [p] == variables), None)
    if param is not None and variables[0].dtype == INT64:
        factor = int_value(simplify(substitute(e, {variables[0]: IntImm(1)})))
        if factor is not None and factor > 0 and is_zero(e - variables[0] * factor):
            return Size(factor, param)
    raise NoBox("its dimensions are not known before it runs")


# ---- indices and conditions ----------------------------------------------------------------------


def _distances(p: CopyPiece, indices: Sequence[Expr], start: Sequence[Expr]) -> Values:
    """The distances of indices from the start of a box, [index, iteration of the loops of the
    nest]. They may depend on these loops alone."""
    values = loop_values(p.loops)
    distances = [simplify(first_lane(i) - s) for i, s in zip(indices, start, strict=True)]
    rows = [
        np.broadcast_to(values_of(d, values, _NO_ROWS), prod(p.loops.values())) for d in distances
    ]
    return np.stack(rows)


def _divided(
    f: PrimFunc,
    pieces: Sequence[CopyPiece],
    tensor: _Tensor,
    lanes: int,
    start: tuple[Expr, ...],
    axis: int,
) -> tuple[_Tensor, tuple[Expr, ...], int]:
    """(the tensor, the start of the box in it, the dimension of its rows), such that the pieces are
    zero exactly outside of that tensor. A dimension that holds the rows of several matrices becomes
    two, so that the rows behind one matrix are outside of the tensor, and not rows of the next."""
    edges = [_edges(p, tensor, lanes) for p in pieces]
    require(all(e == edges[0] for e in edges), _PARTS)
    from_zero = {s.var for s in walk_stmt(f.body) if isinstance(s, For) and int_value(s.lo) == 0}
    for d, (inner, outer) in sorted(edges[0].items(), reverse=True):
        within = simplify(start[d] - outer * inner)
        # TMA writes zeros for rows before the first one too, where threads would read the matrix
        # before.
        require(all(_is_count(e, from_zero) for e in (outer, within)), _PARTS)
        tensor = tensor.divided(d, inner)
        start = (*start[:d], outer, within, *start[d + 1 :])
        axis += d <= axis
    return tensor, start, axis


def _edges(p: CopyPiece, tensor: _Tensor, lanes: int) -> dict[int, tuple[int, Expr]]:
    """Checks that a piece is zero outside of the tensor and nowhere else. A condition may also be
    that of one matrix of several in a dimension: for each such dimension, the rows of one matrix,
    and its number."""
    edges: dict[int, tuple[int, Expr]] = {}
    *outer, last = [first_lane(i) for i in p.copy.load.indices]
    for part in conjuncts(p.copy.cond):
        match part:
            case Binary("lt", a, b):
                past = a - b
            case Binary("le", a, b):
                past = a - b - 1
            case _:
                raise NoBox(_PARTS)
        if any(is_zero(past * n - (last - tensor.shape[-1])) for n in (1, lanes)):
            continue
        if any(is_zero(past - (i - n)) for i, n in zip(outer, tensor.shape, strict=False)):
            continue
        divided = ((d, _matrix(i - past, p)) for d, i in enumerate(outer) if d not in edges)
        d, matrix = next(((d, m) for d, m in divided if m is not None), (0, None))
        if matrix is None:
            raise NoBox(_PARTS)
        edges[d] = matrix
    return edges


def _matrix(end: Expr, p: CopyPiece) -> tuple[int, Expr] | None:
    """(rows of one matrix, its number), if `end`, the row after its last one, is (number + 1) *
    rows."""
    end = simplify(end)
    variables = free_vars(end)
    rows = int_value(simplify(substitute(end, dict.fromkeys(variables, IntImm(0)))))
    if rows is None or rows <= 0 or not set(variables).isdisjoint(p.loops):
        return None
    number = simplify(end // rows - 1)
    return (rows, number) if is_zero((number + 1) * rows - end) else None


def _is_count(e: Expr, from_zero: Collection[Var]) -> bool:
    """Whether an expression is provably not negative: sums, products, quotients and remainders of
    loop variables that begin at zero."""
    match e:
        case Var():
            return e in from_zero
        case Binary("add" | "mul" | "floordiv" | "floormod", a, b):
            return _is_count(a, from_zero) and _is_count(b, from_zero)
        case Cast(a):
            return _is_count(a, from_zero)
    n = int_value(e)
    return n is not None and n >= 0


# ---- shared memory -------------------------------------------------------------------------------


def _shape(place_of: Mapping[tuple[int, ...], int], lanes: int, size: int) -> tuple[int, int, int]:
    """(rows of a box, the dimension of the tensor that they run along, boxes side by side), from
    the place in shared memory of each piece by its place in the tensor. Checks that the pieces fill
    whole boxes, in the permuted order that the hardware writes."""
    across = SWIZZLE_BYTES // size  # elements of a row
    lower, upper = (
        [f(coordinates) for coordinates in zip(*place_of, strict=True)] for f in (min, max)
    )
    require(not any(lower), _NO_ROWS)
    moving = [d for d, n in enumerate(upper[:-1]) if n]
    require(len(moving) == 1, "it is no matrix of two of the tensor's dimensions")
    axis, rows, columns = moving[0], upper[moving[0]] + 1, upper[-1] + lanes
    is_box = rows % PATTERN_ROWS == 0 and rows <= _MOST_ROWS and columns % across == 0
    require(is_box, f"{rows} rows of {columns * size} bytes are no boxes")
    require(len(place_of) == rows * (columns // lanes), "it copies a part of a box")
    for coordinates, to in place_of.items():
        row, (box, column) = coordinates[axis], divmod(coordinates[-1], across)
        piece = column // lanes ^ row % PATTERN_ROWS
        in_pattern = to == (box * rows + row) * across + piece * lanes
        require(in_pattern, "it goes to other places in shared memory")
    return rows, axis, columns // across


__all__ = ["PATTERN_BYTES", "SOURCE_ALIGN", "TensorMapBox", "boxes_of", "maps_of"]
