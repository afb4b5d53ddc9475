"""The schedule for everything without one of its own: elementwise, injective, reductions.

Lanes go over the innermost memory axis of the output when the loads allow it, else over the
innermost reduction axis; the outer axes become one parallel loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorkiln.arith import simplify, simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Load,
    Var,
    binary,
    const,
    int_value,
    logical_and,
    select,
)  # fmt: skip
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import For, If, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import substitute
from tensorkiln.ops.op import Element
from tensorkiln.schedule.access import blocked_loads, lanes_ok, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, fused, loop, zero_border
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.reductions import with_reductions
from tensorkiln.target import Target


def schedule_loops(group: Group, target: Target) -> PrimFunc:
    """Any group whose operators all have element programs."""
    call = group.calls[group.out_var]
    if call.op == "concat":
        pieces: list[Stmt] = []
        axis = call.attrs.axis % group.out_type.ndim
        offset: Expr = IntImm(0)
        for a in call.args:
            t = a.type
            assert isinstance(t, TensorType)
            region = _Region(group, target, t.shape, {axis: offset}, group.element(a))
            pieces.append(region.stmt())
            offset = simplify(offset + t.shape[axis])
        body = seq(*pieces)
    else:
        element = group.element(group.out_var)
        body = _Region(group, target, group.out_type.shape, {}, element).stmt()
    return PrimFunc(
        group.name, group.params, simplify_stmt(body, {}), inplace=inplace_params(group)
    )


def inplace_params(group: Group, skip: int = 0) -> tuple[int, ...]:
    """Parameters (after the first `skip`) of the output's very type that are only read at the
    element being written, so that the result may take their place."""
    if any(
        group.op(c).pattern not in ("elementwise", "broadcast")
        for c in group.calls.values()
        if c is not group.anchor
    ):
        return ()  # fmt: skip
    if group.anchor is not None and group.anchor.op not in ("conv2d", "linear"):
        return ()
    anchored = set(group.anchor.args) if group.anchor is not None else set()
    return tuple(
        i
        for i, p in enumerate(group.function.params)
        if i >= skip and p not in anchored and p.tensor == group.out_type
    )


@dataclass(slots=True)
class _Region:
    """Loops that write one box of the output: `shape` logical elements from `offset`."""

    group: Group
    target: Target
    shape: tuple[Expr, ...]
    offset: dict[int, Expr]
    element: Element

    def stmt(self) -> Stmt:
        t = self.group.out_type
        if self._flat_plain():
            return self._flat()
        if t.layout is not None and self._blocked():
            return self._blocked_nest()
        return self._plain_nest()

    # -- three ways to walk the box --------------------------------------------------------------

    def _flat_plain(self) -> bool:
        """Everything elementwise over tensors of one row-major shape: one long loop."""
        g = self.group
        if self.offset or any(
            g.op(c).pattern not in ("elementwise", "broadcast") for c in g.calls.values()
        ):
            return False  # fmt: skip
        shape = g.out_type.shape
        return g.out_type.layout is None and all(
            p.tensor.layout is None and p.tensor.shape == shape for p in g.function.params
        )

    def _flat(self) -> Stmt:
        """Walk as (rows, columns) buffers do, but in one loop over all elements."""
        total: Expr = IntImm(1)
        for d in self.shape:
            total = simplify(total * d)
        group = self.group
        flat = {
            p: Buffer(b.name, b.dtype, (total,), align=b.align) for p, b in group.buffers.items()
        }
        group.buffers.update(flat)
        group.out = Buffer("out", group.out.dtype, (total,), align=group.out.align)
        # The flat index travels in one dimension; an extent of 1 would be broadcast from 0.
        ndim = group.out_type.ndim
        along = next((d for d in reversed(range(ndim)) if int_value(self.shape[d]) != 1), 0)
        override = {p: _flat_element(b, along) for p, b in flat.items()}
        element = group.element(group.out_var, override)

        def value(i: Expr) -> Expr:
            return element(*(i if d == along else IntImm(0) for d in range(ndim)))

        lanes = self._lanes()
        n = int_value(total)
        if n is not None and n < lanes:
            return loop("i", n, lambda i: Store(group.out, (i,), value(i)))
        main = simplify(total // lanes)

        def body(i: Expr) -> Stmt:
            lane = Var("l")
            store = Store(group.out, (i * lanes + lane,), value(i * lanes + lane))
            return For(lane, IntImm(0), IntImm(lanes), "vectorized", store)

        kind = "parallel" if n is None or n * self._cost() > PARALLEL_WORK else "serial"
        if kind == "parallel":
            # Chunks, so that a task is worth taking and one thread's memory is contiguous.
            chunk = 64
            vectors = loop(
                "c", simplify(main // chunk),
                lambda c: loop("i", chunk, lambda i: body(c * chunk + i)), "parallel",
            )  # fmt: skip
            rest = loop("i", simplify(main % chunk), body, lo=simplify(main // chunk * chunk))
        else:
            vectors, rest = loop("i", main, body), Seq(())
        tail = loop(
            "t", simplify(total % lanes), lambda i: Store(group.out, (i,), value(i)),
            lo=simplify(main * lanes),
        )  # fmt: skip
        return seq(vectors, rest, tail)

    def _blocked(self) -> bool:
        """Channels split in blocks, spatial axes whole, box aligned to blocks."""
        layout = self.group.out_type.memory
        blocks = [a for a in layout.axes if a.divisor > 1]
        v = layout.block(1)
        if v == 1 or layout.with_halo({}) != Layout.parse(f"A B/{v} C D B%{v}"):
            return False
        at = self.offset.get(blocks[0].dim, IntImm(0))
        value = int_value(at)
        size = int_value(self.shape[blocks[0].dim])
        if value is None or size is None or value % blocks[0].divisor:
            return False
        whole = size % blocks[0].divisor == 0
        return whole or not self.offset

    def _blocked_nest(self) -> Stmt:
        """[N][C/v][H][W][v]: tasks over images, channel blocks and rows."""
        g = self.group
        t, layout = g.out_type, g.out_type.memory
        v = layout.block(1)
        blocks = -(-(int_value(self.shape[1]) or 0) // v)
        first = (int_value(self.offset.get(1, IntImm(0))) or 0) // v
        height, width = self.shape[2], self.shape[3]
        ph, pw = layout.halo(2), layout.halo(3)

        def plane(n: Expr, cb: Expr) -> Stmt:
            border = zero_border(g.out, t, (n, simplify(cb + first)))

            def at(h: Expr, w: Expr) -> Stmt:
                index = (n, simplify(cb + first), h + ph, w + pw)
                return self._vector_store(index, n, cb, h, w, v)

            rows = loop("h", height, lambda h: loop("w", width, lambda w: at(h, w)))
            return seq(border, rows)

        work = blocks * v * (int_value(height * width) or 1000) * self._cost()
        kind = "parallel" if int_value(t.shape[0]) is None or work > PARALLEL_WORK else "serial"
        return fused([t.shape[0], blocks], plane, kind)

    def _vector_store(
        self, index: tuple[Expr, ...], n: Expr, cb: Expr, h: Expr, w: Expr, v: int
    ) -> Stmt:
        """One block of channels of one pixel."""
        g = self.group
        channels = int_value(self.shape[1]) or 0

        def lane_body(lane: Expr) -> tuple[Expr, Expr]:
            c = simplify(cb * v + lane)
            return c, self.element(n, c, h, w)

        lane = Var("l")
        bounds = {lane: (0, v - 1)}
        c, value = lane_body(lane)
        value = simplify_value(value, bounds)
        store = Store(g.out, (*index, lane), value)
        if lanes_ok(value, lane):
            if channels % v == 0:
                return with_reductions(store, value, lane, v)
            if blocked_loads(value, v):
                # Lanes past the last channel exist in every operand; here they stay zero.
                value = select(c < channels, value, const(0, value.dtype))
                return with_reductions(Store(store.buffer, store.indices, value), value, lane, v)
        one = If(c < channels, with_reductions(store, value, None, 1),
                 Store(g.out, (*index, lane), const(0, g.out.dtype)))  # fmt: skip
        return For(lane, IntImm(0), IntImm(v), "serial", one)

    def _plain_nest(self) -> Stmt:
        """Any other layout: one loop per memory axis, lanes over the innermost if they fit."""
        g = self.group
        t = g.out_type
        layout = t.memory
        if layout.is_plain and not t.memory.pads(t.shape):
            return self._row_major()
        return self._padded()

    def _row_major(self) -> Stmt:
        g = self.group
        lanes = self._lanes()
        outer, inner = self.shape[:-1], self.shape[-1] if self.shape else IntImm(1)

        def index_of(lead: tuple[Expr, ...], last: Expr) -> tuple[Expr, ...]:
            index = (*lead, last)[: len(self.shape)]
            return tuple(
                simplify(i + self.offset[d]) if d in self.offset else i for d, i in enumerate(index)
            )

        def scalar(lead: tuple[Expr, ...], last: Expr) -> Stmt:
            value = self.element(*(*lead, last)[: len(self.shape)])
            value = simplify_value(value, {})
            store = Store(g.out, g.store_index(index_of(lead, last)), value)
            return with_reductions(store, value, None, 1, lanes)

        def row(*lead: Expr) -> Stmt:
            lane = Var("l")
            i = Var("i")
            probe = simplify_value(
                self.element(*(*lead, i * lanes + lane)[: len(self.shape)]), {lane: (0, lanes - 1)}
            )
            n = int_value(inner)
            fits = (n is None or n >= lanes) and lanes_ok(probe, lane) and bool(self.shape)
            if not fits:
                return loop("j", inner, lambda j: scalar(lead, j))

            def vector(iv: Expr) -> Stmt:
                value = substitute(probe, {i: iv})
                at = g.store_index(index_of(lead, iv * lanes + lane))
                return with_reductions(Store(g.out, at, value), value, lane, lanes)

            main = loop("i", simplify(inner // lanes), vector)
            rest = simplify(inner // lanes * lanes)
            tail = loop("j", simplify(inner % lanes), lambda j: scalar(lead, j), lo=rest)
            return seq(main, tail)

        if not outer:
            return row()
        work = self._cost()
        for d in self.shape:
            work *= int_value(d) or 64
        kind = "parallel" if work > PARALLEL_WORK else "serial"
        return fused(list(outer), row, kind)

    def _padded(self) -> Stmt:
        """Every element of memory in order; those outside the tensor are zero."""
        g = self.group
        t = g.out_type
        layout = t.memory
        extents = layout.physical_shape(t.shape)

        def body(*physical: Expr) -> Stmt:
            index = tuple(map(simplify, layout.logical_index(physical, t.ndim)))
            inside = []
            for d, i in enumerate(index):
                lo = self.offset.get(d, IntImm(0))
                if layout.pads(t.shape) or d in self.offset:
                    inside.append(binary("ge", i, lo))
                    inside.append(i < simplify(lo + self.shape[d]))
            local = tuple(
                simplify(i - self.offset[d]) if d in self.offset else i for d, i in enumerate(index)
            )
            value = simplify_value(self.element(*local), {})
            store = with_reductions(Store(g.out, physical, value), value, None, 1)
            zero = None if self.offset else Store(g.out, physical, const(0, g.out.dtype))
            return If(simplify(logical_and(*inside)), store, zero) if inside else store

        work = self._cost()
        for d in extents:
            work *= int_value(d) or 64
        kind = "parallel" if work > PARALLEL_WORK else "serial"
        split = len(extents) - 1

        def outer(*lead: Expr) -> Stmt:
            return loop("e", extents[split], lambda e: body(*lead, e))

        return fused(list(extents[:split]), outer, kind)

    # -- costs -----------------------------------------------------------------------------------

    def _lanes(self) -> int:
        """Lanes of the widest type the group computes with."""
        types = [self.group.out_type.dtype] + [v.tensor.dtype for v in self.group.calls]
        widest = max((t for t in types if not t.is_bool), key=lambda t: t.bits, default=types[0])
        return min(self.target.vector_lanes(widest.name), self.target.vector_lanes("float32"))

    def _cost(self) -> int:
        """Rough operations per output element."""
        cost = 1
        for call in self.group.calls.values():
            cost += 8 if call.op in ("exp", "erf", "gelu", "tanh", "sigmoid", "silu") else 1
        anchor = self.group.anchor
        if anchor is not None:
            t = anchor.args[0].type
            assert isinstance(t, TensorType)
            taken = [int_value(d) or 64 for d in t.shape]
            kept = [int_value(d) or 64 for d in self.group.out_type.shape]
            ratio = max(1, math.prod(taken) // max(1, math.prod(kept)))
            cost *= ratio
        return cost


def _flat_element(buf: Buffer, along: int) -> Element:
    return lambda *index: Load(buf, (index[along] if index else IntImm(0),))
