"""Offsets and counters of loops in the type of a processor's word, where they provably fit.

On a processor of 32-bit registers an int64 takes two of them. Loop variables and indices are int32
there if they fit (`transform/tir/narrow_indices.py`); this file decides the same for what tensor
programs do not have: the offset of an element, and the counter of a loop.
"""

from __future__ import annotations

from tensorkiln.arith import Bounds, bound
from tensorkiln.arith.fits import fits
from tensorkiln.codegen.expand.offsets import Offset, flat_offset
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import Broadcast, Expr, IntImm, Ramp, Var, binary, int_value


class Words:
    """Which expressions of one function have the type `dtype`, a word of the processor, and what is
    known of their variables. With words of 64 bits nothing is known, and all offsets are int64.
    With `only` words, everything is a word."""

    def __init__(self, bits: int, only: bool = False):
        self.dtype, self.only = DType(f"int{bits}"), only
        self._bounds = Bounds()
        self._most: dict[Var, int | None] = {}

    def loop(self, var: Var, lo: Expr, extent: Expr) -> bool:
        """Declare the variable of a loop. Returns whether its counter, which also reaches lo +
        extent, may have its type."""
        if self.only:
            return True
        limits = (lo, extent, binary("add", lo, extent))
        is_short = self._short(var) and all(fits(e, self.dtype, self._bounds) for e in limits)
        if is_short:
            self._declare(var, self._bounds.with_loop(var, lo, extent))
        else:
            self._forget(var)
        return is_short

    def let(self, var: Var, value: Expr) -> None:
        """Declare a variable that is bound to a value."""
        if self._short(var) and fits(value, self.dtype, self._bounds):
            limits = bound(value, self._bounds)
            self._declare(var, self._bounds.with_range(var, *limits))
        else:
            self._forget(var)

    def _declare(self, var: Var, bounds: Bounds) -> None:
        self._bounds, self._most[var] = bounds, _magnitude(var, bounds)

    def _forget(self, var: Var) -> None:
        """Forget a variable: unrolling repeats loops, and what held in one copy may not hold in
        another."""
        if var in self._most:
            del self._most[var]
            self._bounds = self._bounds.with_range(var, None, None)

    def offset(self, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[Offset, int | None, DType]:
        """An offset as `flat_offset` gives it, and the type to compute it in: a word if no sum of
        its terms, in whatever order, can overflow one, else int64."""
        if self.only:
            return *flat_offset(buf, indices, self.dtype), self.dtype
        if self.dtype != INT64 and all(int_value(s) is not None for s in buf.strides):
            lanes = max((i.dtype.lanes for i in indices), default=1)
            if all(map(self._short, map(_first, indices))):
                flat, stride = flat_offset(buf, indices, self.dtype)
                if stride is not None and self._holds(flat, stride * (lanes - 1)):
                    return flat, stride, self.dtype
        return *flat_offset(buf, indices), INT64

    def _short(self, e: Expr) -> bool:
        """Whether an expression has the type of a word, or is a literal that fits into one."""
        if isinstance(e, IntImm):
            return -self._end() <= e.value < self._end()
        return self.dtype != INT64 and e.dtype == self.dtype

    def _end(self) -> int:
        return 1 << (self.dtype.bits - 1)

    def _holds(self, flat: Offset, last: int) -> bool:
        """Whether a word holds the sum of every subset of the terms; `last` is the distance between
        lanes."""
        largest = abs(flat.constant) + abs(last)
        for scale, e in flat.terms:
            size = self._largest(e)
            if size is None:
                return False
            largest += abs(scale) * size
        return largest < self._end()

    def _largest(self, e: Expr) -> int | None:
        """The largest magnitude of a term; None if it is unknown, or if a part of it may wrap."""
        if isinstance(e, Var):
            return self._most.get(e)
        return _magnitude(e, self._bounds) if fits(e, self.dtype, self._bounds) else None


def _first(i: Expr) -> Expr:
    """An index, or lane 0 of a vector of indices."""
    return i.base if isinstance(i, Ramp) else i.a if isinstance(i, Broadcast) else i


def _magnitude(e: Expr, bounds: Bounds) -> int | None:
    lo, hi = bound(e, bounds)
    return None if lo is None or hi is None else max(abs(lo), abs(hi))
