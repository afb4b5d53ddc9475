"""Products with packed right operands: `linear` with constant weights, `matmul` of two computed
operands, whose right one is packed at run time."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, Constant, TensorType
from tensorkiln.ir.tiles import TILE_ROW_BYTES, TILE_ROWS
from tensorkiln.kernels.family import Family, Layouts
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.halves import of_halves
from tensorkiln.kernels.knobs import (
    Knob,
    fetch_knob,
    heights,
    knob,
    piece_knobs,
    steps_knob,
    streamed,
)
from tensorkiln.kernels.layouts import (
    adjacent,
    by_lanes,
    has_float_pairs,
    has_kernel,
    has_vectors,
    is_float32,
    takes_pairs,
    takes_tiles,
    together,
    wants_float_pairs,
)
from tensorkiln.kernels.small_weights import with_small_weights
from tensorkiln.target import Target
from tensorkiln.target.registers import highest, max_rows, scalar_tile

# Columns of a linear panel, in vectors, the preferred width first. Tiles (rows x vectors) of 8 x 3
# or 14 x 2 fill 32 registers. With 16 registers and AVX2, 3 x 3 runs at 1.03 times the speed of
# 6 x 2. On targets whose instructions overwrite an operand (SSE), 4 x 2 and 2 x 3 fit, and the
# order is reversed.
_PANEL_VECTORS = (3, 2)
# Rows a multiple of _WAY bytes apart map to the same set of a first-level cache, which holds _WAYS
# of them. With 1024 terms, tiles of 14 x 2 run at 75% of the peak, 6 x 4 and 8 x 3 at 95%.
_WAY, _WAYS = 4096, 8
# From this many rows and multiply-adds on, packing the right operand of a matmul at run time costs
# less than it saves.
_PACKED_ROWS, _PACKED_WORK = 8, 1 << 15
# With this many panels, threads need not share the rows of one. And the most bytes on the stack for
# the totals of all rows. With pieces outermost, weights come from the first-level cache, whatever
# the number of terms: GPT-2 takes 0.89 of its time, BERT 0.96, ViT 0.90 (Xeon, family 6 model 167,
# one thread).
_FEW_PANELS, _TOTALS = 8, 64 << 10
# Rows of a block that goes through all panels in turn.
_BLOCKS = (16, 32, 64, 128, 256)


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether weights are packed, and the output is row-major."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    return w.layout is not None and out.layout is None


def _linear_layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    w = call.args[1]
    if not isinstance(w, Constant) or not has_kernel(call, target):
        return None
    if not has_vectors(target) and w.array.size == 1:
        return None  # a single number becomes part of the group
    # Of pairs a panel is a vector of columns, whose sums take two vectors.
    pairs = wants_float_pairs(call, target)
    nr = target.vector_lanes("float32") if pairs else _panel(call, target)
    few = adjacent(call, target)
    panels = f"B/{nr} A/{few} B%{nr} A%{few}" if few > 1 else f"B/{nr} A B%{nr}"
    bias = [by_lanes(target)] * len(call.args[2:])
    return Layouts((None, with_small_weights(call, target, Layout.parse(panels)), *bias))


def _matmul_layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    if not _wants_panels(call, target):
        return None
    w, nr = call.args[1].type, _panel(call, target)
    assert isinstance(w, TensorType)
    *batch, row, column = (chr(ord("A") + d) for d in range(w.ndim))
    panels = [f"{column}/{nr}", row, f"{column}%{nr}"]
    if call.attrs.wide:
        panels = [f"{column}/{nr}", f"{row}/2", f"{column}%{nr}", f"{row}%2"]
    return Layouts((None, Layout.parse(" ".join([*batch, *panels]))))


def _wants_panels(call: Call, target: Target) -> bool:
    """Whether to pack the right operand of a matmul at run time. Its last two extents must be
    known, and operands must not be transposed, or broadcast in a way that the schedule lacks. A
    `wide` product of int16 is then packed in any case, one of floats if it has enough rows and
    multiply-adds."""
    x, w = (a.type for a in call.args)
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    sizes = [int_value(d) for d in w.shape[-2:]]
    if None in sizes or min(x.ndim, w.ndim) < 2 or call.attrs.transpose_a or call.attrs.transpose_b:
        return False
    if x.shape[:-2] != w.shape[:-2] and (w.ndim > 2 or call.attrs.wide):
        return False
    k, n = (d or 0 for d in sizes)
    if call.attrs.wide and x.dtype.is_int:
        return True
    rows = int_value(x.shape[-2]) or 64
    is_supported = takes_pairs(call, target) if call.attrs.wide else is_float32(call)
    return is_supported and rows >= _PACKED_ROWS and rows * k * n >= _PACKED_WORK


def _panel(call: Call, target: Target) -> int:
    """The columns of a panel of packed weights.

    Few rows need wide panels, for enough independent accumulators; the widest that one tile
    holds for all rows, so that weights are read once: as two tiles 3 rows took 1.8 times as
    long as 4. More rows get a width that divides the columns evenly. Where rows lie a multiple
    of `_WAY` bytes apart, panels are so wide that a tile has at most `_WAYS` rows. A panel for
    AMX tiles has the columns of two. Where weights should be small, panels are narrower instead
    of padded with zeros.
    """
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    terms, columns = (int_value(d) or 0 for d in w.shape[-2:])
    lanes = target.vector_lanes("float32")
    blocks = -(-columns // lanes)
    rows = 1
    for d in x.shape[:-1]:
        rows *= int_value(d) or 64
    if takes_tiles(call, target):
        return lanes * min(blocks, 2)
    if limit := scalar_tile(target, w.dtype.is_int):
        return _dense(blocks, min(blocks, limit, 8), target)
    if rows < 4:
        width = _widest(target, rows, w.dtype.is_int)
        return lanes * _dense(blocks, min(blocks, width), target)
    widths: tuple[int, ...] = _PANEL_VECTORS[:: -1 if target.overwrites_operands else 1]
    if terms * x.dtype.bytes % _WAY == 0 and max_rows(target, 2) > _WAYS and blocks > 3:
        widths = (3, 4)
    width = next((n for n in widths if blocks % n == 0), widths[-1])
    return lanes * _dense(blocks, width, target)


def _widest(target: Target, rows: int, integers: bool) -> int:
    """The vectors of the widest panel that a tile of all of a few rows may have."""
    widest = 6 if target.overwrites_operands else 8
    return next((n for n in range(widest, 1, -1) if max_rows(target, n, integers) >= rows), 1)


def _dense(blocks: int, width: int, target: Target) -> int:
    """The panel width for `blocks` blocks if `width` is preferred. Where weights should be small,
    the widest up to that whose last panel lacks at most 1% of the blocks."""
    if target.optimize != "size":
        return width
    return next(n for n in range(width, 0, -1) if -blocks % n * 100 <= blocks)


def in_tiles(call: Call, target: Target) -> bool:
    """Whether a product with packed weights is computed in tiles of the processor: panels have the
    columns of one or two tiles, and terms are whole groups of adjacent ones, at least as many as a
    tile has."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    if not takes_tiles(call, target):
        return False
    nr, few = panel_of(w)
    terms = int_value(w.shape[-2]) or 0
    columns = TILE_ROW_BYTES // 4
    panel = nr in (columns, 2 * columns) and target.vector_lanes("float32") == columns
    return panel and terms % few == 0 and terms >= TILE_ROWS * few


