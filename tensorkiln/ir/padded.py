"""`Padded`: an array with zeros around it that are nowhere in memory, and arrays piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tensorkiln.ir.layout import LayoutAxis

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Padded:
    """The physical form of a logical `array`, padded with zeros when it is read.

    `pads` are the zeros before and behind each logical dimension, `axes` the physical axes, whose
    extents are `shape`. To NumPy it is an array (`np.asarray` copies it); to whoever writes
    weights, something that parts are taken of, most of which are views of `array`.
    """

    array: Array
    pads: tuple[tuple[int, int], ...]
    axes: tuple[LayoutAxis, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        return self.array.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.array.itemsize

    @property
    def ndim(self) -> int:
        """Physical axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements, padding included."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> Array | Padded:
        """One element of the first axis, or a run of them; a view of `array` if no zero is in it.

        Where an outer piece of the same dimension follows further inside, a copy of everything is
        looked into; no layout of weights is so.
        """
        first, rest = self.axes[0], self.axes[1:]
        if any(a.dim == first.dim and a.divisor > first.divisor for a in rest):
            return np.asarray(self)[index]
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            axes, shape = self.axes, (max(stop - start, 0), *self.shape[1:])
        else:
            start, stop = index, index + 1
            axes, shape = rest, self.shape[1:]
        before, _ = self.pads[first.dim]
        low, high = (i * first.divisor - before for i in (start, stop))
        extent = self.array.shape[first.dim]
        inside = slice(*(min(max(i, 0), extent) for i in (low, high)))
        cut = (slice(None),) * first.dim + (inside,)
        pads = list(self.pads)
        pads[first.dim] = (inside.start - low, high - inside.stop)
        return padded(self.array[cut], pads, axes, shape)

    def take(self, index: tuple[Array, ...]) -> Array:
        """The elements at physical indices, one array of them per axis."""
        logical = [np.full(len(index[0]), -before) for before, _ in self.pads]
        for axis, i in zip(self.axes, index, strict=True):
            logical[axis.dim] += i * axis.divisor
        there = np.ones(len(index[0]), bool)
        for i, extent in zip(logical, self.array.shape, strict=True):
            there &= (i >= 0) & (i < extent)
        found = np.zeros(len(there), self.dtype)
        found[there] = self.array[tuple(i[there] for i in logical)]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All of it in memory."""
        sides = list(zip(self.array.shape, self.pads, strict=True))
        wide = np.zeros([before + n + behind for n, (before, behind) in sides], self.dtype)
        wide[tuple(slice(before, before + n) for n, (before, _) in sides)] = self.array
        wide.flags.writeable = False
        made = _in_axes(wide, self.axes, self.shape)
        return made if dtype is None else made.astype(dtype, copy=False)


def padded(
    array: Array,
    pads: Sequence[tuple[int, int]],
    axes: Sequence[LayoutAxis],
    shape: Sequence[int],
) -> Array | Padded:
    """A logical array with `pads` around it in physical `axes` of those extents: a view where there
    are no zeros, else a `Padded`."""
    if any(p != (0, 0) for p in pads):
        return Padded(array, tuple(pads), tuple(axes), tuple(shape))
    return _in_axes(array, axes, shape)


def _in_axes(array: Array, axes: Sequence[LayoutAxis], shape: Sequence[int]) -> Array:
    """Logical dimensions split into physical axes, in their order. A dimension that no axis is left
    of has one element."""
    inner_last = sorted(range(len(axes)), key=lambda i: (axes[i].dim, -axes[i].divisor))
    order = [inner_last.index(i) for i in range(len(axes))]
    return array.reshape([shape[i] for i in inner_last]).transpose(order)


def parts_between(array: Array | Padded, start: int, stop: int) -> Iterator[Array]:
    """The elements from byte `start` to byte `stop` in row-major order, as parts of an array, or of
    a padded one as copies of the parts that hold padding."""
    if array.ndim < 2 or (isinstance(array, np.ndarray) and array.flags.c_contiguous):
        flat = np.asarray(array).reshape(-1)
        yield flat[start // array.itemsize : stop // array.itemsize]
        return
    row = array.nbytes // len(array)
    first, last = -(-start // row), stop // row
    if first > last:  # all within one row
        yield from parts_between(array[last], start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from parts_between(array[first - 1], start - (first - 1) * row, row)
    if first < last:
        yield np.asarray(array[first:last])
    if last * row < stop:
        yield from parts_between(array[last], 0, stop - last * row)
