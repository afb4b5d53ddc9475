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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

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
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.copies import Copy, copy_of
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Ramp, Var, int_value
from tensorkiln.ir.rings import ring_of
from tensorkiln.ir.stmt import For, If, PrimFunc, Seq, Stmt, Store
from tensorkiln.ir.visit import free_vars, substitute, walk_stmt

SOURCE_ALIGN = 16  # bytes: of the tensor, of its rows and of the pieces of a row
PATTERN_BYTES = 1024  # of shared memory: eight rows of a box, after which their pattern repeats
_MOST_ROWS = 256  # of a box
_DIMS = range(2, 6)  # of a tensor
# Indices are int32, and may be beyond the last one by less than a tile.
_MOST_DIM, _MOST_STRIDE = (1 << 31) - 1024, 1 << 40
_PARTS = "it has zeros within the tensor, or reads a part of it"
_PERMUTED = SWIZZLE_BYTES // SOURCE_ALIGN


@dataclass(frozen=True, slots=True)
class TensorMapBox:
    """What a nest copies: `count` boxes side by side along the last dimension of a tensor, from
    element `start` of `source` on. They lie one after the other in shared memory, from element
    `place` of `into` on."""

    map: TensorMap
    source: Buffer
    start: tuple[Expr, ...]
    into: Buffer
    place: tuple[Expr, ...]
    count: int

    @property
    def box_bytes(self) -> int:
        """Bytes of one of them in shared memory, zeros included."""
        return prod(self.map.box) * self.source.dtype.bytes


class _NoBox(Exception):
    """Raised with the reason why a nest is not a box."""


def boxes_of(f: PrimFunc) -> list[tuple[For, TensorMapBox | str]]:
    """The nests of copies of rings that allow TMA: for each the boxes that it copies, or the reason
    why threads copy it. A kernel can have only so many maps, each of which is a parameter."""
    boxes: list[tuple[For, TensorMapBox | str]] = []
    rings = (ring_of(s) for s in walk_stmt(f.body))
    for nest in (n for r in rings if r is not None and r.tensor_maps for n in r.copies):
        try:
            boxes.append((nest, _box(f, nest)))
        except _NoBox as reason:
            boxes.append((nest, str(reason)))
    room = max(0, min(MOST_MAPS, MOST_PARAMS - len(f.params)))
    maps = maps_of(boxes)[:room]
    return [
        (nest, box if isinstance(box, str) or box.map in maps else "the kernel has no room for it")
        for nest, box in boxes
    ]


def maps_of(boxes: list[tuple[For, TensorMapBox | str]]) -> tuple[TensorMap, ...]:
    """The maps that boxes need, each once."""
    return tuple(dict.fromkeys(box.map for _, box in boxes if isinstance(box, TensorMapBox)))


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise _NoBox(reason)


# ---- what a nest does ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """One copy of 16 bytes in a nest, with the extents of the loops around it in the nest."""

    copy: Copy
    loops: Mapping[Var, int]

    @property
    def numbers(self) -> Iterator[Mapping[Var, Expr]]:
        """Every assignment of values to the variables of its loops; for each it copies another
        piece."""
        ranges = itertools.product(*(range(n) for n in self.loops.values()))
        for values in ranges:
            yield dict(zip(self.loops, map(IntImm, values), strict=True))


def _pieces(s: Stmt, loops: Mapping[Var, int]) -> Iterator[_Piece]:
    match s:
        case For(var, lo, extent, _, body):
            count = int_value(extent)
            _require(bool(count) and int_value(lo) == 0, "its loops have no constant bounds")
            yield from _pieces(body, {**loops, var: count or 0})
        case Seq(stmts):
            for t in stmts:
                yield from _pieces(t, loops)
        case Store() | If():
            copy = copy_of(s)
            if copy is None:
                raise _NoBox("it does more than copy elements, or zeros in their place")
            yield _Piece(copy, loops)
        case _:
            raise _NoBox(f"there is a {type(s).__name__} in it")


