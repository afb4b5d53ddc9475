"""The axes of arrays in memory, and `Padded`: an array whose zero padding is materialised only when
it is read, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class LayoutAxis:
    """Physical index = (logical index + halo) // divisor % modulus; a modulus of 0 means none."""

    dim: int
    divisor: int = 1
    modulus: int = 0
    halo: int = 0

    def __str__(self) -> str:
        text = "ABCDEFGH"[self.dim]
        text += f"/{self.divisor}" if self.divisor > 1 else ""
        text += f"%{self.modulus}" if self.modulus else ""
        return text + (f"+{self.halo}" if self.halo else "")


@dataclass(frozen=True, eq=False)
class Padded:
    """The physical form of a logical `array`, whose zero padding is added lazily.

    `pads` counts the zeros (before, after) each logical dimension; `axes` are the physical axes and
    `shape` their extents. `np.asarray` makes a padded copy of the whole; indexing gives parts, most
    of which are views of `array`, so weights are written to a file without a copy of them all.
    """

    array: Array
    pads: tuple[tuple[int, int], ...]
    axes: tuple[LayoutAxis, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self.array.dtype

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.array.itemsize

    @property
    def ndim(self) -> int:
        """Number of physical axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements, padding included."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, padding included."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> Array | Padded:
        """One index of the first axis (which is dropped), or a slice of it with step 1.

        The result is a view of `array` if it contains no padding. If a later axis is an outer part
        of the same dimension (`"A%16 A/16"`), the whole is copied and indexed; no layout of weights
        has such an order.
        """
        first, inner_axes = self.axes[0], self.axes[1:]
        if any(a.dim == first.dim and a.divisor > first.divisor for a in inner_axes):
            return np.asarray(self)[index]
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            axes, shape = self.axes, (max(stop - start, 0), *self.shape[1:])
        else:
            start, stop = index, index + 1
            axes, shape = inner_axes, self.shape[1:]
        before, _ = self.pads[first.dim]
        low, high = (i * first.divisor - before for i in (start, stop))
        extent = self.array.shape[first.dim]
        inside = slice(*(min(max(i, 0), extent) for i in (low, high)))
        slices = (slice(None),) * first.dim + (inside,)
        pads = list(self.pads)
        pads[first.dim] = (inside.start - low, high - inside.stop)
        return padded(self.array[slices], pads, axes, shape)

    def take(self, index: tuple[Array, ...]) -> Array:
        """The elements at the given physical indices: one array of indices per axis."""
        logical = [np.full(len(index[0]), -before) for before, _ in self.pads]
        for axis, i in zip(self.axes, index, strict=True):
            logical[axis.dim] += i * axis.divisor
        is_inside = np.ones(len(index[0]), bool)
        for i, extent in zip(logical, self.array.shape, strict=True):
            is_inside &= (i >= 0) & (i < extent)
        elements = np.zeros(len(is_inside), self.dtype)
        elements[is_inside] = self.array[tuple(i[is_inside] for i in logical)]
        return elements

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """A read-only copy of everything, padding included."""
        sides = list(zip(self.array.shape, self.pads, strict=True))
        wide = np.zeros([before + n + behind for n, (before, behind) in sides], self.dtype)
        wide[tuple(slice(before, before + n) for n, (before, _) in sides)] = self.array
        wide.flags.writeable = False
        array = _in_axes(wide, self.axes, self.shape)
        return array if dtype is None else array.astype(dtype, copy=False)


def padded(
    array: Array,
    pads: Sequence[tuple[int, int]],
    axes: Sequence[LayoutAxis],
    shape: Sequence[int],
) -> Array | Padded:
    """`array` with `pads` zeros around each logical dimension, laid out in physical `axes` whose
    extents are `shape`: a view if all pads are 0, else a `Padded`."""
    if any(p != (0, 0) for p in pads):
        return Padded(array, tuple(pads), tuple(axes), tuple(shape))
    return _in_axes(array, axes, shape)


def _in_axes(array: Array, axes: Sequence[LayoutAxis], shape: Sequence[int]) -> Array:
    """`array` with its logical dimensions split into `axes`, in that order: a reshape, transposed.

    A dimension whose axes were all indexed away has one element and vanishes in the reshape.
    """
    inner_last = sorted(range(len(axes)), key=lambda i: (axes[i].dim, -axes[i].divisor))
    order = [inner_last.index(i) for i in range(len(axes))]
    return array.reshape([shape[i] for i in inner_last]).transpose(order)


def parts_between(array: Array | Padded, start: int, stop: int) -> Iterator[Array]:
    """Yield the bytes from `start` to `stop` of `array` in row-major order, as a series of arrays.

    Parts of a contiguous array are views; of a `Padded`, those that contain padding are copies.
    """
    if array.ndim < 2 or (isinstance(array, np.ndarray) and array.flags.c_contiguous):
        flat = np.asarray(array).reshape(-1)
        yield flat[start // array.itemsize : stop // array.itemsize]
        return
    row = array.nbytes // len(array)
    first, last = -(-start // row), stop // row
    if first > last:  # the whole range is within one row
        yield from parts_between(array[last], start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from parts_between(array[first - 1], start - (first - 1) * row, row)
    if first < last:
        yield np.asarray(array[first:last])
    if last * row < stop:
        yield from parts_between(array[last], 0, stop - last * row)
