"""What layout changes, transposes and slices compute: the plain programs that `schedule.py`
schedules.

    for i, q:                               copy: operands are adjacent along q, as the output is
        out[..q] = value(x[..q])

    for i:                                  compact: the output overwrites its operand
        for q: row[q] = x[..q]
        for q: out[..q] = value(row[q])

    for i:                                  transpose: some operands are adjacent along p
        for q, p: rows[q, p] = x[..p]
        for p, q: columns[p, q] = rows[q, p]
        for q, p: out[..q] = value(columns[p, q])

    for i, tile:                            tiles: of pairs, or of a few rows that are interleaved
        for q, p: rows[q, p] = x[..p]
        for p, q: columns[p, q] = rows[q, p]
        for p, q: out[..q] = value(columns[p, q])

Buffers are one-dimensional. Elements past the last channel of a partial block are set to zero, and
so is the halo. q is the write axis and p the read axis of a `CopyBox`.

Roles of loops: "p", "q" and "outer", over the axes of a box, whose number is appended; "halo", over
the planes whose halo is set; "row", "lane" and "turn", also numbered, over the rows of a tile and
what an instruction transposes; "lane".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.arith import simplify
from tensorkiln.families.movement.boxes import Axis, CopyBox, number
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, Ramp, as_expr, const, minimum, select
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import map_children, map_stmt
from tensorkiln.schedule.build import loop, nest, within, zero_border
from tensorkiln.schedule.group import Group

# Elements up to which saving a buffer is worth more than a second thread: the copy takes some tens
# of microseconds.
_COMPACTED = 1 << 18

Index = dict[Axis, Expr]
Body = Callable[[Index], Stmt]
Head = tuple[str, str]  # name and role of a loop


def movement_program(group: Group, boxes: Sequence[CopyBox]) -> PrimFunc:
    """Write the halo, then every box; or the only box in place of its operand."""
    move = _Movement(group)
    inplace = compacts(group, boxes)
    body = move.compact(boxes[0]) if inplace else seq(move.halo(), *map(move.box, boxes))
    return PrimFunc(group.name, group.flat_params, body, inplace=(0,) * inplace)


def compacts(group: Group, boxes: Sequence[CopyBox]) -> bool:
    """Whether the result may overwrite the only operand: one thread computes whole vectors in the
    order of memory, and reads no offset below the one that it writes."""
    box, params, t = boxes[0], group.function.params, group.out_type
    if len(boxes) > 1 or len(params) != 1 or len(box.loads) != 1 or box.form != "copy":
        return False
    if params[0].tensor.dtype != t.dtype:
        return False
    if not box.is_static:
        return False
    vector = box.write_axis.loads == (1,) and box.write_axis.extent == box.lanes
    steps = [(box.out_base, box.bases[0]), *((a.out, a.loads[0]) for a in box.axes)]
    ahead = not box.is_padded and all(number(out) <= number(read) for out, read in steps)
    return vector and ahead and not any(map(t.memory.halo, (2, 3))) and box.elements <= _COMPACTED


class _Movement:
    """A group's one-dimensional buffers, and the statements of its boxes."""

    def __init__(self, group: Group):
        self.group = group
        self.flat, self.out = group.flat, group.flat[group.out]
        self.zero = const(0, self.out.dtype)

    def halo(self) -> Stmt | None:
        """Write zeros around every image plane of the output; None if it has no halo."""
        t, out = self.group.out_type, self.group.out
        if t.ndim != 4 or not (t.memory.halo(2) or t.memory.halo(3)):
            return None

        def flat(s: Stmt) -> Stmt:
            if isinstance(s, Store):
                return Store(self.out, (_offset(out, s.indices),), s.value)
            return map_stmt(s, lambda e: e, flat)

        return flat(
            nest(
                ["z", "z"],
                out.shape[:2],
                lambda *lead: seq(zero_border(out, t, lead)),
                ["halo", "halo"],
            )
        )

    def box(self, box: CopyBox) -> Stmt:
        """The loops of one box."""
        forms = {"copy": self.copy, "transpose": self.transpose, "tiles": self.tiles}
        return forms.get(box.form, self.strided)(box)

    # -- forms -------------------------------------------------------------------------------------

    def copy(self, box: CopyBox) -> Stmt:
        """A loop along the write axis, inside the loops of the other axes."""
        axes = (*box.others, box.write_axis)
        return _nest((*_around(box), _along(box, "q")), axes, lambda index: self.write(box, index))

    def compact(self, box: CopyBox) -> Stmt:
        """Read each vector into registers before it is written, as the two may overlap."""

        def vector(index: Index) -> Stmt:
            row = self.local(box.named("row"), (box.write_axis,), self.out.dtype)
            read = _nest(
                [("r", "lane")],
                (box.write_axis,),
                lambda q: Store(row, (q[box.write_axis],), self.load(box, 0, {**index, **q})),
            )
            write = _nest(
                [(box.named("q"), "lane")],
                (box.write_axis,),
                lambda q: self.write(
                    box, {**index, **q}, {box.loads[0]: Load(row, (q[box.write_axis],))}
                ),
            )
            return within([row], read, write)

        return _nest(_around(box), box.others, vector)

    def strided(self, box: CopyBox) -> Stmt:
        """Element by element. Padding is zeroed by a loop of its own, because the operands need not
        have elements there."""
        if not box.axes:
            return self.write(box, {})
        count = number(box.valid) or box.write_axis.size

        def along(index: Index) -> Stmt:
            exist = loop(
                box.named("q"), count, lambda q: self.write(box, {**index, box.write_axis: q})
            )
            zeros = loop(
                box.named("zero"),
                box.write_axis.size - count,
                lambda q: Store(self.out, self.place(box, {**index, box.write_axis: q}), self.zero),
                lo=count,
            )
            return seq(exist, zeros)

        return _nest(_around(box), box.others, along)

    def transpose(self, box: CopyBox) -> Stmt:
        """Read the loads of `across` into buffers [..][q][p], transpose these to [..][p][q], and
        compute the output from the transposed ones."""
        by_rows, by_columns = (
            (*box.others, box.write_axis, box.read_axis),
            (*box.others, box.read_axis, box.write_axis),
        )
        buffers: dict[Load, tuple[Buffer, Buffer]] = {}
        steps: list[Stmt] = []
        for k, (name, transposed) in zip(box.across, box.tiles(), strict=True):
            dtype = box.loads[k].dtype
            rows = self.local(name, by_rows, dtype)
            columns = self.local(transposed, by_columns, dtype)
            read = self.reading(box, k, rows, by_rows)
            into_columns = self.transposing(rows, by_rows, columns, by_columns)
            steps += [
                _nest([("r", "")] * len(by_rows), by_rows, read),
                _nest([("c", "")] * len(by_columns), by_columns, into_columns),
            ]
            buffers[box.loads[k]] = rows, columns

        def write(index: Index) -> Stmt:
            values: dict[Load, Expr] = {
                x: Load(b, _at(by_columns, index)) for x, (_, b) in buffers.items()
            }
            return self.write(box, index, values)

        heads = (*_around(box), _along(box, "q"), _along(box, "p"))
        body = seq(*steps, _nest(heads, by_rows, write))
        for rows, columns in reversed(buffers.values()):
            body = within([rows, columns], body)
        return body

    def tiles(self, box: CopyBox) -> Stmt:
        """Tiles that are read by rows, transposed, and written by columns, along which elements, or
        pairs of them, are adjacent. The last tile along an axis overlaps the one before it."""
        heads = (*_around(box), _along(box, "q"), _along(box, "p"))
        by_tiles = (*box.others, box.write_axis, box.read_axis)
        sizes = (1,) * len(box.others) + box.tile
        counted = zip(by_tiles, sizes, strict=True)
        extents = [a.extent if size == 1 else -(-a.size // size) for a, size in counted]

        def tile(*steps: Expr) -> Stmt:
            index: Index = {}
            for a, size, step in zip(by_tiles, sizes, steps, strict=True):
                start = step * size
                overlaps = size > 1 and a.size % size > 0
                index[a] = minimum(start, a.size - size) if overlaps else start
            return self.tile(box, index)

        names, roles = [h[0] for h in heads], [h[1] for h in heads]
        return nest(names, extents, tile, roles)

    def tile(self, box: CopyBox, start: Index) -> Stmt:
        """The tile of a box that begins at `start`."""
        u, (height, width) = box.unit, box.tile
        q, p = box.write_axis, box.read_axis
        buffers: dict[Load, Buffer] = {}
        steps: list[Stmt] = []
        local: list[Buffer] = []
        # Columns, as the output: a row for each, or all of them as one.
        rows_out, length = (width, height * u) if u > 1 else (1, height * width)
        for k, (name, transposed) in enumerate(box.tiles()):
            x = box.loads[k]
            rows = buffer(name, (height, width * u), x.dtype, "local")
            shape = (rows_out, length) if u > 1 else (length,)
            columns = buffer(transposed, shape, x.dtype, "local")

            def read(i: Expr, lane: Expr, k: int = k, rows: Buffer = rows) -> Stmt:
                value = self.row(box, k, {**start, q: simplify(start[q] + i)}, lane)
                return Store(rows, (i, lane), value)

            def turn(
                j: Expr, i: Expr, e: Expr, rows: Buffer = rows, columns: Buffer = columns
            ) -> Stmt:
                lane_index = (j, i * u + e) if u > 1 else (j * height + i,)
                return Store(columns, lane_index, Load(rows, (i, j * u + e)))

            steps += [
                nest(["r", "l"], [height, width * u], read, [box.named("row"), box.named("lane")]),
                nest(["c", "i", "e"], [width, height, u], turn, [box.named("turn"), "", ""]),
            ]
            local += [rows, columns]
            buffers[x] = columns

        def write(j: Expr, lane: Expr) -> Stmt:
            lane_index = (j, lane) if u > 1 else (lane,)
            values: dict[Load, Expr] = {x: Load(b, lane_index) for x, b in buffers.items()}
            return self.write(box, {**start, p: simplify(start[p] + j)}, values, lane)

        end = nest(["c", "l"], [rows_out, length], write, [box.named("row"), box.named("lane")])
        return within(local, *steps, end)

    def local(self, name: str, axes: Sequence[Axis], dtype: DType) -> Buffer:
        """A local buffer with a dimension for each of `axes`."""
        return buffer(name, tuple(as_expr(a.extent) for a in axes), dtype, "local")

    def reading(self, box: CopyBox, k: int, rows: Buffer, axes: Sequence[Axis]) -> Body:
        """rows = load k."""
        return lambda index: Store(rows, _at(axes, index), self.row(box, k, index))

    def transposing(
        self, rows: Buffer, by_rows: Sequence[Axis], columns: Buffer, by_columns: Sequence[Axis]
    ) -> Body:
        """columns = rows."""
        return lambda index: Store(columns, _at(by_columns, index), Load(rows, _at(by_rows, index)))

    # -- elements ----------------------------------------------------------------------------------

    def row(self, box: CopyBox, k: int, index: Index, further: ExprLike = 0) -> Expr:
        """The element of load k (one of `across`) that is `further` elements on; zero if it is in
        the padding."""
        if not box.is_padded:
            return self.load(box, k, index, further)
        q = index[box.write_axis]
        x = self.load(box, k, {**index, box.write_axis: minimum(q, box.valid - 1)}, further)
        return select(q < box.valid, x, const(0, x.dtype))

    def write(
        self,
        box: CopyBox,
        index: Index,
        values: dict[Load, Expr] | None = None,
        further: ExprLike = 0,
    ) -> Stmt:
        """Store the element `further` elements after `index`. `values` gives those of loads that
        were transposed before."""
        loads = {x: self.load(box, k, index) for k, x in enumerate(box.loads)} | (values or {})

        def element(e: Expr) -> Expr:
            return loads[e] if isinstance(e, Load) else map_children(e, element)

        value = element(box.value)
        if box.is_padded and box.form != "strided" and value not in (values or {}).values():
            q = index[box.write_axis]
            if box.form == "tiles":
                q = q + (further // box.unit if box.unit > 1 else further % box.tile[0])
            value = select(q < box.valid, value, self.zero)
        return Store(self.out, self.place(box, index, further), value)

    def load(self, box: CopyBox, k: int, index: Index, further: ExprLike = 0) -> Expr:
        """Load k of the element at axis positions `index`, or `further` elements after it."""
        offset = as_expr(box.bases[k]) + further
        for a, i in index.items():
            offset = offset + i * a.loads[k]
        return Load(self.flat[box.loads[k].buffer], (simplify(offset),))

    def place(self, box: CopyBox, index: Index, further: ExprLike = 0) -> tuple[Expr, ...]:
        """The output index of the element at axis positions `index`, or `further` elements after
        it."""
        offset = as_expr(box.out_base) + further
        for a, i in index.items():
            offset = offset + i * a.out
        return (simplify(offset),)


def _around(box: CopyBox) -> tuple[Head, ...]:
    return ((box.named("i"), box.named("outer")),) * len(box.others)


def _along(box: CopyBox, axis: str) -> Head:
    return box.named(axis), box.named(axis)


def _nest(heads: Sequence[Head], axes: Sequence[Axis], body: Body) -> Stmt:
    """Nested loops over axes around `body`, which is given the position along each axis."""
    names, roles = [h[0] for h in heads], [h[1] for h in heads]
    extents = [a.extent for a in axes]
    return nest(names, extents, lambda *i: body(dict(zip(axes, i, strict=True))), roles)


def _at(axes: Sequence[Axis], index: Index) -> tuple[Expr, ...]:
    return tuple(index[a] for a in axes)


def _offset(b: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """The offset of an access in the one-dimensional buffer; of a vector access, a ramp of stride
    1."""
    total: Expr = IntImm(0)
    lanes = 1
    for i, s in zip(indices, b.strides, strict=True):
        if isinstance(i, Ramp):
            lanes = i.lanes
        total = total + (i.base if isinstance(i, Ramp) else i) * s
    total = simplify(total)
    return Ramp(total, IntImm(1), lanes) if lanes > 1 else total
