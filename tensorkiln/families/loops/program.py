"""The plain programs of groups that no other family computes, element by element in the order of
memory; `schedule.py` schedules them.

Roles of loops: "outer", over outer axes of the output; "element", along neighbours in memory;
"channel", over those of a block; reductions have "term" and "reduction" (schedule/reductions.py). A
concatenation has several output regions, whose numbers are appended to names and roles: "element0".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Var,
    as_expr,
    binary,
    const,
    int_value,
    logical_and,
    select,
)
from tensorkiln.ir.relax import RVar, TensorType, Value
from tensorkiln.ir.stmt import If, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import free_vars, loads
from tensorkiln.kernels.layouts import is_blocked, is_channels_last
from tensorkiln.ops.op import Element
from tensorkiln.schedule.access import (
    blocked_loads,
    has_vector_loads,
    in_memory_order,
    lanes_ok,
    simplify_value,
)
from tensorkiln.schedule.build import PARALLEL_WORK, around, border_of, nest
from tensorkiln.schedule.group import Group, inplace_params, product
from tensorkiln.schedule.reductions import Loops, reductions_of, with_reductions
from tensorkiln.target import Target

Shape = tuple[Expr, ...]

# The assumed extent of an unknown dimension in estimates of work.
UNKNOWN = 64
# The cost of an element beside which the computation of its place counts.
_CHEAP = 16


def loops_program(group: Group, regions: Sequence[OutputRegion]) -> PrimFunc:
    """Compute every region, one after the other."""
    body = seq(*(r.stmt() for r in regions))
    return PrimFunc(group.name, group.params, body, inplace=inplace_params(group))


def regions_of(group: Group, target: Target) -> list[OutputRegion]:
    """The boxes that the output is computed in: one for each operand of a concatenation, else the
    whole output."""
    call = group.calls[group.out_var]
    if call.op != "concat":
        return [_region(group, target, group.out_type.shape, {}, group.out_var)]
    regions: list[OutputRegion] = []
    axis = call.attrs.axis % group.out_type.ndim
    offset: Expr = IntImm(0)
    for a in call.args:
        t = a.type
        assert isinstance(t, TensorType)
        regions.append(_region(group, target, t.shape, {axis: offset}, a, str(len(regions))))
        offset = simplify(offset + t.shape[axis])
    return regions


def _region(
    group: Group,
    target: Target,
    shape: Shape,
    offset: dict[int, Expr],
    value: Value,
    number: str = "",
) -> OutputRegion:
    t = group.out_type
    kind: type[OutputRegion]
    if not offset and _is_flat(group):
        kind = Flat
    elif t.layout is not None and t.ndim == 4 and _is_blocked(group, shape, offset):
        kind = Blocked
    elif is_channels_last(t):
        kind = ChannelsLast
    elif not offset and _merged_from(group) is not None:
        kind = Merged
    else:
        kind = RowMajor if t.memory.is_plain and not t.memory.pads(t.shape) else PaddedRegion
    return kind(group, target, shape, offset, value, number)


def _is_flat(g: Group) -> bool:
    """Whether all operators are elementwise and all tensors row-major, of one shape or scalars, so
    that one flat loop computes the group."""
    shape = g.out_type.shape
    return (
        all(g.op(c).pattern in ("elementwise", "broadcast") for c in g.calls.values())
        and g.out_type.layout is None
        and all(
            p.tensor.layout is None and p.tensor.shape in (shape, ()) for p in g.function.params
        )
    )


def _merged_from(g: Group) -> int | None:
    """The first of the last dimensions that one loop can run over: all operators are elementwise,
    all tensors are row-major, and each operand either has all of these dimensions or is broadcast
    along all of them. None if they would be fewer than two, or unless only the first has an unknown
    size."""
    shape, params = g.out_type.shape, [p.tensor for p in g.function.params]
    calls = [g.op(c).pattern for c in g.calls.values()]
    if any(c not in ("elementwise", "broadcast") for c in calls) or any(
        t.layout is not None for t in (g.out_type, *params)
    ):
        return None
    extents = [int_value(d) for d in shape]
    if None in extents[1:] or 0 in extents or not all(g.views or len(t.shape) < 3 for t in params):
        return None
    for first in range(len(shape) - 1):
        if extents[first] in (None, 1) or sum(n != 1 for n in extents[first:]) < 2:
            continue
        if all(has_all(t, shape, first) or has_none(t, shape, first) for t in params):
            return first
    return None


def has_all(t: TensorType, shape: Shape, first: int) -> bool:
    """Whether a tensor has the dimensions of `shape` from `first` on."""
    count = len(shape) - first
    return t.ndim >= count and t.shape[t.ndim - count :] == shape[first:]


def has_none(t: TensorType, shape: Shape, first: int) -> bool:
    """Whether a tensor is broadcast along all dimensions of `shape` from `first` on."""
    count = min(len(shape) - first, t.ndim)
    return all(int_value(d) == 1 for d in t.shape[t.ndim - count :])


def _is_blocked(g: Group, shape: Shape, offset: dict[int, Expr]) -> bool:
    """Whether the layout is [N][C/v][H][W][v] and the box is aligned to the narrowest blocks."""
    first_channel, size = int_value(offset.get(1, IntImm(0))), int_value(shape[1])
    if not is_blocked(g.out_type) or first_channel is None or size is None:
        return False
    v = _narrowest(g)
    return first_channel % v == 0 and (size % v == 0 or not offset)


def _narrowest(g: Group) -> int:
    """The channels of the narrowest blocks that a group reads or writes: all vectors of them are
    parts of blocks of each operand."""
    types = [g.out_type, *(p.tensor for p in g.function.params)]
    return min(t.memory.block(1) for t in types if is_blocked(t))


@dataclass
class OutputRegion(ABC):
    """A box of the output: `shape` elements from `offset` on, which are the elements of `value`.

    `vector` is the role of the loop that can be cut into vectors of `lanes`; empty if there is
    none.
    """

    group: Group
    target: Target
    shape: Shape
    offset: dict[int, Expr]
    value: Value
    number: str

    def __post_init__(self) -> None:
        self.t = self.group.out_type
        self.lanes = _lanes(self.group, self.target)
        self.vector = ""
        self.around = True
        self.reduces = False

    @abstractmethod
    def stmt(self) -> Stmt:
        """The plain loops. Sets `vector`, `reduces` (elements are reductions), and `around` (there
        are loops around the reductions)."""

    def named(self, base: str) -> str:
        """A name of a loop, or a role, for this region: "j" is `j1` in region 1."""
        return base + self.number

    @property
    def work(self) -> int:
        """Scalar operations, where each unknown dimension is UNKNOWN."""
        return _cost(self.group) * math.prod(int_value(d) or UNKNOWN for d in self.shape)

    @property
    def parallel(self) -> bool:
        """Whether there is work for several threads."""
        return self.work > PARALLEL_WORK

    def element(self, index: tuple[Expr, ...]) -> Expr:
        """The value at an index of the box."""
        return self.group.element(self.value)(*index)

    def place(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The index in the output buffer of an index of the box."""
        moved = (i + self.offset[d] if d in self.offset else i for d, i in enumerate(index))
        return self.group.store_index(tuple(map(simplify, moved)))


