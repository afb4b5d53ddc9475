"""Detection of accesses that are certainly out of bounds: by constant indices, or by affine indices
in loops of constant bounds that certainly run. Anything uncertain is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Binary, Broadcast, Cast, Expr, IntImm, Ramp, Unary, Var, int_value
from tensorkiln.ir.malformed import Malformed
from tensorkiln.ir.stmt import Region

# An affine sum: the factor of each variable, and the constant term under None.
Sum = dict[Var | None, int]


class Reach:
    """Ranges of indices at the current place of a traversal.

    Only code that certainly runs is checked; `conditional` marks the rest. With `checks` False,
    nothing is.
    """

    def __init__(self, checks: bool) -> None:
        self._loops: dict[Var, tuple[int, int]] = {}  # first and last value of constant loops
        self._values: dict[Var, Sum] = {}  # bound variables, as sums over loops and symbolic sizes
        self._sure = checks

    @contextmanager
    def conditional(self, sure: bool = False) -> Iterator[None]:
        """Enter a part that may not run, unless `sure`: a branch, a loop without constant bounds,
        an operand of a select."""
        before, self._sure = self._sure, self._sure and sure
        yield
        self._sure = before

    def stop(self) -> None:
        """Stop checking: what follows, such as the code after an assertion, may not run."""
        self._sure = False

    @contextmanager
    def loop(self, var: Var, lo: Expr, extent: Expr) -> Iterator[None]:
        """Enter the body of a loop; its indices are checked if the bounds are constant."""
        first, count = int_value(lo), int_value(extent)
        self._values.pop(var, None)
        if first is not None and count is not None:
            self._loops[var] = (first, first + count - 1)
        with self.conditional((count or 0) > 0 and first is not None):
            yield

    def bind(self, var: Var, value: Expr) -> None:
        """Record the value of a variable bound by a Let or a block."""
        terms = self._sum(value) if self._sure else None
        self._values.pop(var, None)
        self._loops.pop(var, None)
        if terms is not None:
            self._values[var] = terms

    def check(self, b: Buffer, indices: tuple[Expr, ...], node: Expr | None) -> None:
        """Raise Malformed if an index is certainly out of bounds; `node` is the access."""
        if not self._sure:
            return
        for k, (e, extent) in enumerate(zip(indices, b.shape, strict=True)):
            value, size = int_value(e), int_value(extent)
            if value is not None and size is not None and 0 <= value < size:
                continue
            for end in _ends(e):
                self._check_one(b, k, end, extent, node)

    def _check_one(self, b: Buffer, k: int, e: Expr, extent: Expr, node: Expr | None) -> None:
        low = self._extreme(e, None, -1)
        high = self._extreme(e, extent, 1)
        bad = low if low is not None and low[0] < 0 else None
        bad = high if bad is None and high is not None and high[0] >= 0 else bad
        if bad is None:
            return
        size = int_value(extent)
        value = bad[0] if bad is low else bad[0] + size if size is not None else None
        subject = f"index {value}" if value is not None else "an index"
        loop_values = f", where {bad[1]}" if bad[1] else ""
        hint = f"elements of this dimension are 0 to {extent!r} - 1"
        if size is not None:
            hint = (
                f"elements of this dimension are 0 to {size - 1}"
                if size
                else "this dimension has no elements"
            )
        if bad[1]:
            hint += "; an `if` around the access leaves the others out"
        raise Malformed(f"{subject} of dimension {k} of {b!r}{loop_values}", hint, node)

    def check_view(self, view: Buffer, source: Buffer, indices: tuple[Expr, ...]) -> None:
        """Raise Malformed if a view from `source[indices]` certainly ends behind its source."""
        last, end = _last(view), _last(source)
        if not self._sure or last is None or end is None:
            return
        position: Expr = IntImm(last)
        for e, stride in zip(indices, source.strides, strict=True):
            position = Binary("add", position, Binary("mul", e, stride))
        high = self._extreme(position, None, 1)
        if high is not None and high[0] > end:
            loop_values = f", where {high[1]}" if high[1] else ""
            message = f"the view ends at element {high[0]} of {source!r}{loop_values}"
            raise Malformed(
                message, f"elements are 0 to {end}: a smaller shape, or smaller strides"
            )

    def check_region(self, r: Region) -> None:
        """Raise Malformed if a region with constant ranges is out of bounds."""
        for k, ((lo, extent), whole) in enumerate(zip(r.ranges, r.buffer.shape, strict=True)):
            first, count, size = int_value(lo), int_value(extent), int_value(whole)
            if not self._sure or first is None or count is None or size is None:
                continue
            if not 0 <= first <= size - count:
                message = (
                    f"elements {first} to {first + count - 1} of dimension {k} of {r.buffer!r}"
                )
                raise Malformed(message, f"elements of this dimension are 0 to {size - 1}")

    def _extreme(self, e: Expr, subtrahend: Expr | None, sign: int) -> tuple[int, str] | None:
        """The greatest (sign 1) or least (-1) value of `e - less`, and for the message the loop
        variables that reach it, such as "i = 7". None if not affine, symbolic, or not certain."""
        total = self._sum(e)
        subtrahend_terms: Sum | None = {} if subtrahend is None else self._sum(subtrahend)
        if total is None or subtrahend_terms is None:
            return None
        total = _plus(total, subtrahend_terms, -1)
        value, places = total.pop(None, 0), []
        for v, factor in total.items():
            if v not in self._loops:
                return None
            first, last = self._loops[v]
            loop_value = last if factor * sign > 0 else first
            value += factor * loop_value
            places.append(f"{v!r} = {loop_value}")
        bits = e.dtype.bits - 1
        return (value, ", ".join(places)) if abs(value) < 1 << bits else None

    def _sum(self, e: Expr) -> Sum | None:
        """`e` as an affine sum of loop variables and symbolic sizes; None if it is not affine."""
        match e:
            case IntImm(value):
                return {None: value}
            case Var():
                return self._values.get(e, {e: 1})
            case Binary("add" | "sub" as op, a, b):
                x, y = self._sum(a), self._sum(b)
                if x is None or y is None:
                    return None
                return _plus(x, y, 1 if op == "add" else -1)
            case Binary("mul", a, b):
                x, y = self._sum(a), self._sum(b)
                if x is None or y is None or (set(x) - {None} and set(y) - {None}):
                    return None
                by, of = (x, y) if not set(x) - {None} else (y, x)
                return _plus({}, of, by.get(None, 0))
            case Unary("neg", a):
                x = self._sum(a)
                return None if x is None else _plus({}, x, -1)
            case Cast(a, dtype) if dtype.is_int and a.dtype.is_int and dtype.bits >= a.dtype.bits:
                return None if dtype.is_unsigned != a.dtype.is_unsigned else self._sum(a)
        return None


def _last(b: Buffer) -> int | None:
    """Offset in elements of a buffer's last element; None if it is empty or has symbolic sizes."""
    total = 0
    for d, s in zip(b.shape, b.strides, strict=True):
        extent, stride = int_value(d), int_value(s)
        if extent is None or stride is None or extent < 1:
            return None
        total += (extent - 1) * max(stride, 0)
    return total


def _plus(a: Sum, b: Sum, times: int) -> Sum:
    out = dict(a)
    for v, factor in b.items():
        out[v] = out.get(v, 0) + times * factor
    return {v: factor for v, factor in out.items() if factor}


def _ends(e: Expr) -> tuple[Expr, ...]:
    """The first and last lane of an index; none for a vector that is not a Ramp or Broadcast."""
    if isinstance(e, Broadcast):
        return (e.a,)
    if isinstance(e, Ramp):
        last = IntImm(e.lanes - 1, e.base.dtype)
        return (e.base, Binary("add", e.base, Binary("mul", e.stride, last)))
    return (e,) if e.dtype.lanes == 1 else ()
