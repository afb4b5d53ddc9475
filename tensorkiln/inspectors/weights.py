"""The weights: what each constant is, what its values are like, and a picture of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from html import escape
from typing import Any

import numpy as np

from tensorkiln.artifact import Artifact
from tensorkiln.artifact.metadata import ConstantInfo, constants_from
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors.table import table_lines
from tensorkiln.ir.dtype import DTYPES
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.layout import Layout

BINS = 24
_ELEMENTS = 1 << 20  # looked at at a time
_BLOCKS = " ▁▂▃▄▅▆▇█"
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the values of one constant, padding left out. `low`, `high`, `mean` and `std` (of the
    whole, not of a sample) are of the finite ones, in float64, and NaN where there are none;
    `histogram` counts those in `BINS` equal steps from `low` to `high`."""

    count: int
    nans: int
    infinities: int
    low: float
    high: float
    mean: float
    std: float
    histogram: tuple[int, ...]


class Weights:
    """The constants of one compile: their table and their bytes."""

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

    def physical(self, row: ConstantInfo) -> tuple[Array, Layout]:
        """The constant as it lies in memory. UserError (code `bad-metadata`) where it cannot."""
        try:
            layout = Layout.parse(row.layout) if row.layout else Layout.plain(len(row.shape))
            dims = layout.physical_shape([as_expr(n) for n in row.shape])
            shape = tuple(int_value(d) or 0 for d in dims)
            dtype = _dtype(row.dtype)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise self._bad(row, f"not a type that can be read: {error}") from None
        size = math.prod(shape) * dtype.itemsize
        if row.offset < 0 or row.offset + size > self._data.size:
            raise self._bad(row, f"its {size} bytes lie outside the weights")
        flat = self._data.view[row.offset : row.offset + size]
        return np.frombuffer(flat, dtype).reshape(shape), layout

    def statistics(self, row: ConstantInfo) -> Statistics:
        """What its values are like; they are looked at piece by piece, twice."""
        array, layout = self.physical(row)
        found = statistics(array, layout, row.shape)
        if found.count != math.prod(row.shape):
            raise self._bad(row, f"layout {row.layout!r} does not hold each element once")
        return found

    def _bad(self, row: ConstantInfo, message: str) -> UserError:
        return UserError(message, code="bad-metadata", where=f"constant {row.name!r}")


def _dtype(name: str) -> np.dtype[Any]:
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}")
    if name == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)


@np.errstate(over="ignore")  # squares of the largest numbers: std is inf, as NumPy's is
def statistics(array: Array, layout: Layout, shape: Sequence[int]) -> Statistics:
    """Of the elements of a packed `array` that are in a logical tensor of `shape`."""
    count = nans = infinities = seen = 0
    low, high, mean, moment = np.inf, -np.inf, 0.0, 0.0
    for values in _pieces(array, layout, shape):
        count += values.size
        nans += int(np.isnan(values).sum())
        infinities += int(np.isinf(values).sum())
        finite = values[np.isfinite(values)]
        if not finite.size:
            continue
        low, high = min(low, float(finite.min())), max(high, float(finite.max()))
        # Two sets of values as one: Chan, Golub and LeVeque, "Updating formulae and a pairwise
        # algorithm for computing sample variances", 1979.
        part, here = float(finite.mean()), finite.size
        moment += float(((finite - part) ** 2).sum())
        moment += (part - mean) ** 2 * seen * here / (seen + here)
        mean += (part - mean) * here / (seen + here)
        seen += here
    if not seen:
        nan = float("nan")
        return Statistics(count, nans, infinities, nan, nan, nan, nan, (0,) * BINS)
    total = np.zeros(BINS, np.int64)
    for values in _pieces(array, layout, shape):
        total += _counts(values[np.isfinite(values)], low, high)
    std = float(np.sqrt(moment / seen))
    return Statistics(count, nans, infinities, low, high, mean, std, tuple(total.tolist()))


