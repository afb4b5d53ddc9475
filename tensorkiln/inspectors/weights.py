"""Inspectors of the weights: types, statistics and histograms of all constants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from html import escape
from typing import Any

import numpy as np

from tensorkiln.artifact import Artifact, Content
from tensorkiln.artifact.artifact import content_part
from tensorkiln.artifact.metadata import ConstantInfo, constants_from
from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.inspectors.table import bar, table_lines
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.layout import Layout

BINS = 24
_ELEMENTS = 1 << 20  # elements that are read at a time
_BLOCKS = " ▁▂▃▄▅▆▇█"
_BAR = 40  # characters of the longest bar
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the values of one constant, without padding. `low`, `high`, `mean` and `std`
    (of the population) are of the finite values, in float64, and NaN if there are no such values.
    `histogram` counts the finite values in `BINS` equal steps from `low` to `high`."""

    count: int
    nans: int
    infinities: int
    low: float
    high: float
    mean: float
    std: float
    histogram: tuple[int, ...]


class Weights:
    """The constants of one compile: their table and their bytes. UserError (code `no-weights`) if
    `weights.bin` or `weights.json` is not among the artifacts."""

    def __init__(self, artifacts: Sequence[Artifact]):
        by_name = {a.file_name: a for a in artifacts}
        if "weights.bin" not in by_name or "weights.json" not in by_name:
            raise UserError(
                "no weights here, or no table of them",
                code="no-weights",
                hint="libraries and folders of a compile have both when the model has weights",
            )
        self._data = by_name["weights.bin"]
        table = by_name["weights.json"]
        self.rows = constants_from(table.view, table.name)

    def packed(self, row: ConstantInfo) -> PackedTensor:
        """The constant as it is stored. UserError (code `bad-metadata`) if its type or layout is
        unknown, or it lies outside the weights."""
        try:
            layout = Layout.parse(row.layout) if row.layout else Layout.plain(len(row.shape))
            dims = layout.physical_shape([as_expr(n) for n in row.shape])
            shape = tuple(int_value(d) or 0 for d in dims)
            dtype = _dtype(row.dtype)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise self._bad(row, f"not a type that can be read: {error}") from None
        tensor = PackedTensor(self._data.content, row.offset, dtype, shape, layout, row.shape)
        if row.offset < 0 or row.offset + tensor.size > self._data.size:
            raise self._bad(row, f"its {tensor.size} bytes lie outside the weights")
        return tensor

    def statistics(self, row: ConstantInfo) -> Statistics:
        """Statistics of a constant, whose values are read piece by piece, twice. UserError (code
        `bad-metadata`) as `packed`, and if the layout does not have each element once."""
        figures = statistics(self.packed(row))
        if figures.count != math.prod(row.shape):
            raise self._bad(row, f"layout {row.layout!r} does not hold each element once")
        return figures

    def called(self, name: str) -> tuple[ConstantInfo, ...]:
        """The constants of that name. UserError (code `unknown-weight`), with the nearest name as a
        hint, if there are none."""
        constants = tuple(row for row in self.rows if row.name == name)
        if not constants:
            names = [row.name for row in self.rows]
            hint = nearest(name, names) or "--as weights lists them"
            raise UserError(f"no weight {name!r}", code="unknown-weight", hint=hint)
        return constants

    def _bad(self, row: ConstantInfo, message: str) -> UserError:
        return UserError(message, code="bad-metadata", where=f"constant {row.name!r}")


def _dtype(name: str) -> np.dtype[Any]:
    if name not in PROGRAM_TYPES:
        raise ValueError(f"unknown dtype {name!r}")
    if PROGRAM_TYPES[name].in_numpy:
        return np.dtype(name)
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor of `shape`, stored in `layout` from byte `offset` of `content` on; `extents` is its
    shape in memory, padding included."""

    content: Content
    offset: int
    dtype: np.dtype[Any]
    extents: tuple[int, ...]
    layout: Layout
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its size in bytes, padding included."""
        return math.prod(self.extents) * self.dtype.itemsize

    def pieces(self) -> Iterator[Array]:
        """Yield the elements of the tensor as float64 arrays, in the order of memory, without
        padding."""
        pads = self.layout.pads([as_expr(n) for n in self.shape])
        offset = self.offset
        for first, sizes in _boxes(self.extents):
            count = math.prod(sizes)
            read = content_part(self.content, offset, count * self.dtype.itemsize)
            offset += count * self.dtype.itemsize
            values = np.frombuffer(read, self.dtype)
            if pads:
                inside = _inside(self.layout, self.shape, first, sizes)
                values = values.reshape(sizes)[inside]
            yield values.astype(np.float64)