class Flat(OutputRegion):
    """for i: out[i] = value(i), with all tensors as one-dimensional buffers."""

    def stmt(self) -> Stmt:
        """The plain loop."""
        group, ndim = self.group, self.t.ndim
        total = product(self.shape)
        large = [p for p in group.buffers if p.tensor.shape == self.shape]
        group.flatten(large)
        # The flat index is passed as the index of one dimension, whose extent must not be 1:
        # broadcasting replaces the index of such a dimension by 0.
        along = next((d for d in reversed(range(ndim)) if int_value(self.shape[d]) != 1), 0)
        rows = {p: _flat_element(group.buffers[p], along) for p in large}
        element = group.element(self.value, rows)
        if int_value(total) == 0:
            return Seq(())
        n = int_value(total)
        if n is None or n >= self.lanes:
            self.vector = self.named("element")
        i = Var(self.named("j"))
        value = element(*(i if d == along else IntImm(0) for d in range(ndim)))
        return around([(i, total, self.named("element"))], Store(group.out, (i,), value))

    @property
    def parallel(self) -> bool:
        """Whether there is work for several threads."""
        n = int_value(product(self.shape))
        return n is None or n * _cost(self.group) > PARALLEL_WORK


class Merged(OutputRegion):
    """for each index of the first dimensions: for i: out[index, i] = value(index, i), where i runs
    over all of the last dimensions."""

    @property
    def planes(self) -> int:
        """The iterations of the loops around i, where each unknown dimension is UNKNOWN."""
        return math.prod(int_value(d) or UNKNOWN for d in self.shape[: _merged_from(self.group)])

    def stmt(self) -> Stmt:
        """The plain loops."""
        group, first = self.group, _merged_from(self.group)
        assert first is not None
        inner = int_value(product(self.shape[first:])) or 0
        along = max(d for d in range(first, len(self.shape)) if int_value(self.shape[d]) != 1)
        large = [p for p in group.buffers if has_all(p.tensor, self.shape, first)]
        group.flatten(large)
        rows = {
            p: row_element(p.tensor, group.buffers[p], len(self.shape), first, along, inner)
            for p in large
        }
        element = group.element(self.value, rows)
        index = [Var(self.named("i")) for _ in range(first)]
        i = Var(self.named("j"))
        zeros = [IntImm(0)] * len(self.shape)
        out_index = (
            *index,
            *(i if d == along else zeros[d] for d in range(first, len(self.shape))),
        )
        value = simplify_value(element(*out_index), {})
        place = simplify(row_major(index, self.shape[:first]) * inner + i)
        self.around = bool(index)
        if inner >= self.lanes:
            self.vector = self.named("element")
        loops = [
            (v, d, self.named("outer")) for v, d in zip(index, self.shape[:first], strict=True)
        ]
        loops.append((i, as_expr(inner), self.named("element")))
        return around(loops, Store(group.out, (place,), value))


