"""Data movement: layout changes, transposes and slices, with elementwise work on the way.

Memory on both sides is flat; every loop axis has a stride in the output and one in each operand.
Axes that run on in one another are merged, then one of three forms applies:

    copy        the axis of unit stride is the same on both sides: vectors along it
    transpose   they differ: squares of lanes x lanes elements are turned over in registers
    strided     no common unit stride: scalars

Parts of a partial channel block that lie past the last channel are written as zeros, and so is the
output's halo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.arith import affine, simplify, simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Load,
    Shuffle,
    Var,
    as_expr,
    const,
    int_value,
    select,
)  # fmt: skip
from tensorkiln.ir.stmt import Alloc, For, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import map_children, walk
from tensorkiln.schedule.access import blocked_loads, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, fused, lane_ramp, loop
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target


@dataclass(frozen=True, slots=True)
class _Axis:
    """One loop: extent, stride in the output, and strides of the loads in their buffers."""

    extent: int
    out: int
    loads: tuple[int, ...]

    def continues(self, inner: _Axis) -> bool:
        """Whether this axis is `inner` going on, in every buffer."""
        ahead = (inner.out * inner.extent, *(s * inner.extent for s in inner.loads))
        return (self.out, *self.loads) == ahead


@dataclass(frozen=True, slots=True)
class _Box:
    """A box of output elements: `value` holds the loads, whose offsets are affine in the axes.

    `valid` < extent of the unit-stride output axis: the rest of it is zero.
    """

    axes: tuple[_Axis, ...]
    out_base: int
    bases: tuple[int, ...]
    value: Expr
    loads: tuple[Load, ...]
    valid: int
    wide: bool


def plan_movement(group: Group) -> list[_Box] | None:
    """The boxes of a group without anchor whose loads are all affine; None when there are others,
    extents are symbolic, or the elements are not 32 bits wide."""
    calls = list(group.calls.values())
    patterns = {group.op(c).pattern for c in calls}
    if "injective" not in patterns or patterns - {"injective", "elementwise", "broadcast"}:
        return None
    out = group.out_type
    types = [out, *(p.tensor for p in group.function.params), *(v.tensor for v in group.calls)]
    if calls[-1].op == "concat" or any(t.dtype != out.dtype or t.dtype.bits != 32 for t in types):
        return None
    if any(t.static_shape() is None for t in types) or 0 in (out.static_shape() or ()):
        return None
    blocks = [(d, t.memory.block(d)) for t in types for d in range(t.ndim) if t.memory.block(d) > 1]
    width = blocks[0][1] if blocks else 1
    own = [d for d in range(out.ndim) if out.memory.block(d) > 1]
    choices = [own] if own else [[], *([d] for d in range(out.ndim) if width > 1)]
    if len(own) > 1 or len({v for _, v in blocks}) > 1:
        return None
    for split in choices:
        boxes = _boxes(group, split[0] if split else None, width)
        if boxes is not None:
            return boxes
    return None


def _boxes(group: Group, split: int | None, width: int) -> list[_Box] | None:
    """The box of whole blocks and the box of the rest, when dimension `split` is cut in blocks."""
    shape = group.out_type.static_shape()
    assert shape is not None
    if split is None:
        box = _box(group, None, 1, 0, 0)
        return None if box is None else [box]
    whole, rest = divmod(shape[split], width)
    boxes = []
    if whole:
        boxes.append(_box(group, split, width, 0, whole))
    if rest:
        boxes.append(_box(group, split, width, whole, 0))
    return None if None in boxes else boxes  # type: ignore[return-value]


def _box(group: Group, split: int | None, width: int, first: int, blocks: int) -> _Box | None:
    """Blocks first .. first + blocks - 1 of the split dimension; the partial one when 0."""
    t = group.out_type
    shape = t.static_shape()
    assert shape is not None
    extents: dict[Var, int] = {}

    def axis(name: str, extent: int) -> Expr:
        if extent == 1:
            return IntImm(0)
        var = Var(name)
        extents[var] = extent
        return var

    index: list[Expr] = []
    lane = shape[split] % width if split is not None and not blocks else width
    for d, n in enumerate(shape):
        if d != split:
            index.append(axis(f"i{d}", n))
        else:
            block = axis("b", blocks) if blocks else IntImm(0)
            index.append((block + first) * width + axis("l", lane))
    bounds = {v: (0, n - 1) for v, n in extents.items()}
    value = simplify_value(group.element(group.out_var)(*index), bounds)
    loads = tuple(dict.fromkeys(x for x in walk(value) if isinstance(x, Load)))
    at = Load(group.out, tuple(simplify(i, bounds) for i in t.memory.physical_index(index))
              if t.layout is not None else group.store_index(tuple(index)))  # fmt: skip
    found = [_strides(x, extents, bounds) for x in (at, *loads)]
    lines = [line for line in found if line is not None]
    if len(lines) < len(found) or not loads or _uses_axes(value, extents):
        return None
    axes = [_Axis(n, lines[0][0][v], tuple(s[v] for s, _ in lines[1:])) for v, n in extents.items()]
    padded = split is not None and not blocks and t.memory.block(split) > 1
    # Operands in blocks hold whole blocks: their partial one may be read to its end.
    wide = split is not None and t.memory.block(split) == 1
    bases = [b for _, b in lines]
    valid = lane if padded else 0
    if padded:
        axes = _widened(axes, lane, width, len(loads))
    return _Box(_merged(axes), bases[0], tuple(bases[1:]), value, loads, valid, wide)


def _widened(axes: list[_Axis], lane: int, width: int, loads: int) -> list[_Axis]:
    """The lane axis of a partial block at its full width."""
    if lane == 1:
        return [*axes, _Axis(width, 1, (0,) * loads)]
    return [_Axis(width, 1, a.loads) if a.out == 1 else a for a in axes]


def _strides(
    x: Load, extents: dict[Var, int], bounds: dict[Var, tuple[int, int]]
) -> tuple[dict[Var, int], int] | None:
    """Element strides per axis and the constant offset of a load, or None."""
    flat: Expr = IntImm(0)
    for i, s in zip(x.indices, x.buffer.strides, strict=True):
        flat = flat + i * s
    line = affine(simplify(flat, bounds), tuple(extents))
    if line is None:
        return None
    strides = {v: int_value(as_expr(line[0].get(v, 0))) for v in extents}
    base = int_value(simplify(as_expr(line[1])))
    return None if base is None or None in strides.values() else (strides, base)  # type: ignore


def _uses_axes(e: Expr, axes: dict[Var, int]) -> bool:
    """Whether a value depends on where it stands other than through its loads."""
    if isinstance(e, Load):
        return False
    if isinstance(e, Var):
        return e in axes
    found = False

    def visit(x: Expr) -> Expr:
        nonlocal found
        found = found or _uses_axes(x, axes)
        return x

    map_children(e, visit)
    return found


def _merged(axes: Sequence[_Axis]) -> tuple[_Axis, ...]:
    """Outermost first by output stride, neighbours that run on joined."""
    out: list[_Axis] = []
    for a in sorted(axes, key=lambda a: -a.out):
        if out and out[-1].continues(a):
            a = _Axis(out.pop().extent * a.extent, a.out, a.loads)
        out.append(a)
    return tuple(out)


class _Move:
    """Flat buffers of a group, and the statements of its boxes."""

    def __init__(self, group: Group, target: Target):
        self.group, self.dtype = group, group.out_type.dtype
        self.lanes = target.vector_lanes(self.dtype.name)
        self.flat = {b: _flattened(b) for b in group.buffers.values()}
        self.out = _flattened(group.out)

    def params(self) -> tuple[Buffer | Var, ...]:
        return (*self.flat.values(), self.out)

    def offset(self, box: _Box, k: int, at: dict[_Axis, Expr]) -> Expr:
        """Where load k of the element at axis positions `at` (0 for axes not named) lies."""
        total: Expr = IntImm(box.bases[k])
        for a, i in at.items():
            total = total + i * a.loads[k]
        return simplify(total)

    def value(
        self, box: _Box, at: dict[_Axis, Expr], done: Mapping[Load, Expr] | None = None
    ) -> Expr:
        """The element at `at`; `done` are loads whose values are at hand."""
        new: dict[Load, Expr] = {
            x: Load(self.flat[x.buffer], (self.offset(box, k, at),))
            for k, x in enumerate(box.loads)
        }
        new.update(done or {})

        def rewrite(e: Expr) -> Expr:
            return new[e] if isinstance(e, Load) else map_children(e, rewrite)

        return rewrite(box.value)

    def place(self, box: _Box, at: dict[_Axis, Expr]) -> Expr:
        total: Expr = IntImm(box.out_base)
        for a, i in at.items():
            total = total + i * a.out
        return simplify(total)

    # -- forms -------------------------------------------------------------------------------------

    def box(self, box: _Box) -> Stmt:
        if not box.axes:
            return Store(self.out, (IntImm(box.out_base),), self.value(box, {}))
        q = box.axes[-1]
        if q.out == 1 and all(s in (0, 1) for s in q.loads):
            return self.nest(box, [a for a in box.axes if a is not q], lambda at: self.copy(
                box, q, at))  # fmt: skip
        p = self.turning_axis(box, q)
        if p is None:
            return self.nest(box, [a for a in box.axes if a is not q], lambda at: self.strided(
                box, q, at))  # fmt: skip
        return self.transpose(box, p, q)

    def turning_axis(self, box: _Box, q: _Axis) -> _Axis | None:
        """The axis along which all operands lie that do not lie along q."""
        if q.out != 1:
            return None
        across = [k for k, s in enumerate(q.loads) if s not in (0, 1)]
        along = [x for k, x in enumerate(box.loads) if q.loads[k] == 1]
        if box.valid and not all(blocked_loads(x, q.extent) for x in along):
            return None  # their lanes past the last channel do not exist
        return next((a for a in box.axes if a is not q and a.extent > 1
                     and all(a.loads[k] == 1 for k in across)), None)  # fmt: skip

    def nest(self, box: _Box, axes: list[_Axis], body: Callable[[dict[_Axis, Expr]], Stmt]) -> Stmt:
        """Tasks over `axes`."""
        total = 1
        for a in box.axes:
            total *= a.extent
        kind = "parallel" if total > PARALLEL_WORK else "serial"
        if not axes:
            return body({})
        extents = [a.extent for a in axes]
        return fused(extents, lambda *i: body(dict(zip(axes, i, strict=True))), kind)

    def strided(self, box: _Box, q: _Axis, at: dict[_Axis, Expr]) -> Stmt:
        """Scalars along q."""
        n = box.valid or q.extent
        body = loop("e", n, lambda e: Store(
            self.out, (self.place(box, {**at, q: e}),), self.value(box, {**at, q: e})))  # fmt: skip
        rest = loop("z", q.extent - n, lambda e: Store(
            self.out, (self.place(box, {**at, q: e}),), const(0, self.dtype)), lo=n)  # fmt: skip
        return seq(body, rest)

    def copy(self, box: _Box, q: _Axis, at: dict[_Axis, Expr]) -> Stmt:
        """Vectors along q; the last one overlaps its neighbour."""
        lanes = min(self.lanes, _power_of_two(q.extent))
        if box.valid or lanes == 1:
            return self.strided(box, q, at)

        def vector(start: Expr) -> Stmt:
            lane = Var("l")
            here = {**at, q: start + lane}
            store = Store(self.out, (self.place(box, here),), self.value(box, here))
            return For(lane, IntImm(0), IntImm(lanes), "vectorized", store)

        return _steps("v", q.extent, lanes, vector, "serial")

    def transpose(self, box: _Box, p: _Axis, q: _Axis) -> Stmt:
        """Squares: read along p, written along q."""
        width = min(self.lanes, _power_of_two(q.extent))
        height = min(self.lanes, _power_of_two(p.extent))
        if box.wide and p.extent < self.lanes:
            height = self.lanes
        others = [a for a in box.axes if a is not p and a is not q]
        total = p.extent * q.extent
        kind = "parallel" if not others and total > PARALLEL_WORK else "serial"

        def squares(at: dict[_Axis, Expr]) -> Stmt:
            def column(j: Expr) -> Stmt:
                return _steps("p", p.extent, height, lambda i: self.square(
                    box, {**at, p: i, q: j}, p, q, height, width), "serial")  # fmt: skip

            return _steps("q", q.extent, width, column, kind)

        return self.nest(box, others, squares)

    def square(
        self, box: _Box, at: dict[_Axis, Expr], p: _Axis, q: _Axis, height: int, width: int
    ) -> Stmt:  # fmt: skip
        """height elements along p by width along q, from `at`: operands that lie along p are
        turned over, then the values are computed along q."""
        turned: dict[Load, Buffer] = {}
        body: list[Stmt] = []
        for k, x in enumerate(box.loads):
            if q.loads[k] not in (0, 1):
                turned[x] = Buffer(f"columns{k}", self.dtype, (as_expr(height), as_expr(width)),
                                   "register")  # fmt: skip
                body.append(self.turn(box, k, turned[x], at, p, q, height, width))
        lane = Var("l")
        for k in range(min(height, p.extent)):
            here = {**at, p: at[p] + k, q: at[q] + lane}
            done = {x: Load(b, (as_expr(k), lane)) for x, b in turned.items()}
            value = self.value(box, here, done)
            if box.valid and value not in done.values():
                value = select(lane < box.valid, value, const(0, self.dtype))
            body.append(For(lane, IntImm(0), IntImm(width), "vectorized",
                            Store(self.out, (self.place(box, here),), value)))  # fmt: skip
        result = seq(*body)
        for b in turned.values():
            result = Alloc(b, result)
        return result

    def turn(
        self, box: _Box, k: int, columns: Buffer, at: dict[_Axis, Expr], p: _Axis, q: _Axis,
        height: int, width: int,
    ) -> Stmt:  # fmt: skip
        """columns[i, j] = load k at (p + i, q + j), read along p."""
        rows: list[Expr] = []
        buffer = self.flat[box.loads[k].buffer]
        for r in range(width):
            if box.valid and r >= box.valid:
                rows.append(const(0, self.dtype.with_lanes(height)))
            else:
                start = self.offset(box, k, {**at, q: at[q] + r})
                rows.append(Load(buffer, (lane_ramp(height, start),)))
        lets: list[tuple[Var, Expr]] = []

        def bind(e: Expr) -> Expr:
            var = Var("t", e.dtype)
            lets.append((var, e))
            return var

        vectors = _turned(list(map(bind, rows)), self.lanes, bind)
        vec = lane_ramp(width)
        stores = seq(*(Store(columns, (as_expr(i), vec), v) for i, v in enumerate(vectors)))
        for var, value in reversed(lets):
            stores = Let(var, value, stores)
        return stores


def _turned(rows: Sequence[Expr], lanes: int, bind: Callable[[Expr], Expr]) -> list[Expr]:
    """The columns of a matrix of vectors, by log2(rows) rounds of interleaving halves."""
    count, now = len(rows), list(rows)
    for _ in range(count.bit_length() - 1):
        half, new = len(now) // 2, []
        for a, b in zip(now[:half], now[half:], strict=True):
            n = a.dtype.lanes
            order = [k for i in range(n) for k in (i, n + i)]
            pieces = [order] if 2 * n <= lanes else [order[:n], order[n:]]
            new += [bind(Shuffle(a, b, tuple(piece))) for piece in pieces]
        now = new
    n = now[0].dtype.lanes
    if n == count:
        return now
    return [
        bind(Shuffle(v, v, tuple(range(start, start + count))))
        for v in now
        for start in range(0, n, count)
    ]


def _steps(name: str, extent: int, step: int, body: Callable[[Expr], Stmt], kind: str) -> Stmt:
    """body(start) for steps that cover the extent; the last overlaps instead of being short."""
    whole = max(1, extent // step)
    main = loop(name, whole, lambda i: body(simplify(i * step)), kind)
    if extent > step and extent % step:
        return seq(main, body(IntImm(extent - step)))
    return main


def _power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def _flattened(b: Buffer) -> Buffer:
    size = 1
    for d in b.shape:
        size *= int_value(d) or 0
    return Buffer(b.name, b.dtype, (as_expr(size),), b.scope, b.align)


def _halo(move: _Move) -> Stmt | None:
    """Zeros around every image plane of the output."""
    t = move.group.out_type
    layout = t.memory
    if t.ndim != 4 or not (layout.halo(2) or layout.halo(3)):
        return None
    shape = [int_value(d) or 0 for d in layout.physical_shape(t.shape)]
    v = shape[4] if len(shape) == 5 else 1
    ph, pw = layout.halo(2), layout.halo(3)
    height, width = shape[2] - 2 * ph, shape[3] - 2 * pw
    plane = shape[2] * shape[3] * v

    def run(start: Expr, pixels: int) -> Stmt:
        lanes = min(move.lanes, v)
        zero = const(0, move.dtype.with_lanes(lanes))
        return loop("z", pixels * v // lanes, lambda z: Store(
            move.out, (lane_ramp(lanes, simplify(start + z * lanes)),) if lanes > 1
            else (simplify(start + z),), zero))  # fmt: skip

    def border(i: Expr) -> Stmt:
        base = i * plane
        first = ph * shape[3] + pw
        rows = loop("r", height - 1, lambda r: run(
            base + (r * shape[3] + (first + width)) * v, 2 * pw)) if pw else None  # fmt: skip
        last = base + (first + (height - 1) * shape[3] + width) * v
        return seq(run(base, first), rows, run(last, pw + ph * shape[3]))

    return loop("plane", shape[0] * shape[1], border)


def schedule_movement(group: Group, target: Target) -> PrimFunc:
    """Any group that `plan_movement` accepts."""
    boxes = plan_movement(group)
    assert boxes is not None
    move = _Move(group, target)
    body = seq(_halo(move), *map(move.box, boxes))
    return PrimFunc(group.name, move.params(), simplify_stmt(body, {}), op_class="movement")
