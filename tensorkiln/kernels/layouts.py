"""Layouts that several kernel families ask for, and when they can.

Images are in channel blocks, `A B/16 C D B%16` for vectors of 16 floats. Where a processor
multiplies tiles of narrow numbers, a block of those is as wide as a row of a tile, because a row is
the channels of one pixel. Their channel count is the one that blocks of float32 would fill, so a
group may mix blocks of several widths, with the same zeros behind the last channel. Weights of
linear layers are packed in panels of columns, `B/nr A B%nr`.
"""

from __future__ import annotations

from math import prod

from tensorkiln.ir.dtype import FLOAT32, INT8, UINT8, DType
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.ir.tiles import TILE_ROW_BYTES, TILE_ROWS
from tensorkiln.target import Target
from tensorkiln.target.dots import multiplies_pairs, multiplies_tiles
from tensorkiln.target.rates import has_fast_pairs

# The least rows for which tiles are used. A tile of 4 rows loads as many bytes of weights as the
# vector kernel, which for fewer rows is as fast as weights come from memory.
TILED_ROWS = 4
# Channels of a pixel of a picture of narrow numbers, at most; and of images with few channels.
PIXEL = 4
CHANNELS_LAST = Layout.parse("A C D B")
# Weights of convolutions of such images: a matrix of outputs and channels for each tap.
TAPS_FIRST = Layout.parse("C D A B")


