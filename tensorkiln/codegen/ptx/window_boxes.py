"""Finds the nests of copies that TMA makes as windows of images ("im2col").

An image with channels last, [N, H, W, C], is copied pixel by pixel, 64 channels of each: in the
order of the windows of a convolution, for one tap of them at a time. Hardware goes from the first
window to the last one in each row, from row to row and from image to image by itself; what it is
given are the place of the first window and the offset of the tap. Pixels outside of the image
become zeros.

As in `boxes.py`, the statements decide: the places of all windows of all blocks are computed, and
compared with where the hardware would go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.codegen.host.tensor_maps import SWIZZLE_BYTES, PixelWindows, Size, TensorMap
from tensorkiln.codegen.llvm.addresses import alignment
from tensorkiln.codegen.ptx.box_pieces import (
    PATTERN_BYTES,
    PATTERN_ROWS,
    SOURCE_ALIGN,
    CopyPiece,
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
from tensorkiln.ir.expr import Binary, Expr, IntImm, Var, int_value, logical_and
from tensorkiln.ir.stmt import For, PrimFunc, Stmt
from tensorkiln.ir.visit import free_vars, substitute, substmts

_MOST_ROWS, _MOST_STEP, _MOST_OFFSET = 1024, 8, 255
_CORNERS = range(-128, 128)
_MOST_PLACES = 1 << 20  # of windows in a row of blocks that are computed
_ELSEWHERE = "its pixels are not those of windows, one after the other"


def window_box(f: PrimFunc, nest: For) -> TensorMapBox:
    """The windows that a nest of copies is. Raises NoBox with the reason why it is none."""
    pieces, source, into = tensor_pieces(nest)
    param, extents = param_of(f, source), [int_value(n) for n in source.shape]
    require(len(extents) == 4 and None not in extents, "it is no image of known sizes")
    n, h, w, c = (e or 0 for e in extents)
    across = SWIZZLE_BYTES // source.dtype.bytes
    require(bool(n * h * w) and c % across == 0, f"its {c} channels are no multiple of {across}")
    lanes = SOURCE_ALIGN // source.dtype.bytes
    require_vectors(pieces, lanes)
    pixels, channel, place = _pixels(pieces, lanes, across)
    aligned = alignment(into, place) % PATTERN_BYTES == 0
    require(aligned, f"its place in shared memory is no multiple of {PATTERN_BYTES} bytes")
    walk = _WindowOrder(pixels, _loops_around(f, nest), (n, h, w))
    sizes = [c, w, h, n]
    strides = tuple(Size(prod(sizes[: k + 1]) * source.dtype.bytes) for k in range(3))
    tensor_map = TensorMap(
        param,
        source.dtype.name,
        tuple(map(Size, sizes)),
        strides,
        (across, len(pixels)),
        walk.window(),
    )
    start = (*walk.start(), channel)
    return TensorMapBox(tensor_map, source, start, into, place, 1, walk.offsets())


def _loops_around(f: PrimFunc, nest: For) -> list[For]:
    """The loops around a nest, outermost first."""

    def path(s: Stmt) -> list[For] | None:
        if s is nest:
            return []
        for t in substmts(s):
            inner = path(t)
            if inner is not None:
                return [s, *inner] if isinstance(s, For) else inner
        return None

    loops = path(f.body)
    assert loops is not None
    return loops


@dataclass(frozen=True, slots=True)
class _WindowRow:
    """What a row of the box is: image, row and column, and under which condition it is copied."""

    place: tuple[Expr, ...]
    cond: Expr | None


def _pixels(
    pieces: Sequence[CopyPiece], lanes: int, across: int
) -> tuple[list[_WindowRow], Expr, tuple[Expr, ...]]:
    """(the pixels of the rows of the box, its first channel, its place in shared memory). Checks
    that the pieces fill the box in the permuted order that the hardware writes, and that those of a
    row are one pixel's."""
    load, store = pieces[0].copy.load, pieces[0].copy.store
    zeros: dict[Var, Expr] = dict.fromkeys((v for p in pieces for v in p.loops), IntImm(0))
    place = tuple(simplify(substitute(first_lane(i), zeros)) for i in store.indices)
    channel = simplify(substitute(first_lane(load.indices[3]), zeros))
    pixels: dict[int, _WindowRow] = {}
    filled: set[int] = set()
    for p in pieces:
        numbers, columns = _places(p, place, channel)
        for assignment, number, column in zip(p.numbers, numbers, columns, strict=True):
            row, offset = divmod(number, across)
            in_pattern = offset == (column // lanes ^ row % PATTERN_ROWS) * lanes
            require(in_pattern, "it goes to other places in shared memory")
            pixel = _pixel(p, dict(assignment))
            require(pixels.setdefault(row, pixel) == pixel, _ELSEWHERE)
            filled.add(number)
    count = len(pixels)
    is_box = sorted(pixels) == list(range(count)) and len(filled) == count * across // lanes
    is_box = is_box and count % PATTERN_ROWS == 0 and count <= _MOST_ROWS
    require(is_box, "it copies a part of a box")
    return [pixels[k] for k in range(count)], channel, place


def _pixel(p: CopyPiece, assignment: dict[Var, Expr]) -> _WindowRow:
    """The pixel of a piece, for values of the loops of the nest."""
    index = tuple(substitute(first_lane(i), assignment) for i in p.copy.load.indices[:3])
    return _WindowRow(index, None if p.copy.cond is None else substitute(p.copy.cond, assignment))


def _places(p: CopyPiece, place: tuple[Expr, ...], channel: Expr) -> tuple[list[int], list[int]]:
    """For each round of the loops of a nest: (elements from the place of the box to that of the
    piece, and from its first channel to that of the piece)."""
    values, store = loop_values(p.loops), p.copy.store
    moves = [simplify(first_lane(i) - s) for i, s in zip(store.indices, place, strict=True)]
    offset = simplify(first_lane(p.copy.load.indices[3]) - channel)
    require(all(set(free_vars(e)) <= set(p.loops) for e in (*moves, offset)), _ELSEWHERE)
    shape = next((v.shape for v in values.values()), (1,))
    numbers = np.zeros(shape, int)
    for e, step in zip(moves, store.buffer.strides, strict=True):
        numbers = numbers + values_of(e, values, _ELSEWHERE) * (int_value(step) or 0)
    return numbers.tolist(), np.broadcast_to(values_of(offset, values, _ELSEWHERE), shape).tolist()


@dataclass(frozen=True, slots=True)
class _Axis:
    """The index of pixels along a dimension, which is the sum of `of_window`, of the first one, and
    `of_tap`, which is the same for all. `places` has the former for each (pixel, block). At the
    first tap, windows are from `first` to `last`, `step` apart; `numbers` has that of each (pixel,
    block), and the last tap is at `reach`."""

    of_window: Expr
    of_tap: Expr
    places: Values
    numbers: Values
    first: int
    last: int
    step: int
    reach: int

    @property
    def count(self) -> int:
        """How many windows there are."""
        return (self.last - self.first) // self.step + 1


def _axis(window: Expr, tap: Expr, places: Values, taps: Values) -> _Axis:
    """The axis of these parts of an index, with all their values."""
    first_tap, last_tap = int(taps.min()), int(taps.max())
    steps = np.unique(np.diff(np.unique(places)))
    require(len(steps) < 2, _ELSEWHERE)
    step = int(steps[0]) if len(steps) else 1
    first, last = int(places.min()), int(places.max())
    numbers = np.floor_divide(places - first, step)
    return _Axis(
        simplify(window + first_tap),
        simplify(tap - first_tap),
        places,
        numbers,
        first + first_tap,
        last + first_tap,
        step,
        last_tap - first_tap,
    )


class _WindowOrder:
    """The way of a nest through the windows of images. Checks that it is that of the hardware."""

    def __init__(
        self, pixels: Sequence[_WindowRow], loops: Sequence[For], sizes: tuple[int, int, int]
    ):
        self.pixels, self.sizes = pixels, sizes
        extents = _extents(pixels, loops)
        blocks = {s.var for s in loops if s.kind == "thread"}
        self.blocks = {v: n for v, n in extents.items() if v in blocks}
        self.rounds = {v: n for v, n in extents.items() if v not in blocks}
        for loop_extents in (self.blocks, self.rounds):
            require(prod(loop_extents.values()) <= _MOST_PLACES, _ELSEWHERE)
        self.block_values = loop_values(self.blocks)
        self.images, self.lines, self.columns = map(self._axis, range(3))
        require(is_zero(self.images.of_tap) and self.images.first >= 0, _ELSEWHERE)
        self._check_order(self._pixel_mask())

    def _axis(self, d: int) -> _Axis:
        windows, taps = zip(
            *(_parted(p.place[d], set(self.rounds)) for p in self.pixels), strict=True
        )
        mixed = any(not set(self.rounds).isdisjoint(free_vars(e)) for e in windows)
        require(not mixed and all(t == taps[0] for t in taps), _ELSEWHERE)
        values = values_of(taps[0], loop_values(self.rounds), _ELSEWHERE)
        return _axis(windows[0], taps[0], self._places(windows), values)

    def _places(self, rows: Sequence[Expr]) -> Values:
        """The value of an expression for each row, and block."""
        shape = next((v.shape for v in self.block_values.values()), (1,))
        return np.stack(
            [np.broadcast_to(values_of(e, self.block_values, _ELSEWHERE), shape) for e in rows]
        )

    def _check_order(self, pixel_mask: Values) -> None:
        """From the first pixel of a block on, which is inside of the images, those inside follow
        each other, and those that would follow behind the last image are outside."""
        lines, columns = self.lines, self.columns
        number = (self.images.places * lines.count + lines.numbers) * columns.count
        number = number + columns.numbers
        following = number[:1] + np.arange(len(self.pixels))[:, None]
        image_mask = following < self.sizes[0] * lines.count * columns.count
        require(bool((pixel_mask == image_mask).all() and image_mask[0].all()), _ELSEWHERE)
        require(bool((number == following)[pixel_mask].all()), _ELSEWHERE)

    def _pixel_mask(self) -> Values:
        """Whether each (pixel, block) is copied where it is within rows and columns. Checks that it
        is not copied elsewhere."""
        axes = {1: (self.lines, self.sizes[1]), 2: (self.columns, self.sizes[2])}
        conditions = [
            {c: _side(c, p.place, self.sizes) for c in conjuncts(p.cond)} for p in self.pixels
        ]
        of_rows = [
            logical_and(*(c for c, side in sides.items() if side is None)) for sides in conditions
        ]
        require(all(set(free_vars(c)) <= set(self.blocks) for c in of_rows), _ELSEWHERE)
        pixel_mask = self._places(of_rows).astype(bool)
        copied = [sides for sides, row in zip(conditions, pixel_mask, strict=True) if row.any()]
        for d, above in ((d, above) for d in axes for above in (False, True)):
            axis, size = axes[d]
            checked = all((d, above) in sides.values() for sides in copied)
            within = axis.last + axis.reach < size if above else axis.first >= 0
            require(checked or within, _ELSEWHERE)
        return pixel_mask

    def window(self) -> PixelWindows:
        """What the map says of the windows: columns come first."""
        axes, sizes = (self.columns, self.lines), self.sizes[:0:-1]
        window = PixelWindows(
            tuple(a.first for a in axes),
            tuple(a.last - (n - 1) for a, n in zip(axes, sizes, strict=True)),
            tuple(a.step for a in axes),
        )
        fits = all(x in _CORNERS for x in (*window.lower, *window.upper))
        fits = fits and all(x <= _MOST_STEP for x in window.steps)
        fits = fits and all(a.reach <= _MOST_OFFSET for a in axes)
        require(fits, "its windows are too far apart, or too large")
        return window

    def start(self) -> tuple[Expr, ...]:
        """The image, row and column of the first window."""
        return self.images.of_window, self.lines.of_window, self.columns.of_window

    def offsets(self) -> tuple[Expr, Expr]:
        """The row and the column of the tap in a window."""
        return self.lines.of_tap, self.columns.of_tap


def _extents(pixels: Sequence[_WindowRow], loops: Sequence[For]) -> dict[Var, int]:
    """The extents of the loops around a nest on which its pixels depend; no others may decide."""
    moving = {v for p in pixels for e in p.place for v in free_vars(e)}
    extents = {s.var: int_value(s.extent) or 0 for s in loops if int_value(s.lo) == 0}
    require(all(extents.get(v) for v in moving), _ELSEWHERE)
    return {v: n for v, n in extents.items() if v in moving}


def _side(part: Expr, indices: Sequence[Expr], sizes: Sequence[int]) -> tuple[int, bool] | None:
    """(the dimension, whether it is its end) of whose limits a condition keeps an index within;
    None for other conditions."""
    for d in (1, 2):
        match part:
            case Binary("ge", a, b) if is_zero(a - b - indices[d]):
                return d, False
            case Binary("lt", a, b) if is_zero((b - a) - (indices[d] * -1 + sizes[d])):
                return d, True
    return None


def _parted(e: Expr, rounds: set[Var]) -> tuple[Expr, Expr]:
    """(the terms of a sum that depend on more than some loops, or on nothing; the other ones)."""
    window: Expr = IntImm(0)
    tap: Expr = IntImm(0)
    for t in _terms(e):
        variables = set(free_vars(t))
        if variables and variables <= rounds:
            tap = tap + t
        else:
            window = window + t
    return simplify(window), simplify(tap)


def _terms(e: Expr) -> Iterator[Expr]:
    match e:
        case Binary("add", a, b):
            yield from _terms(a)
            yield from _terms(b)
        case Binary("sub", a, b):
            yield from _terms(a)
            yield from (t * -1 for t in _terms(b))
        case _:
            yield e
