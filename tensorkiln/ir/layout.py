"""Layouts: how the elements of a logical tensor lie in memory.

A layout lists the physical axes, outermost first. Each holds a part of the index of one logical
dimension (`A` is the first dimension, `B` the second, ...):

    A        the whole index            B/16     index // 16
    B%16     index % 16                 C+1      the whole index + 1: a halo of 1 on both sides

`"A B/16 C+1 D+1 B%16"` is NCHW in blocks of 16 channels with a spatial halo of one. Elements
outside the logical shape (the halo, and the rest of the last block) are zero, and whoever writes
the tensor writes those zeros.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, IntImm, as_expr, int_value
from tensorkiln.ir.padded import Array, LayoutAxis, Padded, padded

_AXIS = re.compile(r"([A-H])(?:/(\d+))?(?:%(\d+))?(?:\+(\d+))?$")


@dataclass(frozen=True, slots=True)
class Layout:
    axes: tuple[LayoutAxis, ...]

    @staticmethod
    @functools.cache
    def parse(text: str) -> Layout:
        """Inverse of `str`. Raise ValueError, naming the part of the text that is not an axis."""
        axes = []
        for piece in text.split():
            m = _AXIS.match(piece)
            if m is None:
                raise ValueError(f"not a layout axis: {piece!r} in {text!r}")
            div, mod, halo = (
                int(g) if g else d for g, d in zip(m.groups()[1:], (1, 0, 0), strict=True)
            )
            axes.append(LayoutAxis("ABCDEFGH".index(m[1]), div, mod, halo))
        return Layout(tuple(axes))

    @staticmethod
    @functools.cache
    def plain(ndim: int) -> Layout:
        """The row-major layout of `ndim` dimensions."""
        return Layout(tuple(LayoutAxis(d) for d in range(ndim)))

    def __str__(self) -> str:
        return " ".join(map(str, self.axes))

    @property
    def is_plain(self) -> bool:
        return self == Layout.plain(len(self.axes))

    def halo(self, dim: int) -> int:
        return max((a.halo for a in self.axes if a.dim == dim), default=0)

    def block(self, dim: int) -> int:
        """The smallest block size into which `dim` is split, or 1: 16 for `B/16 ... B%16`."""
        return min((a.divisor for a in self.axes if a.dim == dim and a.divisor > 1), default=1)

    def with_halo(self, halos: dict[int, int]) -> Layout:
        """The same order with the given halo per logical dimension (others become 0)."""
        return Layout(
            tuple(LayoutAxis(a.dim, a.divisor, a.modulus, halos.get(a.dim, 0)) for a in self.axes)
        )

    def renamed(self, dims: Sequence[int]) -> Layout:
        """The layout of the same memory for other logical dimensions: dimension d is `dims[d]`."""
        return Layout(tuple(replace(a, dim=dims[a.dim]) for a in self.axes))

    def physical_shape(self, shape: Sequence[Expr]) -> tuple[Expr, ...]:
        """Extents of the physical axes for a logical shape."""
        numbers = tuple(
            d.value if isinstance(d, IntImm) and d.dtype == INT64 else None for d in shape
        )
        if None not in numbers:
            return self._static(numbers)
        out: list[Expr] = []
        for a in self.axes:
            n = as_expr(shape[a.dim]) + 2 * a.halo
            if a.divisor > 1:
                n = (n + (a.divisor - 1)) // a.divisor
            out.append(as_expr(a.modulus) if a.modulus else n)
        return tuple(out)

    @functools.lru_cache(maxsize=4096)  # noqa: B019
    def _static(self, shape: tuple[int, ...]) -> tuple[Expr, ...]:
        """`physical_shape` of constants, memoised: every pass and the verifier evaluate it."""
        extents = (-(-(shape[a.dim] + 2 * a.halo) // a.divisor) for a in self.axes)
        return tuple(IntImm(a.modulus or n) for a, n in zip(self.axes, extents, strict=True))

    def physical_index(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """The physical index of the element at a logical index."""
        out: list[Expr] = []
        for a in self.axes:
            i = as_expr(index[a.dim]) + a.halo
            if a.divisor > 1:
                i = i // a.divisor
            out.append(i % a.modulus if a.modulus else i)
        return tuple(out)

    def logical_index(self, physical: Sequence[Expr], ndim: int) -> tuple[Expr, ...]:
        """The logical index of the element at a physical index; outside the logical shape for
        padding, and negative in a halo."""
        index: list[Expr] = [as_expr(0)] * ndim
        for a, p in zip(self.axes, physical, strict=True):
            index[a.dim] = index[a.dim] + (p * a.divisor - a.halo)
        return tuple(index)

    def pads(self, shape: Sequence[Expr]) -> bool:
        """Whether memory holds elements outside the logical `shape`: a halo, or a partial block.

        A dimension that is split into blocks counts as padded when its extent is symbolic.
        """
        for d in range(len(shape)):
            if self.halo(d):
                return True
            largest = max((a.divisor for a in self.axes if a.dim == d), default=1)
            extent = int_value(shape[d])
            if largest > 1 and (extent is None or extent % largest):
                return True
        return False

    def _splits(self, dim: int) -> list[LayoutAxis]:
        return sorted((a for a in self.axes if a.dim == dim), key=lambda a: -a.divisor)

    def pack(self, array: Array) -> Array:
        """The physical form of a logical array: a view of it, or a copy padded with zeros."""
        return np.asarray(self.packed(array))

    def packed(self, array: Array) -> Array | Padded:
        """`pack` without a copy: a view, or a `Padded` that makes the padding when it is read."""
        pads, shape = [], dict[LayoutAxis, int]()
        for d, extent in enumerate(array.shape):
            splits, halo = self._splits(d), self.halo(d)
            inner = math.prod(a.modulus for a in splits[1:])
            outer = -(-(extent + 2 * halo) // inner)
            pads.append((halo, outer * inner - extent - halo))
            shape |= {a: a.modulus if k else outer for k, a in enumerate(splits)}
        return padded(array, pads, self.axes, [shape[a] for a in self.axes])

    def unpack(self, packed: Array, shape: Sequence[int]) -> Array:
        """Inverse of `pack`: the elements within the logical `shape`, a view where possible."""
        by_axis = {a: i for i, a in enumerate(self.axes)}
        order: list[int] = []
        merged: list[int] = []
        window: list[slice] = []
        for d, extent in enumerate(shape):
            splits, halo = self._splits(d), self.halo(d)
            order += [by_axis[a] for a in splits]
            merged.append(math.prod(packed.shape[by_axis[a]] for a in splits))
            window.append(slice(halo, halo + extent))
        return packed.transpose(order).reshape(merged)[tuple(window)]