def panel_of(w: TensorType) -> tuple[int, int]:
    """(columns of a panel of packed weights, terms that lie adjacent)."""
    few = together(w, w.ndim - 2)
    return w.memory.axes[-2 if few > 1 else -1].modulus, few


def _knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    if in_tiles(call, target):
        return ()
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    nr, few = panel_of(w)
    vectors, integers = nr // target.vector_lanes("float32"), w.dtype.is_int
    term = nr * few * w.dtype.bytes
    rows: int | None = 1
    for d in out.shape[w.ndim - 2 : -1]:
        rows = rows * n if rows is not None and (n := int_value(d)) is not None else None
    terms = -(-(int_value(w.shape[-2]) or 1) // few)
    sums = vectors * (1 + has_float_pairs(w, w.ndim - 2))
    untuned = max_rows(target, sums, integers)
    limit = highest(target, sums, integers)
    columns = int_value(w.shape[-1]) or 1
    panels = columns // nr if call.op == "linear" else 1  # of a matmul, they were just packed
    tiles = 2 if rows is None else -(-rows // untuned)
    fetched = streamed(terms * few * columns * w.dtype.bytes, panels, tiles, target)
    blocks = [n for n in _BLOCKS if w.ndim == 2 and untuned < n < (rows or 0)]
    orders: tuple[int, ...] = ()
    if rows is not None and rows * nr * 4 <= _TOTALS and not integers and panels >= _FEW_PANELS:
        orders = (0, 1)
    first = int(bool(orders) and tiles > 1 and terms * term > target.l1d_bytes)
    return (
        knob("rows", heights(rows, limit, untuned), untuned, "rows of a register tile"),
        steps_knob(terms),
        *piece_knobs(0 if integers else terms * few),
        fetch_knob(term, fetched),
        knob("pieces_first", orders, first, "1: each piece of the sums goes through all rows"),
        knob("block", blocks, 0, "rows that go through all panels in turn; 0: all of them"),
    )


LINEAR = Family(
    op_class="linear_packed",
    operators=("linear",),
    fits=_fits,
    layouts=_linear_layouts,
    epilogue=elementwise_epilogue,
    knobs=_knobs,
    inplace=True,
    algorithm=of_halves("linear"),
)
MATMUL = Family(
    op_class="matmul_packed",
    operators=("matmul",),
    fits=_fits,
    layouts=_matmul_layouts,
    epilogue=elementwise_epilogue,
    knobs=_knobs,
    algorithm=of_halves("matmul"),
)

ROWS = (LINEAR, MATMUL)