def _box(f: PrimFunc, nest: For) -> TensorMapBox:
    pieces = list(_pieces(nest, {}))
    _require(bool(pieces), "it copies nothing")
    first = pieces[0].copy
    source, into = first.load.buffer, first.store.buffer
    is_uniform = all((p.copy.load.buffer, p.copy.store.buffer) == (source, into) for p in pieces)
    _require(is_uniform, "it copies several tensors")
    param, tensor = _param(f, source), _tensor(f, source)
    lanes = SOURCE_ALIGN // source.dtype.bytes
    for p in pieces:
        vector = p.copy.load.dtype.lanes == lanes and all(
            _is_vector(m.indices, lanes) for m in (p.copy.load, p.copy.store)
        )
        _require(vector, f"its elements are not adjacent in pieces of {SOURCE_ALIGN} bytes")
    # Where the first piece comes from and where it goes; then the distance of every other piece
    # from these, which must be a number for each round of the loops.
    zeros: dict[Var, Expr] = dict.fromkeys((v for p in pieces for v in p.loops), IntImm(0))
    start, place = (
        tuple(simplify(substitute(_first(i), zeros)) for i in m.indices)
        for m in (first.load, first.store)
    )
    steps = [int_value(s) or 0 for s in into.strides]
    place_of: dict[tuple[int, ...], int] = {}
    count = 0
    for p in pieces:
        offsets = [_offset(i, s, p) for i, s in zip(p.copy.load.indices, start, strict=True)]
        places = [_offset(i, s, p) for i, s in zip(p.copy.store.indices, place, strict=True)]
        for values in p.numbers:
            to = sum(_at(o, values) * n for o, n in zip(places, steps, strict=True))
            place_of[tuple(_at(o, values) for o in offsets)] = to
            count += 1
    _require(count == len(place_of), "it copies elements several times")
    rows, axis, count = _shape(place_of, lanes, source.dtype.bytes)
    aligned = alignment(into, place) % PATTERN_BYTES == 0
    _require(aligned, f"its place in shared memory is no multiple of {PATTERN_BYTES} bytes")
    tensor, start, axis = _divided(f, pieces, tensor, lanes, start, axis)
    box = [1] * len(tensor.dims)
    box[-1], box[axis] = SWIZZLE_BYTES // source.dtype.bytes, rows
    strides = tuple(s.times(source.dtype.bytes) for s in tensor.strides[:-1])
    tensor_map = TensorMap(
        param, source.dtype.name, tensor.dims[::-1], strides[::-1], tuple(box[::-1])
    )
    return TensorMapBox(tensor_map, source, start, into, place, count)


# ---- the tensor ----------------------------------------------------------------------------------