def channel_blocks(target: Target, image: TensorType | None = None) -> Layout:
    """Images [N, C, H, W] with channels in blocks of the vector width. If the target multiplies
    tiles of the elements of `image`, a block is a row of a tile, or half or a quarter of it: the
    widest that divides the channels which blocks of other types have, so that none has more
    channels."""
    lanes = target.vector_lanes("float32")
    width, t = lanes, image
    if t is not None and t.ndim == 4 and has_tile_rows(target, t.dtype):
        channels = -(-(int_value(t.shape[1]) or 1) // lanes) * lanes
        row = TILE_ROW_BYTES // t.dtype.bytes
        width = next(w for w in (row, row // 2, lanes) if channels % w == 0)
    return Layout.parse(f"A B/{width} C D B%{width}")


def image_layout(target: Target, image: TensorType) -> Layout:
    """The layout in which kernels of the target hand on images [N, C, H, W]: channels last, or in
    blocks (`channel_blocks`)."""
    return CHANNELS_LAST if target.kind == "cuda" else channel_blocks(target, image)


def is_channels_last(t: TensorType) -> bool:
    """Whether the channels of each pixel of an image are neighbours in memory, all of them."""
    return t.layout == CHANNELS_LAST


def has_few_channels(t: TensorType) -> bool:
    """Whether an image with channels last has so few of them that a vector has those of several
    pixels of a row."""
    channels = int_value(t.shape[1])
    return channels is not None and channels <= PIXEL


def has_tile_rows(target: Target, dtype: DType) -> bool:
    """Whether images of these elements can be left factors of the target's products of tiles."""
    right = {8: "int8", 16: dtype.name}.get(dtype.bits, "")
    lanes = target.vector_lanes("float32")
    return lanes == TILE_ROW_BYTES // 4 and multiplies_tiles(target, right)


def in_same_order(a: TensorType, b: TensorType) -> bool:
    """Whether two values have the same order in memory, apart from halos: both are row-major, or
    both are in channel blocks, of whatever width."""
    x, y = a.memory.with_halo({}), b.memory.with_halo({})
    return x == y or (is_blocked(a) and is_blocked(b))


def is_blocked(t: TensorType) -> bool:
    """Whether an image is in channel blocks, of any width."""
    width = t.memory.block(1)
    blocks = f"A B/{width} C D B%{width}"
    return width > 1 and t.memory.with_halo({}) == Layout.parse(blocks)


def has_vectors(target: Target) -> bool:
    """Whether the target has vectors; without them, blocks of channels have no use."""
    return target.vector_lanes("float32") > 1


def by_lanes(target: Target) -> Layout:
    """A vector of channels, such as a bias, in blocks of the vector width."""
    lanes = target.vector_lanes("float32")
    return Layout.parse(f"A/{lanes} A%{lanes}")


def has_kernel(call: Call, target: Target) -> bool:
    """Whether a packed schedule supports the dtypes: float32, uint8 by int8 into int32, or `wide`
    products: of float32 by floats of 16 bits, or of pairs if the target multiplies them."""
    types = [a.type.dtype for a in call.args[:2] if isinstance(a.type, TensorType)]
    if not call.attrs.get("wide"):
        return types in ([FLOAT32, FLOAT32], [UINT8, INT8])
    return types[0] == FLOAT32 or takes_pairs(call, target)


def takes_pairs(call: Call, target: Target) -> bool:
    """Whether a kernel multiplies the operands of a product as pairs of 16-bit floats.

    The target must have an instruction for it, and where rows are not packed, the number of terms
    must be even (those of attention are whole vectors). Where the instruction is slower than that
    of float32, only products in tiles, and products of so few rows that they wait for weights, use
    it: others may store their operands in 16 bits, but multiply them as float32.
    """
    fast = has_fast_pairs(target) or takes_tiles(call, target) or _waits_for_weights(call)
    return fast and _has_pairs(call, target)


def _has_pairs(call: Call, target: Target) -> bool:
    w = call.args[1].type
    assert isinstance(w, TensorType)
    even = call.op in ("conv2d", "attention") or (
        w.ndim > 1 and (int_value(w.shape[-2]) or 1) % 2 == 0
    )
    return even and has_vectors(target) and multiplies_pairs(target, w.dtype.name)


def _waits_for_weights(call: Call) -> bool:
    x = call.args[0].type
    assert isinstance(x, TensorType)
    return call.op == "linear" and _rows(x) < TILED_ROWS


def _rows(x: TensorType) -> int:
    """The rows of a product's left operand; TILED_ROWS if unknown."""
    return prod(map(_extent, x.shape[:-1]))


def _extent(rows: Expr) -> int:
    """A number of rows; TILED_ROWS if unknown."""
    return n if (n := int_value(rows)) is not None else TILED_ROWS


def takes_tiles(call: Call, target: Target) -> bool:
    """Whether a kernel multiplies matrices in tiles (ir/tiles.py): the target has them for these
    types, and there are enough rows (queries of an attention) and terms to be worth configuring
    them."""
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    narrow = w.dtype == INT8 or (x.dtype.bits == 16 and _has_pairs(call, target))
    if not narrow or not multiplies_tiles(target, w.dtype.name):
        return False
    if call.op == "conv2d":
        return _convolves_in_tiles(call, x, w, target)
    if call.op == "attention":
        return has_tile_rows(target, w.dtype) and _extent(x.shape[2]) >= TILED_ROWS
    few, terms = adjacent(call, target), int_value(w.shape[-2]) or 0
    products = call.op in ("linear", "matmul") and _rows(x) >= TILED_ROWS
    return products and terms % few == 0 and terms >= TILE_ROWS * few


def _convolves_in_tiles(call: Call, x: TensorType, w: TensorType, target: Target) -> bool:
    """Whether a convolution has known sizes and one group, and the columns of its filter fit into a
    tile if it is of pictures with few channels."""
    sizes = [int_value(d) for d in (*x.shape[1:], *w.shape)]
    if None in sizes or 0 in sizes or not has_tile_rows(target, x.dtype):
        return False
    picture = (sizes[0] or 0) <= PIXEL
    fits = call.attrs.dilation[1] == 1 and window_bytes(x, w) <= TILE_ROW_BYTES
    return call.attrs.groups == 1 and (not picture or fits)


def window_bytes(x: TensorType, w: TensorType) -> int:
    """The bytes of the pixels under one row of a filter, of a picture with few channels."""
    return (int_value(w.shape[3]) or 0) * PIXEL * x.dtype.bytes


def adjacent(call: Call, target: Target) -> int:
    """How many terms of a sum lie next to each other in packed weights, for one instruction that
    multiplies and adds them: 4 of uint8 by int8, 2 of floats of 16 bits; 2 of float32 where they
    are multiplied in pairs."""
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    if not has_vectors(target):
        return 1
    if w.dtype == INT8:
        return 4
    return 2 if x.dtype.bits == 16 or wants_float_pairs(call, target) else 1


def wants_float_pairs(call: Call, target: Target) -> bool:
    """Whether products of float32 are taken in pairs of terms, each of which has a sum of its own
    (`pair_products` in schedule/intrin/dot.py): where a broadcast takes two instructions, a load
    and a shuffle, but one instruction loads two numbers twice (SSE). Products of so few rows that
    they wait for weights are taken one by one, and so are images of one channel."""
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    if (x.dtype, w.dtype) != (FLOAT32, FLOAT32) or not target.overwrites_operands:
        return False
    if call.op in ("conv2d", "winograd_conv2d"):
        return (int_value(x.shape[1]) or 1) > 1
    even = w.ndim == 2 and (int_value(w.shape[0]) or 1) % 2 == 0
    return call.op == "linear" and even and _rows(x) >= TILED_ROWS


def has_float_pairs(weights: TensorType, reduced: int) -> bool:
    """Whether weights are packed for that: two terms of float32 are adjacent."""
    return weights.dtype == FLOAT32 and together(weights, reduced) == 2


def together(weights: TensorType, reduced: int) -> int:
    """How many products of a sum over dimension `reduced` one dot-product instruction adds up
    (schedule/intrin/dot.py): those whose packed weights are adjacent, as in `A/32 B/4 A%32 B%4`."""
    last = weights.memory.axes[-1]
    return last.modulus if last.dim == reduced and last.modulus else 1


def is_float32(call: Call) -> bool:
    """Whether the first three operands are float32."""
    return all(isinstance(a.type, TensorType) and a.type.dtype == FLOAT32 for a in call.args[:3])


def row_major(call: Call, out: TensorType, target: Target) -> bool:
    """Whether operands and result are row-major."""
    types = [a.type for a in call.args]
    return out.layout is None and all(isinstance(t, TensorType) and t.layout is None for t in types)


def any_layout(call: Call, out: TensorType, target: Target) -> bool:
    """For operators that compute in whatever layout their operand has."""
    return True


def same_blocks(x: TensorType, out: TensorType) -> bool:
    """Whether two images are in channel blocks of one width."""
    if out.layout is None or x.layout is None or len(out.layout.axes) != 5:
        return False
    return x.layout.block(1) == out.layout.block(1)