class Blocked(OutputRegion):
    """[N][C/v][H][W][v]: for image, block of channels: zero halo; for row, column, channel."""

    @property
    def blocks(self) -> int:
        """Blocks of channels of all images, where each unknown dimension is UNKNOWN."""
        images, channels = (int_value(d) or UNKNOWN for d in self.shape[:2])
        return images * -(-channels // _narrowest(self.group))

    def stmt(self) -> Stmt:
        """The plain loops."""
        g, layout = self.group, self.t.memory
        self.lanes = v = _narrowest(g)
        channels = int_value(self.shape[1]) or 0
        first = (int_value(self.offset.get(1, IntImm(0))) or 0) // v
        border, width = [layout.halo(2), layout.halo(3)], layout.block(1)
        lane = Var(self.named("c"))

        def one(n: Expr, cb: Expr, h: Expr, w: Expr) -> Stmt:
            c = simplify(cb * v + lane)
            block: Expr = simplify(cb + first)
            part: Expr = lane
            if width > v:
                block, part = simplify(block * v // width), simplify(block * v % width + lane)
            out_index = (n, block, h + border[0], w + border[1], part)
            value = simplify_value(self.element((n, c, h, w)), {lane: (0, v - 1)})
            zero = const(0, value.dtype)
            self.reduces = bool(reductions_of(value))
            if lanes_ok(value, lane) and (channels % v == 0 or blocked_loads(value, v, lane)):
                self.vector = self.named("channel")
                if channels % v:
                    # Every operand has memory for the lanes past the last channel; the output's
                    # stay zero.
                    value = select(c < channels, value, zero)
                body = with_reductions(Store(g.out, out_index, value), 1)
            else:
                body = with_reductions(Store(g.out, out_index, value), 1)
                if channels % v:
                    body = If(c < channels, body, Store(g.out, out_index, zero))
            return around([(lane, IntImm(v), self.named("channel"))], body)

        def plane(n: Expr, cb: Expr) -> Stmt:
            names, roles = (tuple(map(self.named, x)) for x in (("h", "w"), ("row", "column")))
            pixels = nest(names, self.shape[2:], lambda h, w: one(n, cb, h, w), roles)
            return seq(border_of(g.out, self.t, (n, simplify(cb + first)), v), pixels)

        names, roles = [self.named("i")] * 2, [self.named("outer")] * 2
        return nest(names, [self.shape[0], -(-channels // v)], plane, roles)

    @property
    def parallel(self) -> bool:
        """Whether there is work for several threads."""
        n, _, height, width = self.shape
        work = int_value(self.shape[1]) or 0
        work = -(-work // self.lanes) * self.lanes * (int_value(height * width) or 1000)
        return int_value(n) is None or work * _cost(self.group) > PARALLEL_WORK


class ChannelsLast(OutputRegion):
    """for image, row, column: for channel: out[image, row, column, channel] = value."""

    def stmt(self) -> Stmt:
        """The plain loops."""
        names = [self.named(x) for x in "ihwc"]
        n, h, w, c = map(Var, names)
        value = simplify_value(self.element((n, c, h, w)), {})
        self.reduces = bool(reductions_of(value))
        extents = [self.shape[0], *self.shape[2:], self.shape[1]]
        roles = [self.named(x) for x in ("outer", "outer", "outer", "channel")]
        body = with_reductions(Store(self.group.out, self.place((n, c, h, w)), value), 1)
        return around(list(zip((n, h, w, c), extents, roles, strict=True)), body)

    def has_vectors(self, lanes: int) -> bool:
        """Whether so many neighbouring channels can be computed as one vector."""
        channels, (n, h, w, step, lane) = (
            int_value(self.shape[1]),
            map(Var, ("n", "h", "w", "s", "l")),
        )
        if channels is None or channels % lanes:
            return False
        value = self.element((n, step * lanes + lane, h, w))
        return has_vector_loads(simplify_value(value, {lane: (0, lanes - 1)}), lane)


class RowMajor(OutputRegion):
    """for each index: out[index] = value(index).

    Loops that no reduction depends on run inside, around the use of the results alone: in
    out[i, j] = x[i, j] / sum(x[i, k] for k), the sum is computed once per i, before the loop over
    j.
    """

    def stmt(self) -> Stmt:
        """The plain loops."""
        if any(int_value(d) == 0 for d in self.shape):
            return Seq(())
        last = len(self.shape) - 1
        names = [self.named("j" if d == last else "i") for d in range(last + 1)]
        index = tuple(map(Var, names))
        value = simplify_value(self.element(index), {})
        outside, inside = self._order(value, index)
        self.around = bool(outside)
        store = Store(self.group.out, self.place(index), value)
        if index and self._has_lanes(index):
            self.vector = self.named("element")
        return around(outside, with_reductions(store, self.lanes, inside))

    def _order(self, value: Expr, index: tuple[Var, ...]) -> tuple[Loops, Loops]:
        """(loops around the reductions, loops around the store alone)."""
        roles = [self.named("element" if i is index[-1] else "outer") for i in index]
        loops = list(zip(index, self.shape, roles, strict=True))
        reductions = reductions_of(value)
        self.reduces = bool(reductions)
        reduced = {v for r in reductions for v in free_vars(r)}
        if not reductions:
            return loops, []
        return [x for x in loops if x[0] in reduced], [x for x in loops if x[0] not in reduced]

    @property
    def row_work(self) -> int:
        """Scalar operations of a row."""
        return _cost(self.group) * (int_value(self.shape[-1]) or UNKNOWN)

    def has_same_places(self, rows: int) -> bool:
        """Whether elements are cheap, and read one by one at computed places that are the same in
        each of at least so many rows."""
        if not self.shape or self.vector or self.reduces or _cost(self.group) > _CHEAP:
            return False
        count = int_value(product(self.shape[:-1]))
        index = tuple(Var(f"i{d}") for d in range(len(self.shape)))
        value = simplify_value(self.element(index), {})
        places = [x for load in loads(value) for i in load.indices for x in loads(i)]
        is_same = all(free_vars(x) == [index[-1]] for x in places)
        return bool(places) and is_same and (count is None or count >= rows)

    def _has_lanes(self, index: tuple[Var, ...]) -> bool:
        """Whether neighbours in the last axis may be the lanes of a vector."""
        extent = int_value(self.shape[-1])
        if extent is not None and extent < self.lanes:
            return False
        value = self.element(index)
        sums = [(r.value, r.axes[-1][0]) for r in reductions_of(simplify_value(value, {}))]
        if any(in_memory_order(x, k) and not in_memory_order(x, index[-1]) for x, k in sums):
            return False  # the terms of the sum are contiguous: they become the lanes
        step, lane = Var("step"), Var("lane")
        value = self.element((*index[:-1], step * self.lanes + lane))
        return lanes_ok(simplify_value(value, {lane: (0, self.lanes - 1)}), lane)


class PaddedRegion(OutputRegion):
    """Every element of the output's memory in order; padding is set to zero."""

    def stmt(self) -> Stmt:
        """The plain loops."""
        layout = self.t.memory
        extents = layout.physical_shape(self.t.shape)
        names, roles = ([self.named(x)] * (len(extents) - 1) for x in ("i", "outer"))
        return nest([*names, self.named("e")], extents, self._at, [*roles, ""])

    def _at(self, *physical: Expr) -> Stmt:
        layout, out = self.t.memory, self.group.out
        index = tuple(map(simplify, layout.logical_index(physical, self.t.ndim)))
        inside = []
        for d, i in enumerate(index):
            lo = self.offset.get(d, IntImm(0))
            if layout.pads(self.t.shape) or d in self.offset:
                inside.append(binary("ge", i, lo))
                inside.append(i < simplify(lo + self.shape[d]))
        local = tuple(simplify(i - self.offset.get(d, 0)) for d, i in enumerate(index))
        place = self.group.store_index(index) if is_channels_last(self.t) else physical
        store = Store(out, place, simplify_value(self.element(local), {}))
        body = with_reductions(store, 1)
        if not inside:
            return body
        zero = None if self.offset else Store(out, place, const(0, out.dtype))
        return If(simplify(logical_and(*inside)), body, zero)

    @property
    def parallel(self) -> bool:
        """Whether there is work for several threads."""
        work = _cost(self.group)
        for d in self.t.memory.physical_shape(self.t.shape):
            work *= int_value(d) or UNKNOWN
        return work > PARALLEL_WORK


def _flat_element(buf: Buffer, along: int) -> Element:
    return lambda *index: Load(buf, (index[along] if index else IntImm(0),))


def row_element(
    t: TensorType, buf: Buffer, ndim: int, first: int, along: int, inner: int
) -> Element:
    """Elements of a tensor whose dimensions from `first` on are flattened: their index is that of
    dimension `along` of an output of `ndim` dimensions."""
    missing = ndim - t.ndim
    lead = t.shape[: first - missing]

    def element(*index: Expr) -> Expr:
        row = row_major(index[: len(lead)], lead)
        return Load(buf, (simplify(row * inner + index[along - missing]),))

    return element


def row_major(index: Sequence[Expr], shape: Shape) -> Expr:
    """The number of an element in row-major order."""
    number: Expr = IntImm(0)
    for i, d in zip(index, shape, strict=True):
        number = number * d + i
    return number


def _lanes(group: Group, target: Target) -> int:
    """Vector lanes for the widest type that the group computes with, at most those of float32.
    The places of rows are one for a whole row, so their type does not count."""
    places = _places_of_rows(group)
    types = [group.out_type.dtype] + [v.tensor.dtype for v in group.calls if v not in places]
    widest = max((t for t in types if not t.is_bool), key=lambda t: t.bits, default=types[0])
    return min(target.vector_lanes(widest.name), target.vector_lanes("float32"))


def _places_of_rows(group: Group) -> set[RVar]:
    """The values that are computed only to say which rows are read."""
    row_places: set[RVar] = set()
    other_values: set[Value] = {group.out_var}
    for v, call in reversed(group.calls.items()):
        if v not in other_values:
            row_places.add(v)
        elif call.op == "take" and call.attrs.axis % _rank(call.args[0]) < _rank(call.args[0]) - 1:
            other_values.add(call.args[0])
        else:
            other_values.update(call.args)
    return row_places


def _rank(x: Value) -> int:
    assert isinstance(x.type, TensorType)
    return x.type.ndim


def _cost(group: Group) -> int:
    """A rough number of scalar operations per output element."""
    cost = 1
    for call in group.calls.values():
        cost += 8 if call.op in ("exp", "erf", "gelu", "tanh", "sigmoid", "silu") else 1
    anchor = group.anchor
    if anchor is not None:
        t = anchor.args[0].type
        assert isinstance(t, TensorType)
        input_extents = [int_value(d) or UNKNOWN for d in t.shape]
        output_extents = [int_value(d) or UNKNOWN for d in group.out_type.shape]
        cost *= max(1, math.prod(input_extents) // max(1, math.prod(output_extents)))
    return cost
