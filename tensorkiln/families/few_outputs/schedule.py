"""Convolutions of 1x1 to a few channels: the image is read once, in the layout that it has.

Row-major, by pieces of its pixels, whose totals stay in the first-level cache:

    for image, piece:
        total[m, p] = bias[m]
        for group of channels c, pixel p, output m:
            total[m, p] += sum over the group of w[m, c] * x[c, p]
        out[m, p] = epilogue(total[m, p])

A group is as many channels as fit in registers with their weights: with fewer, totals would be read
and written more often; with more, cache lines of images whose size is a power of two would replace
each other. In channel blocks of v lanes, row by row:

    for image, row, pixel p, output m:
        part[l] = 0
        for block b: part[l] += w[m, b*v + l] * x[b*v + l, p]
        total[m, p] = bias[m] + sum of the lanes of part

Roles of loops: "task", over images, lines and pieces; "pixel", cut into vectors; "output", which is
unrolled; "column", pixels of channel blocks, of which several are computed at once, for all outputs
in the loop inside; "joined", over lanes that are added up; "lane".
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.families.loops.program import has_all, has_none, row_element
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import Expr, IntImm, as_expr, const, int_value, intrin
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.ops.op import Element
from tensorkiln.schedule.access import lane_bounds, simplify_value
from tensorkiln.schedule.accumulate import add_product
from tensorkiln.schedule.build import PARALLEL_WORK, lanes, loop, nest, within
from tensorkiln.schedule.channel_blocks import size_of
from tensorkiln.schedule.group import Bounds, Group, inplace_params, view_index
from tensorkiln.schedule.intrin.reduce import reduce_name
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import FEW_TASKS, nest_of, share, sink
from tensorkiln.target import Target

# Pixels of a piece, whose totals stay in the first-level cache.
_LEAST, _MOST = 512, 2048
# Channels whose products are one sum, at most.
_TERMS = 8
# Pixels of channel blocks that are computed at once, by outputs: their sums stay in registers.
_COLUMNS = 8


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """A 1x1 convolution to a few channels, with its elementwise epilogue."""
    c = _FewOutputs(group, target)
    s = Schedule(c.program(), check)
    if c.is_blocked:
        _columns(s, c)
    for pixels in s.loops(role="pixel"):
        if s.reaches(pixels, c.lanes):
            _vectorize(s, s.split(pixels, c.lanes, tail="peel").inner)
    for output in s.loops(role="output"):
        s.unroll(output)
    if target.has_threads and (int_value(c.images) or 1) * c.work > PARALLEL_WORK:
        tasks = s.loops(role="task")
        for task in tasks:
            if not set(tasks) & set(s.children(task)):
                share(s, nest_of(s, task))
    return s


def _columns(s: Schedule, c: _FewOutputs) -> None:
    """Compute several pixels of channel blocks at once, with their sums in registers."""
    for lane in s.loops(role="joined"):
        s.tensorize(lane, reduce_name("sum", c.lanes, "float32"))
    for columns in s.loops(role="column"):
        for part in s.split_even(columns, max(1, _COLUMNS // c.outputs)).parts:
            sink(s, part.inner, *s.children(part.inner))
    s.set_scope("part", "register")


def _vectorize(s: Schedule, lane: str) -> None:
    """Vectorize a loop inside the loop over outputs that it may hold."""
    (inside,) = s.children(lane)
    if inside in s.loops():
        s.reorder(inside, lane)
    s.vectorize(lane)


class _FewOutputs:
    """The operands and sizes of one convolution. An image is lines of pixels: a single one, or one
    for each row where channel blocks or operands of the epilogue are not in the order of pixels."""

    def __init__(self, group: Group, target: Target):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        x, w = call.args[:2]
        assert isinstance(x, RVar) and isinstance(w, RVar)
        self.group, self.call, self.var, self.x, self.w = group, call, var, x, w
        self.lanes = target.vector_lanes("float32")
        self.is_blocked = x.tensor.layout is not None
        self.images = x.tensor.shape[0]
        self.channels, self.lines, self.length = map(size_of, x.tensor.shape[1:])
        self.outputs = size_of(w.tensor.shape[0])
        self.work = self.outputs * self.channels * self.lines * self.length // 8
        # The dimension whose index is that of a pixel in its line, and operands in one line.
        self.along, self.merged = 3, dict[RVar, Element]()
        if not self.is_blocked:
            self._merge()
        # Weights of a group stay in registers, beside a total of each output and an element.
        registers = target.num_vector_registers - self.outputs - 1
        sizes = (n for n in (_TERMS, _TERMS // 2, _TERMS // 4) if n * self.outputs <= registers)
        self.terms = next(sizes, 1)

    def _merge(self) -> None:
        """Make one line of all pixels, if each operand has all of them, or none."""
        shape, params = self.var.tensor.shape, self.group.buffers
        operands = [p for p in params if p not in self.call.args[1:]]
        if not all(has_all(p.tensor, shape, 2) or has_none(p.tensor, shape, 2) for p in operands):
            return
        self.along = 2 if self.length == 1 else 3
        self.length, self.lines = self.lines * self.length, 1
        large = [p for p in operands if has_all(p.tensor, shape, 2)]
        self.group.flatten(large)
        size = self.length
        for p in large:
            buf = self.group.buffers[p]
            self.merged[p] = row_element(p.tensor, buf, 4, 2, self.along, size)

    def index(self, n: Expr, c: Expr, line: Expr, p: Expr) -> tuple[Expr, ...]:
        """The logical index of channel `c` of a pixel of a line."""
        if self.lines == 1:
            return (n, c, *((p, IntImm(0)) if self.along == 2 else (IntImm(0), p)))
        return n, c, line, p

    def program(self) -> PrimFunc:
        """for image, line: pieces of its pixels; whole ones, then what is left over."""
        size = max(_LEAST, min(_MOST, -(-self.length * self.lines // FEW_TASKS)))
        size = -(-size // self.lanes) * self.lanes
        whole, tail_size = divmod(self.length, size)

        def piece(count: int, first: int) -> Callable[[Expr, Expr, Expr], Stmt]:
            return lambda n, line, i: self._piece(n, line, simplify(i * size + first), count)

        parts = [
            nest(
                ["n", "line", "i"],
                [self.images, self.lines, many],
                piece(count, first),
                ["task"] * 3,
                keep=True,
            )
            for many, count, first in ((whole, size, 0), (1, tail_size, whole * size))
            if many and count
        ]
        return PrimFunc(
            self.group.name, self.group.params, seq(*parts), inplace=inplace_params(self.group)
        )

    def _piece(self, n: Expr, line: Expr, first: Expr, count: int) -> Stmt:
        """`count` pixels of a line from `first` on."""
        total = buffer("total", (self.outputs, count), "float32", "local")
        sums = self._blocks if self.is_blocked else self._groups

        def end(m: Expr, p: Expr) -> Stmt:
            index = self.index(n, m, line, simplify(first + p))
            overrides = {**self.merged, self.var: lambda *_: Load(total, (m, p))}
            value = simplify_value(self.group.element(self.group.out_var, overrides)(*index), {})
            return Store(self.group.out, self._place(index), value)

        ends = nest(["m", "p"], [self.outputs, count], end, ["", "pixel"])
        return within([total], sums(total, n, line, first, count), ends)

    def _place(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The index in the result's buffer."""
        if len(self.group.out.shape) > 1:
            return self.group.store_index(index)
        n, m, *pixel = index
        return (simplify((n * self.outputs + m) * self.length + pixel[self.along - 2]),)

    def _initial(self, m: Expr) -> Expr:
        """The bias of an output, or zero."""
        if len(self.call.args) < 3:
            return const(0, FLOAT32)
        return self.group.element(self.call.args[2])(m)

    def _weight(self, m: Expr, c: Expr, bounds: Bounds) -> Load:
        index = view_index(self.w.tensor, (m, c, IntImm(0), IntImm(0)))
        return Load(self.group.buffers[self.w], tuple(simplify(i, bounds) for i in index))

    def _groups(self, total: Buffer, n: Expr, line: Expr, first: Expr, count: int) -> Stmt:
        """Totals of row-major pixels, a group of channels after the other."""
        x = self.group.element(self.x, self.merged)

        def start(m: Expr, p: Expr) -> Stmt:
            return Store(total, (m, p), self._initial(m))

        def group(c: Expr, terms: int) -> Stmt:
            def add(p: Expr, m: Expr) -> Stmt:
                part: Expr | None = None
                for k in range(terms):
                    channel = simplify(c + k)
                    factor = simplify_value(
                        x(*self.index(n, channel, line, simplify(first + p))), {}
                    )
                    weight = self._weight(m, channel, {})
                    part = weight * factor if part is None else intrin("fma", weight, factor, part)
                assert part is not None
                return Store(total, (m, p), Load(total, (m, p)) + part)

            return nest(["p", "m"], [count, self.outputs], add, ["pixel", "output"])

        whole, tail_terms = divmod(self.channels, self.terms)
        return seq(
            nest(["m", "p"], [self.outputs, count], start, ["", "pixel"]),
            loop("g", whole, lambda g: group(simplify(g * self.terms), self.terms)),
            group(as_expr(whole * self.terms), tail_terms) if tail_terms else None,
        )

    def _blocks(self, total: Buffer, n: Expr, line: Expr, first: Expr, count: int) -> Stmt:
        """Totals of pixels in channel blocks, whose lanes are added up."""
        x, xt = self.group.buffers[self.x], self.x.tensor
        part = buffer("part", (self.lanes,), "float32", "local")

        def pixel(p: Expr, m: Expr) -> Stmt:
            def term(block: Expr, lane: Expr) -> Stmt:
                bounds = lane_bounds(lane, self.lanes)
                channel = simplify(block * self.lanes + lane, bounds)
                index = view_index(xt, self.index(n, channel, line, simplify(first + p)))
                factor = Load(x, tuple(simplify(i, bounds) for i in index))
                return add_product(part, (lane,), factor, self._weight(m, channel, bounds))

            def join(lane: Expr) -> Stmt:
                return Store(total, (m, p), Load(total, (m, p)) + Load(part, (lane,)))

            return within(
                [part],
                lanes("zero", self.lanes, lambda v: Store(part, (v,), const(0, FLOAT32))),
                nest(["b", "l"], [-(-self.channels // self.lanes), self.lanes], term, ["", "lane"]),
                Store(total, (m, p), self._initial(m)),
                loop("j", self.lanes, join, "joined"),
            )

        return nest(
            ["p", "m"], [count, self.outputs], pixel, ["column", "column.output"], keep=True
        )
