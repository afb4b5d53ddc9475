"""Data movement as strided copies: boxes of the output, whose axes have constant strides.

All buffers are one-dimensional here. An axis has an extent, a stride in the output and a stride in
each load; an outer axis that continues an inner one in every buffer is merged with it: extents 4
and 8 of strides 8 and 1 are one axis of extent 32. A partial channel block at the end of a
dimension is a box of its own.

Of elements of 16 bits, layouts keep pairs together (`A/16 B/2 A%16 B%2`): a pair that is one in
every buffer moves as a unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tensorkiln.arith import affine, simplify
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, Var, as_expr, int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.visit import map_children, walk
from tensorkiln.schedule.access import blocked_loads, simplify_value
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target

# A number, or an expression of symbols.
Size = int | Expr
# The assumed extent of an unknown dimension in estimates.
UNKNOWN = 64
# Most rows and columns of a transposed tile: 16 vectors are half of the registers of processors
# with 32.
LARGEST = 16


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop: its extent, its stride in the output, and its strides in the loads' buffers, all
    in elements. Those of write and read axes are numbers."""

    extent: Size
    out: Size
    loads: tuple[Size, ...]

    @property
    def is_static(self) -> bool:
        """Whether no symbol is in its extent and strides."""
        return not any(isinstance(n, Expr) for n in (self.extent, self.out, *self.loads))

    @property
    def size(self) -> int:
        """The extent of a write or read axis, or an estimate of an unknown one."""
        return UNKNOWN if isinstance(self.extent, Expr) else self.extent

    def continues(self, inner: Axis) -> bool:
        """Whether one step along this axis is `inner.extent` steps along `inner` in every buffer,
        so that the two can be merged. Axes of unknown extent are not merged."""
        if not (self.is_static and inner.is_static):
            return False
        ahead = (inner.out * inner.extent, *(s * inner.extent for s in inner.loads))
        return (self.out, *self.loads) == ahead