def _param(f: PrimFunc, source: Buffer) -> int:
    """The number of the parameter that a tensor is. The kernel must not write to it, since TMA
    reads while threads go on."""
    for i, p in enumerate(f.params):
        if p is source:
            inputs = f.buffers[: len(f.buffers) - f.outputs]
            _require(source in inputs and i not in f.inplace, "the kernel writes to it")
            return i
    raise _NoBox("it is no parameter of the kernel")


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
        _require(whole, _PARTS)
        parts = Size(n.factor // inner), Size(inner)
        return _Tensor(
            (*self.dims[:d], *parts, *self.dims[d + 1 :]),
            (*self.strides[:d], self.strides[d].times(inner), *self.strides[d:]),
            (*self.shape[:d], *(IntImm(p.factor) for p in parts), *self.shape[d + 1 :]),
        )


def _tensor(f: PrimFunc, source: Buffer) -> _Tensor:
    """The description of a tensor, if its type, sizes and strides are among those that a map can
    have."""
    _require(source.dtype.name in MAPPED_TYPES, f"its elements are {source.dtype}")
    _require(len(source.shape) in _DIMS, f"it has {len(source.shape)} dimensions")
    dims = tuple(_size(f, d) for d in source.shape)
    strides = tuple(_size(f, s) for s in source.strides)
    fits = all(0 < d.factor <= _MOST_DIM for d in dims)
    _require(fits, "it has no elements, or too many")
    _require(strides[-1] == Size(1), "elements of its rows are not adjacent")
    for stride, within in itertools.pairwise(strides):
        size = stride.times(source.dtype.bytes)
        fits = size.factor % SOURCE_ALIGN == 0 and 0 < size.factor < _MOST_STRIDE
        apart = f"its rows are {size.factor} bytes apart, no multiple of {SOURCE_ALIGN}"
        _require(fits or size.param is not None, apart)
        _require(fits, "how far its rows are apart is not known before it runs")
        contains = stride.factor % within.factor == 0 and within.param in (None, stride.param)
        _require(contains, "its dimensions do not contain each other")
    # TMA writes zeros behind a row that ends within a piece of 16 bytes; threads would copy what
    # memory has there.
    row = dims[-1].times(source.dtype.bytes)
    _require(row.param is None, "the length of its rows is not known before it runs")
    whole = row.factor % SOURCE_ALIGN == 0
    _require(whole, f"its rows have {row.factor} bytes, no whole pieces of {SOURCE_ALIGN}")
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
        if factor is not None and factor > 0 and _is_zero(e - variables[0] * factor):
            return Size(factor, param)
    raise _NoBox("its dimensions are not known before it runs")


# ---- indices and conditions ----------------------------------------------------------------------


def _first(e: Expr) -> Expr:
    """The first lane of an index."""
    return e.base if isinstance(e, Ramp) else e


def _is_vector(indices: tuple[Expr, ...], lanes: int) -> bool:
    """Whether the lanes of an access are neighbours along the last dimension."""
    *outer, last = indices
    adjacent = isinstance(last, Ramp) and int_value(last.stride) == 1 and last.dtype.lanes == lanes
    return adjacent and all(i.dtype.lanes == 1 for i in outer)


def _offset(index: Expr, start: Expr, p: _Piece) -> Expr:
    """The distance of an index from the start of its box, which may depend only on loops of the
    nest."""
    distance = simplify(_first(index) - start)
    _require(
        set(free_vars(distance)) <= set(p.loops), "its rows and columns do not follow each other"
    )
    return distance


def _at(offset: Expr, values: Mapping[Var, Expr]) -> int:
    number = int_value(substitute(offset, dict(values)))
    if number is None:
        raise _NoBox("its rows and columns do not follow each other")
    return number


def _divided(
    f: PrimFunc,
    pieces: Sequence[_Piece],
    tensor: _Tensor,
    lanes: int,
    start: tuple[Expr, ...],
    axis: int,
) -> tuple[_Tensor, tuple[Expr, ...], int]:
    """(the tensor, the start of the box in it, the dimension of its rows), such that the pieces are
    zero exactly outside of that tensor. A dimension that holds the rows of several matrices becomes
    two, so that the rows behind one matrix are outside of the tensor, and not rows of the next."""
    edges = [_edges(p, tensor, lanes) for p in pieces]
    _require(all(e == edges[0] for e in edges), _PARTS)
    from_zero = {s.var for s in walk_stmt(f.body) if isinstance(s, For) and int_value(s.lo) == 0}
    for d, (inner, outer) in sorted(edges[0].items(), reverse=True):
        within = simplify(start[d] - outer * inner)
        # TMA writes zeros for rows before the first one too, where threads would read the matrix
        # before.
        _require(all(_is_count(e, from_zero) for e in (outer, within)), _PARTS)
        tensor = tensor.divided(d, inner)
        start = (*start[:d], outer, within, *start[d + 1 :])
        axis += d <= axis
    return tensor, start, axis


def _edges(p: _Piece, tensor: _Tensor, lanes: int) -> dict[int, tuple[int, Expr]]:
    """Checks that a piece is zero outside of the tensor and nowhere else. A condition may also be
    that of one matrix of several in a dimension: for each such dimension, the rows of one matrix,
    and its number."""
    edges: dict[int, tuple[int, Expr]] = {}
    *outer, last = [_first(i) for i in p.copy.load.indices]
    for part in _conjuncts(p.copy.cond):
        match part:
            case Binary("lt", a, b):
                past = a - b
            case Binary("le", a, b):
                past = a - b - 1
            case _:
                raise _NoBox(_PARTS)
        if any(_is_zero(past * n - (last - tensor.shape[-1])) for n in (1, lanes)):
            continue
        if any(_is_zero(past - (i - n)) for i, n in zip(outer, tensor.shape, strict=False)):
            continue
        divided = ((d, _matrix(i - past, p)) for d, i in enumerate(outer) if d not in edges)
        d, matrix = next(((d, m) for d, m in divided if m is not None), (0, None))
        if matrix is None:
            raise _NoBox(_PARTS)
        edges[d] = matrix
    return edges


def _matrix(end: Expr, p: _Piece) -> tuple[int, Expr] | None:
    """(rows of one matrix, its number), if `end`, the row after its last one, is (number + 1) *
    rows."""
    end = simplify(end)
    variables = free_vars(end)
    rows = int_value(simplify(substitute(end, dict.fromkeys(variables, IntImm(0)))))
    if rows is None or rows <= 0 or not set(variables).isdisjoint(p.loops):
        return None
    number = simplify(end // rows - 1)
    return (rows, number) if _is_zero((number + 1) * rows - end) else None


def _is_zero(e: Expr) -> bool:
    return int_value(simplify(e)) == 0


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


def _conjuncts(cond: Expr | None) -> Iterator[Expr]:
    if isinstance(cond, Binary) and cond.op == "and":
        yield from _conjuncts(cond.a)
        yield from _conjuncts(cond.b)
    elif cond is not None:
        yield cond


# ---- shared memory -------------------------------------------------------------------------------


def _shape(place_of: Mapping[tuple[int, ...], int], lanes: int, size: int) -> tuple[int, int, int]:
    """(rows of a box, the dimension of the tensor that they run along, boxes side by side), from
    the place in shared memory of each piece by its place in the tensor. Checks that the pieces fill
    whole boxes, in the permuted order that the hardware writes."""
    across = SWIZZLE_BYTES // size  # elements of a row
    lower, upper = (
        [f(coordinates) for coordinates in zip(*place_of, strict=True)] for f in (min, max)
    )
    _require(not any(lower), "its rows and columns do not follow each other")
    moving = [d for d, n in enumerate(upper[:-1]) if n]
    _require(len(moving) == 1, "it is no matrix of two of the tensor's dimensions")
    axis, rows, columns = moving[0], upper[moving[0]] + 1, upper[-1] + lanes
    whole = rows % _PERMUTED == 0 and rows <= _MOST_ROWS and columns % across == 0
    _require(whole, f"{rows} rows of {columns * size} bytes are no boxes")
    _require(len(place_of) == rows * (columns // lanes), "it copies a part of a box")
    for coordinates, to in place_of.items():
        row, (box, column) = coordinates[axis], divmod(coordinates[-1], across)
        piece = column // lanes ^ row % _PERMUTED
        in_pattern = to == (box * rows + row) * across + piece * lanes
        _require(in_pattern, "it goes to other places in shared memory")
    return rows, axis, columns // across


__all__ = ["PATTERN_BYTES", "SOURCE_ALIGN", "TensorMapBox", "boxes_of", "maps_of"]