def _boxes(extents: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (first index, extents) of pieces of an array, each contiguous in memory and of at most
    `_ELEMENTS` elements."""
    if 0 in extents:
        return
    if not extents:
        yield (), ()
        return
    axis = len(extents) - 1
    while axis and math.prod(extents[axis:]) <= _ELEMENTS:
        axis -= 1
    inner = extents[axis + 1 :]
    rows = max(1, _ELEMENTS // math.prod(inner))
    for outer in np.ndindex(*extents[:axis]):
        for row in range(0, extents[axis], rows):
            count = min(rows, extents[axis] - row)
            yield (*outer, row, *(0 for _ in inner)), (*(1 for _ in outer), count, *inner)


@np.errstate(over="ignore")  # squares of very large numbers overflow: std is inf, as NumPy's is
def statistics(packed: PackedTensor) -> Statistics:
    """The statistics of a tensor's elements, in constant memory."""
    count = nans = infinities = finite_count = 0
    low, high, mean, moment = np.inf, -np.inf, 0.0, 0.0
    for values in packed.pieces():
        count += values.size
        nans += int(np.isnan(values).sum())
        infinities += int(np.isinf(values).sum())
        finite = values[np.isfinite(values)]
        if not finite.size:
            continue
        low, high = min(low, float(finite.min())), max(high, float(finite.max()))
        # Mean and second moment of the union of two sets of values: Chan, Golub and LeVeque,
        # "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
        part, part_count = float(finite.mean()), finite.size
        moment += float(((finite - part) ** 2).sum())
        moment += (part - mean) ** 2 * finite_count * part_count / (finite_count + part_count)
        mean += (part - mean) * part_count / (finite_count + part_count)
        finite_count += part_count
    if not finite_count:
        nan = float("nan")
        return Statistics(count, nans, infinities, nan, nan, nan, nan, (0,) * BINS)
    total = np.zeros(BINS, np.int64)
    for values in packed.pieces():
        total += _counts(values[np.isfinite(values)], low, high)
    std = float(np.sqrt(moment / finite_count))
    return Statistics(count, nans, infinities, low, high, mean, std, tuple(total.tolist()))


def _counts(values: Array, low: float, high: float) -> Array:
    """The number of values in each of `BINS` equal steps; all in the middle one if low == high."""
    if low == high:
        counts = np.zeros(BINS, np.int64)
        counts[BINS // 2] = values.size
        return counts
    # Halved first, as high - low may overflow float64.
    positions = (values / 2 - low / 2) / (high / 2 - low / 2) * BINS
    return np.bincount(np.clip(positions, 0, BINS - 1).astype(np.int64), minlength=BINS)


def _inside(
    layout: Layout, shape: Sequence[int], first: Sequence[int], sizes: Sequence[int]
) -> Array:
    """A boolean array over a piece of `sizes` at index `first`: which elements are no padding."""
    index: list[Any] = [0] * len(shape)
    for k, axis in enumerate(layout.axes):
        along = [1] * len(sizes)
        along[k] = -1
        places = np.arange(first[k], first[k] + sizes[k])
        index[axis.dim] = index[axis.dim] + (places * axis.divisor).reshape(along)
    halos = [layout.halo(d) for d in range(len(shape))]
    inside = [
        (i - halo >= 0) & (i - halo < n) for i, halo, n in zip(index, halos, shape, strict=True)
    ]
    whole: Array = np.broadcast_to(reduce(np.logical_and, inside), tuple(sizes))
    return whole


# -- as text and as a picture ------------------------------------------------------------------


def show_weights(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """A table with a row for each constant: type, shape, histogram from min to max, statistics."""
    weights = Weights(artifacts)
    rows = []
    for row in weights.rows:
        s = weights.statistics(row)
        numbers = (f"{v:.4g}" for v in (s.low, s.high, s.mean, s.std))
        picture = f"|{bars(s.histogram)}|"
        rows.append(
            (
                row.name,
                row.dtype,
                shape_text(row.shape),
                picture,
                *numbers,
                str(s.nans),
                str(s.infinities),
            )
        )
    head = ("constant", "type", "shape", "min to max", "min", "max", "mean", "std", "nan", "inf")
    yield from table_lines(head, rows, "llllrrrrrr")


def show_weight(weights: Weights, row: ConstantInfo) -> Iterator[str]:
    """Yield the text on one constant: its offset, layout, statistics, and a histogram of bars."""
    packed, s = weights.packed(row), weights.statistics(row)
    padding = math.prod(packed.extents) - s.count
    yield f"{row.name}: {row.dtype}, {shape_text(row.shape)}, {s.count} values\n"
    facts = [
        ("place", f"{packed.size} bytes from byte {row.offset} of the weights"),
        (
            "layout",
            f"{row.layout or 'row-major'}, in memory {shape_text(packed.extents)}"
            + (f", {padding} of it padding" if padding else ""),
        ),
        ("min, max", f"{s.low:.6g}, {s.high:.6g}"),
        ("mean, std", f"{s.mean:.6g}, {s.std:.6g}"),
        ("not finite", f"{s.nans} nan, {s.infinities} inf"),
    ]
    yield from (f"  {label:<10}  {text}\n" for label, text in facts)
    yield "values\n"
    starts = _starts(s)
    wide, deep = max(map(len, starts)), max(len(str(n)) for n in s.histogram)
    top = max(s.histogram, default=0) or 1
    for start, n in zip(starts, s.histogram, strict=True):
        yield f"    {start:>{wide}}  {n:>{deep}}  {bar(n, top, _BAR)}".rstrip() + "\n"


def _starts(s: Statistics) -> list[str]:
    """The start of each step of the histogram, with enough digits to distinguish neighbours."""
    step = s.high / BINS - s.low / BINS
    digits = 2 - math.floor(math.log10(step)) if step > 0 and math.isfinite(step) else -1
    form = f".{digits}f" if 0 <= digits <= 8 else ".4g"
    return [f"{s.low + i * step:{form}}" for i in range(BINS)]


def shape_text(shape: Sequence[int]) -> str:
    """`64 x 3 x 7 x 7`; `scalar` for an empty shape."""
    return " x ".join(map(str, shape)) or "scalar"


def bars(histogram: Sequence[int]) -> str:
    """A block character per step, full for the highest one and blank only for an empty one."""
    top = max(histogram, default=0)
    if not top:
        return " " * len(histogram)
    return "".join(_BLOCKS[-(-n * 8 // top)] for n in histogram)


_WIDE, _HIGH, _GAP = 220, 96, 16
_COLUMNS = 4


def show_histograms(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """Yield one SVG picture of the histograms of all constants."""
    weights = Weights(artifacts)
    count = len(weights.rows)
    width = min(count, _COLUMNS) * (_WIDE + _GAP) + _GAP
    height = -(-count // _COLUMNS) * (_HIGH + _GAP) + _GAP
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n'
    )
    for i, row in enumerate(weights.rows):
        x, y = i % _COLUMNS * (_WIDE + _GAP) + _GAP, i // _COLUMNS * (_HIGH + _GAP) + _GAP
        yield _picture(row, weights.statistics(row), x, y)
    yield "</svg>\n"


def _picture(row: ConstantInfo, s: Statistics, x: int, y: int) -> str:
    top, step, base = max(s.histogram) or 1, _WIDE / BINS, _HIGH - 14
    bars = "".join(
        f'<rect x="{i * step:.1f}" y="{base - n / top * 52:.1f}" width="{step - 1:.1f}" '
        f'height="{n / top * 52:.1f}"/>'
        for i, n in enumerate(s.histogram)
        if n
    )
    odd = f", {s.nans} nan, {s.infinities} inf" if s.nans or s.infinities else ""
    name = row.name if len(row.name) <= 34 else f"...{row.name[-31:]}"
    return (
        f'<g transform="translate({x} {y})"><title>{escape(row.name)}</title>'
        f'<text y="10" font-weight="bold">{escape(name)}</text>'
        f'<text y="24" fill="#555">{escape(row.dtype)} {shape_text(row.shape)}{odd}</text>'
        f'<g fill="#c2571a">{bars}</g><path d="M0 {base}H{_WIDE}" stroke="#999"/>'
        f'<text y="{_HIGH - 2}" fill="#555">{s.low:.4g}</text>'
        f'<text x="{_WIDE}" y="{_HIGH - 2}" fill="#555" text-anchor="end">{s.high:.4g}</text>'
        "</g>\n"
    )