@dataclass(frozen=True)
class CopyBox:
    """A box of output elements, computed by `value` from `loads`, whose offsets are affine in the
    axes.

    `axes`: outermost first. The last is the write axis: output elements are adjacent along it. The
    read axis is the one along which those operands are adjacent that are not adjacent along the
    write axis. In the transpose out[i, j] = x[j, i], the write axis is j and the read axis i; its
    form is `transpose`: tiles of read axis x write axis are transposed in registers.

    `unit`: 2 if output elements are adjacent in pairs only, which are adjacent in all operands,
    too; then axes are those of pairs, with strides in elements.

    `out_base`, `bases`: constant offsets in the output and of each load. `valid`: if not 0, only
    the first `valid` elements of the write axis come from loads, and the others (the padding of a
    channel block) are zero; unknown, it is greater than 0. `lanes`: elements of a vector. `number`
    is appended to the names of loops and buffers, to tell the boxes of a group apart.
    """

    axes: tuple[Axis, ...]
    out_base: Size
    bases: tuple[Size, ...]
    value: Expr
    loads: tuple[Load, ...]
    valid: Size
    lanes: int
    number: str = ""
    unit: int = 1

    def named(self, base: str) -> str:
        """This box's name of a loop or buffer, or role: "q" is `q1` in box 1."""
        return base + self.number

    @property
    def elements(self) -> int:
        """The number of output elements, or an estimate."""
        return math.prod(a.size for a in self.axes) * self.unit

    @property
    def is_padded(self) -> bool:
        """Whether some elements of the write axis are zero."""
        return isinstance(self.valid, Expr) or self.valid > 0

    @property
    def is_static(self) -> bool:
        """Whether all sizes are known."""
        sizes = (self.out_base, *self.bases, self.valid)
        static = not any(isinstance(n, Expr) for n in sizes)
        return static and all(a.is_static for a in self.axes)

    @property
    def write_axis(self) -> Axis:
        """The last axis, along which output elements are adjacent."""
        return self.axes[-1]

    @cached_property
    def across(self) -> tuple[int, ...]:
        """Numbers of the loads whose elements are not adjacent along the write axis (stride neither
        0 nor 1); for boxes of pairs, all loads."""
        along = enumerate(self.write_axis.loads)
        return tuple(k for k, s in along if not _is_one_of(s, 0, 1) or self.unit > 1)

    @cached_property
    def read_axis(self) -> Axis:
        """The axis along which elements of all loads of `across` are adjacent. Only in the forms
        that have tiles."""
        axis = self._common()
        assert axis is not None
        return axis

    @cached_property
    def form(self) -> str:
        """How elements are moved. `copy`: all loads have stride 0 or 1 along the write axis.
        `transpose`: the others have stride 1 along the read axis. `tiles`: the same for pairs; or
        for 16-bit elements where the write axis is so short that several steps of the read axis,
        which are adjacent in the output, make a vector. `strided`: anything else, or nothing to
        vectorize."""
        if self.unit > 1:
            return "tiles"
        if self.lanes == 1 or not self.axes or not self._whole():
            return "strided"
        if not _is_one_of(self.write_axis.out, 1) or isinstance(self.write_axis.extent, Expr):
            return "strided"
        if not self.across:
            return "copy"
        if self._common() is None:
            return "strided"
        return "tiles" if self.interleaves else "transpose"

    @property
    def interleaves(self) -> bool:
        """Whether a few rows are interleaved: their columns follow each other in the output."""
        rows, all_across = self.write_axis.size, len(self.across) == len(self.loads)
        narrow = all(x.dtype.bits == 16 for x in self.loads)
        few = rows * 2 <= self.lanes and rows & (rows - 1) == 0
        read = self._common() if narrow and all_across and few else None
        follows = read is not None and _is_one_of(read.out, rows)
        return read is not None and follows and read.size * rows >= self.lanes

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile of form `tiles`, in units. Of pairs, a vector in each
        direction; of interleaved rows, all rows, and as many columns as make a vector together."""
        rows, columns = self.write_axis.size, self.read_axis.size
        if self.unit == 1:
            return rows, self.lanes // rows
        limit = min(self.lanes // self.unit, LARGEST)
        return min(limit, power_of_two(rows)), min(limit, power_of_two(columns))

    @property
    def has_tiles(self) -> bool:
        """Whether there are a read axis and a write axis of tiles of pairs."""
        along = self._common()
        has_axes = along is not None and not isinstance(self.write_axis.extent, Expr)
        sizes = (self.write_axis.size, along.size if along is not None else 1)
        return has_axes and _is_one_of(self.write_axis.out, self.unit) and min(sizes) > 1

    @property
    def others(self) -> tuple[Axis, ...]:
        """The axes but the write axis and, in form `transpose`, the read axis; outermost first."""
        tiled = self.form in ("transpose", "tiles")
        form_axes = (self.write_axis, self.read_axis) if tiled else self.axes[-1:]
        return tuple(a for a in self.axes if a not in form_axes)

    def tiles(self) -> list[tuple[str, str]]:
        """For each load of `across`, the names of the buffers that hold its tile as read (rows) and
        transposed (columns)."""
        several = len(self.across) > 1
        ends = [self.number + f"_{n}" * several for n in range(len(self.across))]
        return [(f"rows{end}", f"columns{end}") for end in ends]

    def reaches(self, rows: int) -> bool:
        """Whether loads of `across` stay inside of their buffers if `rows` elements are read along
        the read axis, which is shorter: the rest is the padding of a channel block."""
        if not self.is_static:
            return False
        for k in self.across:
            size = math.prod(int_value(d) or 0 for d in self.loads[k].buffer.shape)
            steps = ((rows if a is self.read_axis else a.size) - 1 for a in self.axes)
            ahead = (max(0, n * number(a.loads[k])) for n, a in zip(steps, self.axes, strict=True))
            if number(self.bases[k]) + sum(ahead) >= size:
                return False
        return True

    def _common(self) -> Axis | None:
        axes = (a for a in self.axes[:-1] if not isinstance(a.extent, Expr))
        step, across = self.unit, self.across
        return next((a for a in axes if all(_is_one_of(a.loads[k], step) for k in across)), None)

    def _whole(self) -> bool:
        """Whether the operands with stride 1 along the write axis can be read over all of it: there
        is no padding, or they have channel blocks of the same width."""
        along = (x for k, x in enumerate(self.loads) if _is_one_of(self.write_axis.loads[k], 1))
        return not self.is_padded or all(blocked_loads(x, self.write_axis.size) for x in along)


def plan_movement(group: Group, target: Target) -> list[CopyBox] | None:
    """The boxes of a group without anchor.

    None if the group moves no data or is a concatenation, a shape is empty, or an offset is not
    affine in the axes; if a shape is symbolic, also if elements are of 32 bits, or an offset along
    the write or read axis is unknown. All types are of 32 bits or of 16, and the same, but float32
    may become floats of 16 bits.
    """
    calls = list(group.calls.values())
    patterns = {group.op(c).pattern for c in calls}
    if "injective" not in patterns or patterns - {"injective", "elementwise", "broadcast"}:
        return None
    out = group.out_type
    types = [out, *(p.tensor for p in group.function.params), *(v.tensor for v in group.calls)]
    if calls[-1].op == "concat" or not _moves({t.dtype for t in types}):
        return None
    lanes = min(target.vector_lanes(t.dtype.name) for t in types)
    symbolic = any(t.static_shape() is None for t in types)
    if (symbolic and any(t.dtype.bits != 16 for t in types)) or 0 in map(int_value, out.shape):
        return None
    blocks = [(d, t.memory.block(d)) for t in types for d in range(t.ndim) if t.memory.block(d) > 1]
    paired = _pairs(out)
    blocks = [(d, v) for d, v in blocks if d != paired]
    width = blocks[0][1] if blocks else 1
    blocked_dims = [d for d in range(out.ndim) if out.memory.block(d) > 1 and d != paired]
    choices = [blocked_dims] if blocked_dims else [[], *([d] for d in range(out.ndim) if width > 1)]
    if len(blocked_dims) > 1 or len({v for _, v in blocks}) > 1:
        return None
    for split in choices:
        boxes = _boxes(group, split[0] if split else None, width, paired, lanes)
        if boxes is not None:
            vectors = all(b.is_static or b.form != "strided" for b in boxes)
            return boxes if vectors else None
    return None


def number(n: Size) -> int:
    """A size that must be known."""
    assert not isinstance(n, Expr)
    return n


def _size(e: ExprLike) -> Size:
    """The size as a number if it is constant, else as an expression."""
    number = int_value(as_expr(e))
    return simplify(as_expr(e)) if number is None else number


def _is_one_of(n: Size, *numbers: int) -> bool:
    return not isinstance(n, Expr) and n in numbers


def power_of_two(n: int) -> int:
    """The greatest power of two that is at most `n`."""
    return 1 << (n.bit_length() - 1)


def _moves(dtypes: set[DType]) -> bool:
    """Whether kernels move elements of these types."""
    narrow = {t for t in dtypes if t.bits != 32}
    if len(dtypes) == 1:
        return not narrow or all(t.bits == 16 for t in narrow)
    return dtypes - narrow == {FLOAT32} and len(narrow) == 1 and narrow.pop().sums == FLOAT32


def _pairs(t: TensorType) -> int | None:
    """The dimension of which pairs are adjacent in memory while another is in blocks, as in
    `A/16 B/2 A%16 B%2`; None if there is none, or its extent is unknown or 1."""
    *_, last = t.memory.axes
    blocked = [d for d in range(t.ndim) if t.memory.block(d) > 1]
    is_paired = last.modulus == 2 and len(blocked) > 1 and (int_value(t.shape[last.dim]) or 1) > 1
    return last.dim if is_paired and t.dtype.bits == 16 and t.memory.block(last.dim) == 2 else None


def _boxes(
    group: Group, split: int | None, width: int, paired: int | None, lanes: int
) -> list[CopyBox] | None:
    """The boxes of a group: of the whole blocks and of the partial block if dimension `split` is
    cut in blocks of `width`, else one. Dimension `paired` is cut in pairs; the rest of an odd
    extent is a box of its own. None if an offset is not affine."""
    parts: list[tuple[Size, Size]] = [(0, 0)]
    if split is not None:
        n = _size(group.out_type.shape[split])
        if isinstance(n, Expr):
            parts = [(0, _size(n // width)), (_size(n // width), 0)]
        else:
            whole, partial_width = divmod(n, width)
            parts = [*[(0, whole)] * (whole > 0), *[(whole, 0)] * (partial_width > 0)]
    cuts = [(*part, False) for part in parts]
    if paired is not None and number(_size(group.out_type.shape[paired])) % 2:
        cuts += [(*part, True) for part in parts]
    boxes = []
    for k, (first, blocks, is_odd) in enumerate(cuts):
        box = _box(group, split, width, paired, first, blocks, is_odd)
        if box is None:
            return None
        part_box = replace(box, lanes=lanes, number=str(k) if len(cuts) > 1 else "")
        if part_box.unit > 1 and (part_box.lanes < 4 or not part_box.has_tiles):
            return None
        boxes.append(part_box)
    return boxes


def _box(
    group: Group,
    split: int | None,
    width: int,
    paired: int | None,
    first: Size,
    blocks: Size,
    is_odd: bool,
) -> CopyBox | None:
    """The box of `blocks` blocks of dimension `split` from `first` on; with 0, of the partial block
    `first`. If it is unknown whether there is a partial block, the box gets an axis of extent 0 or
    1. Dimension `paired` is cut in pairs, or, with `is_odd`, only its last element is taken, with
    the zero that completes its pair."""
    t = group.out_type
    shape = [_size(d) for d in t.shape]
    extents: dict[Var, Size] = {}

    def axis(name: str, extent: Size) -> Expr:
        if _is_one_of(extent, 1):
            return IntImm(0)
        var = Var(name)
        extents[var] = extent
        return var

    index: list[Expr] = []
    filled: list[Expr] = []  # `index`, and the zero after an odd element
    partial = split is not None and _is_one_of(blocks, 0)
    lane = width
    valid_lanes: Size = width
    if split is not None and partial:
        n = shape[split]
        lane = width if isinstance(n, Expr) else n % width
        valid_lanes = _size(n - n // width * width)
        blocks = _size((n + (width - 1)) // width - n // width) if isinstance(n, Expr) else 0
    if is_odd and partial:
        return None
    for d, n in enumerate(shape):
        if d == paired and is_odd:
            index.append(IntImm(number(n) - 1))
        elif d == paired:
            index.append(axis(f"i{d}", number(n) // 2) * 2 + axis("e", 2))
        elif d != split:
            index.append(axis(f"i{d}", n))
        else:
            block = IntImm(0) if _is_one_of(blocks, 0) else axis("b", blocks)
            index.append((block + first) * width + axis("l", lane))
        filled.append(index[-1] + axis("e", 2) if d == paired and is_odd else index[-1])
    bounds = {v: (0, None if isinstance(n, Expr) else n - 1) for v, n in extents.items()}
    value = simplify_value(group.element(group.out_var)(*index), bounds)
    loads = tuple(dict.fromkeys(x for x in walk(value) if isinstance(x, Load)))
    out_load = Load(
        group.out,
        tuple(simplify(i, bounds) for i in t.memory.physical_index(filled))
        if t.layout is not None
        else group.store_index(tuple(filled)),
    )
    strides = [_strides(x, extents, bounds) for x in (out_load, *loads)]
    lines = [line for line in strides if line is not None]
    if len(lines) < len(strides) or not loads or _uses_axes(value, extents):
        return None
    axes = [Axis(n, lines[0][0][v], tuple(s[v] for s, _ in lines[1:])) for v, n in extents.items()]
    padded = split is not None and partial and t.memory.block(split) > 1
    bases = [b for _, b in lines]
    valid = valid_lanes if padded else 0
    inner = 1 if paired is None else 2  # the stride of the lanes of a block
    if padded:
        axes = _widened(axes, lane, width, inner, len(loads))
    if is_odd:  # it alone comes from a load
        return CopyBox(_merged(axes, 1), bases[0], tuple(bases[1:]), value, loads, 1, 1)
    merged, unit = _merged(axes, inner if padded else 0), 1
    *outer, last = merged or (None,)
    if last is not None and last == Axis(2, 1, (1,) * len(loads)) and paired is not None and outer:
        merged, unit = tuple(a for a in outer if a is not None), 2
    elif padded and paired is not None:
        return None
    return CopyBox(merged, bases[0], tuple(bases[1:]), value, loads, valid, 1, unit=unit)


def _widened(axes: list[Axis], lane: int, width: int, step: int, loads: int) -> list[Axis]:
    """The axes of a partial block of channels, whose axis `lane` (of stride `step` in the output)
    is extended to the width of a block."""
    if lane == 1:
        return [*axes, Axis(width, step, (0,) * loads)]
    return [Axis(width, step, a.loads) if _is_one_of(a.out, step) else a for a in axes]


def _strides(
    x: Load, extents: dict[Var, Size], bounds: dict[Var, tuple[int, int | None]]
) -> tuple[dict[Var, Size], Size] | None:
    """(stride in elements per axis, constant offset) of a load; None if it is not affine."""
    flat: Expr = IntImm(0)
    for i, s in zip(x.indices, x.buffer.strides, strict=True):
        flat = flat + i * s
    line = affine(simplify(flat, bounds), tuple(extents))
    if line is None:
        return None
    return {v: _size(line[0].get(v, 0)) for v in extents}, _size(simplify(as_expr(line[1])))


def _uses_axes(e: Expr, axes: dict[Var, Size]) -> bool:
    """Whether a value uses axes outside the indices of its loads."""
    if isinstance(e, Load):
        return False
    if isinstance(e, Var):
        return e in axes
    is_used = False

    def visit(x: Expr) -> Expr:
        nonlocal is_used
        is_used = is_used or _uses_axes(x, axes)
        return x

    map_children(e, visit)
    return is_used


def _merged(axes: Sequence[Axis], stride_limit: int) -> tuple[Axis, ...]:
    """The axes by descending output stride, merged where one continues the next. Axes with output
    strides up to `stride_limit` are not merged, because some elements along them are zero. Unknown
    strides count as larger than known ones, and keep their order."""
    out: list[Axis] = []
    unknown = [a for a in axes if isinstance(a.out, Expr)]
    static_axes = [a for a in axes if a not in unknown]
    for a in [*unknown, *sorted(static_axes, key=lambda a: -number(a.out))]:
        if out and out[-1].continues(a) and number(a.out) > stride_limit:
            a = Axis(number(out.pop().extent) * number(a.extent), a.out, a.loads)
        out.append(a)
    return tuple(out)