def _counts(values: Array, low: float, high: float) -> Array:
    """Values in each of `BINS` equal steps; all in the middle where they are one value."""
    if low == high:
        counts = np.zeros(BINS, np.int64)
        counts[BINS // 2] = values.size
        return counts
    # Halves first: high - low may be larger than any float64.
    at = (values / 2 - low / 2) / (high / 2 - low / 2) * BINS
    return np.bincount(np.clip(at, 0, BINS - 1).astype(np.int64), minlength=BINS)


def _pieces(array: Array, layout: Layout, shape: Sequence[int]) -> Iterator[Array]:
    """The logical elements as float64, in pieces."""
    if 0 in array.shape:
        return
    if array.ndim == 0:
        yield array.reshape(1).astype(np.float64)
        return
    pads = layout.pads([as_expr(n) for n in shape])
    if not pads:
        flat = array.reshape(-1)
        for at in range(0, flat.size, _ELEMENTS):
            yield flat[at : at + _ELEMENTS].astype(np.float64)
        return
    rows = max(1, _ELEMENTS // max(1, array.size // len(array)))
    for at in range(0, len(array), rows):
        part = array[at : at + rows]
        yield part[_inside(layout, shape, part.shape, at)].astype(np.float64)


def _inside(layout: Layout, shape: Sequence[int], extents: Sequence[int], first: int) -> Array:
    """Which elements of a part that starts at `first` on the outermost axis are no padding."""
    index: list[Any] = [0] * len(shape)
    for k, axis in enumerate(layout.axes):
        places = np.arange(extents[k]) + (first if k == 0 else 0)
        along = [1] * len(extents)
        along[k] = -1
        index[axis.dim] = index[axis.dim] + (places * axis.divisor).reshape(along)
    halos = [layout.halo(d) for d in range(len(shape))]
    inside = [
        (i - halo >= 0) & (i - halo < n) for i, halo, n in zip(index, halos, shape, strict=True)
    ]
    whole: Array = np.broadcast_to(reduce(np.logical_and, inside), tuple(extents))
    return whole


# -- as text and as a picture ------------------------------------------------------------------


def show_weights(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """A row for each constant: type, shape, statistics, and its histogram."""
    weights = Weights(artifacts)
    rows = []
    for row in weights.rows:
        s = weights.statistics(row)
        rows.append(
            (row.name, row.dtype, " x ".join(map(str, row.shape)) or "scalar",
             *(f"{v:.4g}" for v in (s.low, s.high, s.mean, s.std)), str(s.nans),
             str(s.infinities), f"|{bars(s.histogram)}|")
        )  # fmt: skip
    head = ("constant", "type", "shape", "min", "max", "mean", "std", "nan", "inf", "min to max")
    yield from table_lines(head, rows, "lllrrrrrr")


def bars(histogram: Sequence[int]) -> str:
    """One block per step; the highest is a full one, and what is not empty is never blank."""
    top = max(histogram, default=0)
    if not top:
        return " " * len(histogram)
    return "".join(_BLOCKS[-(-n * 8 // top)] for n in histogram)


_WIDE, _HIGH, _GAP = 220, 96, 16
_COLUMNS = 4


def show_histograms(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """The histograms of all constants as one SVG picture."""
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
    shape = " x ".join(map(str, row.shape)) or "scalar"
    odd = f", {s.nans} nan, {s.infinities} inf" if s.nans or s.infinities else ""
    name = row.name if len(row.name) <= 34 else f"...{row.name[-31:]}"
    return (
        f'<g transform="translate({x} {y})"><title>{escape(row.name)}</title>'
        f'<text y="10" font-weight="bold">{escape(name)}</text>'
        f'<text y="24" fill="#555">{escape(row.dtype)} {shape}{odd}</text>'
        f'<g fill="#c2571a">{bars}</g><path d="M0 {base}H{_WIDE}" stroke="#999"/>'
        f'<text y="{_HIGH - 2}" fill="#555">{s.low:.4g}</text>'
        f'<text x="{_WIDE}" y="{_HIGH - 2}" fill="#555" text-anchor="end">{s.high:.4g}</text>'
        "</g>\n"
    )
