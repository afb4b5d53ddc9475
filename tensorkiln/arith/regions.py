"""The regions of buffers that a statement reads and writes.

A region is a box, one range per dimension, that covers all iterations of the loops inside:

    for t in range(4): C[i] = A[i, t] + C[i]    ->    reads A[i, 0:4], C[i]; writes C[i]
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.arith.simplify import affine, simplify
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import Expr, Ramp, Reduce, Var, const, int_value
from tensorkiln.ir.stmt import Alloc, Block, For, Let, MatchBuffer, Region, Stmt, Store
from tensorkiln.ir.visit import children, free_vars, has_load, stmt_exprs, substitute, substmts

Range = tuple[Expr, Expr]


def regions_of(s: Stmt) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """Return (reads, writes) of a statement, in order of first appearance.

    Regions are in terms of the variables outside of `s`: for a loop inside, they cover all its
    iterations. An index that depends on memory or is not affine gives the whole dimension. Regions
    are clipped to the buffer, as conditions must keep accesses inside. Taking the address of a
    buffer, or accessing it through a view (`MatchBuffer`), counts for the whole buffer, and an
    address as both read and write. Buffers allocated inside `s` are left out.
    """
    collector = _Collector()
    collector.stmt(s)
    return collector.result(collector.reads), collector.result(collector.writes)


def _clipped(part: Range, size: Expr) -> Range | None:
    """Return (first, count) clipped to a dimension of `size` elements, if all three are constant;
    None if nothing is left. Accesses outside are either guarded by a condition or refused by the
    verifier, so they need no region."""
    first, count, whole = int_value(part[0]), int_value(part[1]), int_value(size)
    if first is None or count is None or whole is None:
        return part
    start, end = max(first, 0), min(first + count, whole)
    if start >= end:
        return None
    if (start, end) == (first, first + count):
        return part
    return const(start, part[0].dtype), const(end - start, part[1].dtype)


class _Collector:
    def __init__(self) -> None:
        self.reads: dict[tuple[Buffer, tuple[Range, ...]], None] = {}
        self.writes: dict[tuple[Buffer, tuple[Range, ...]], None] = {}
        self.values: dict[Var, Expr | None] = {}
        self.loops: dict[Var, Range] = {}
        self.views: dict[Buffer, Buffer] = {}
        self.local_buffers: set[Buffer] = set()

    def result(
        self, accesses: Mapping[tuple[Buffer, tuple[Range, ...]], None]
    ) -> tuple[Region, ...]:
        out = dict[Region, None]()
        for b, ranges in accesses:
            inside = [_clipped(r, size) for r, size in zip(ranges, b.shape, strict=True)]
            if b not in self.local_buffers and None not in inside:
                out[Region(b, tuple(filter(None, inside)))] = None
        return tuple(out)

    def stmt(self, s: Stmt) -> None:
        match s:
            case Store(buf, indices):
                for e in (*indices, s.value):
                    self.expr(e)
                self.access(self.writes, buf, indices)
                return
            case For(var, lo, extent):
                self.expr(lo)
                self.expr(extent)
                self.loops[var] = (lo, extent)
            case Let(var, value):
                self.expr(value)
                self.values[var] = None if has_load(value) else value
            case Block(_, iters):
                for i in iters:
                    self.expr(i.value)
                    self.values[i.var] = None if has_load(i.value) else i.value
            case Alloc(buffer):
                self.local_buffers.add(buffer)
            case MatchBuffer(buffer, source):
                self.views[buffer] = source
            case _:
                for e in stmt_exprs(s):
                    self.expr(e)
        for t in substmts(s):
            self.stmt(t)

    def expr(self, e: Expr) -> None:
        if isinstance(e, Reduce):
            self.loops.update((v, (const(0, v.dtype), extent)) for v, extent in e.axes)
        for c in children(e):
            self.expr(c)
        match e:
            case Load(buf, indices):
                self.access(self.reads, buf, indices)
            case AddressOf(buf):
                self.whole(self.reads, buf)
                self.whole(self.writes, buf)

    def whole(self, into: dict[tuple[Buffer, tuple[Range, ...]], None], buf: Buffer) -> None:
        while buf in self.views:
            buf = self.views[buf]
        into.setdefault((buf, tuple((const(0, d.dtype), d) for d in buf.shape)))

    def access(
        self,
        into: dict[tuple[Buffer, tuple[Range, ...]], None],
        buf: Buffer,
        indices: tuple[Expr, ...],
    ) -> None:
        if buf in self.views:
            self.whole(into, buf)
            return
        ranges = []
        for index, size in zip(indices, buf.shape, strict=True):
            ranges.append(self.range(index) or (const(0, size.dtype), size))
        into.setdefault((buf, tuple(ranges)))

    def range(self, index: Expr) -> Range | None:
        """Return the (first, extent) that an index takes, in terms of variables bound outside of
        the statement; None if that cannot be told."""
        count: Expr = const(1, index.dtype.element)
        if isinstance(index, Ramp):
            stride, lanes, base = int_value(index.stride), index.lanes, index.base
            # A region is (first, extent): with a negative stride, the first element would be the
            # last lane's.
            if stride is None or stride < 0:
                return None
            index, count = base, const(stride * (lanes - 1) + 1, base.dtype)
        if has_load(index) or index.dtype.lanes != 1:
            return None
        while inner := [v for v in free_vars(index) if v in self.values]:
            values = {v: e for v in inner if (e := self.values[v]) is not None}
            if len(values) < len(inner):
                return None
            index = substitute(index, values)
        while inner := [v for v in free_vars(index) if v in self.loops]:
            var = inner[-1]
            linear = affine(index, (var,))
            step = None if linear is None else linear[0].get(var, 0)
            if linear is None or not isinstance(step, int):
                return None
            lo, extent = self.loops[var]
            first = lo if step >= 0 else lo + extent - 1
            index = simplify(linear[1] + first * step)
            count = simplify(count + (extent - 1) * abs(step))
        # An extent that depends on a loop inside has no value outside of the statement.
        if any(v in self.loops or v in self.values for v in free_vars(count)):
            return None
        return index, count
