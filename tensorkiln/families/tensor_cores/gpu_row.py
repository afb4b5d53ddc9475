"""Products on tensor cores: which types are multiplied, and the tile of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tensorkiln.base.element_types import BYTE_TYPES, HALF_TYPES
from tensorkiln.families.contraction.costs import LEAST_OUTPUTS, LEAST_ROWS, parts_of
from tensorkiln.families.tensor_cores.decomposition import in_channel_parts, with_channels
from tensorkiln.ir.device_instructions import WARP_THREADS
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Binding, Call, Constant, TensorType
from tensorkiln.kernels.family import Algorithm, Family, Layouts, Rewriter, operators_of
from tensorkiln.kernels.fusion import elementwise_epilogue, light
from tensorkiln.kernels.layouts import CHANNELS_LAST, TAPS_FIRST, has_few_channels, is_channels_last
from tensorkiln.target import Target
from tensorkiln.target.capability import copies_ahead, least_capability, most_shared
from tensorkiln.target.gpus import TENSOR_CORES

FACTORS = frozenset(
    {*((t, t) for t in HALF_TYPES), *((a, b) for a in BYTE_TYPES for b in BYTE_TYPES)}
)
TF32 = (FLOAT32.name, FLOAT32.name)

_UNIT = 16  # rows and columns of the smallest tile of a warp
_LARGEST, _USUAL = 128, 64
_FULL = 128  # with fewer tiles a device is not full, and smaller tiles are better
_WARPS = 4  # of a block, at most
_TERMS = 64  # bytes of terms that a tile gets at a time
MMA_TERMS = 32  # bytes of terms of one instruction
PAD = 16  # bytes behind each row of shared memory
_SUM = 4  # bytes of a sum
Rewrite = Callable[[Binding, int, Rewriter], Call]
_VECTORS = 4, 8  # floats of 16 bits that a thread copies at once
# Channels of a part of a convolution, which fill the rounds of a product, and the most parts: one
# kernel adds all.
_PART, _MOST_PARTS = 64, 16


_OF_SYSTEM = 1 << 10  # bytes of shared memory of each block that the system takes
_REGISTERS = 256 << 10  # bytes of a multiprocessor's registers
_OF_THREAD = 160  # bytes of a thread's registers besides its sums


@dataclass(frozen=True, slots=True)
class WarpTile:
    """A tile of `rows` x `columns` sums of a block of `down` x `across` warps, which gets
    `term_bytes` bytes of terms at a time."""

    rows: int
    columns: int
    term_bytes: int
    down: int
    across: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.down * self.across * WARP_THREADS

    @property
    def of_warp(self) -> tuple[int, int]:
        """(rows, columns) of the part of a warp."""
        return self.rows // self.down, self.columns // self.across

    @property
    def factors(self) -> int:
        """An upper bound on the bytes of shared memory of the tiles of both factors."""
        return (self.rows + self.columns) * (self.term_bytes + PAD)

    @property
    def shared(self) -> int:
        """The same, with 16 rows of the sums of each warp."""
        return self.factors + self.down * _UNIT * (self.columns * _SUM + PAD)


class SumsTile(Protocol):
    """A tile of sums, which the threads of a block have in registers."""

    @property
    def rows(self) -> int:
        """Rows of sums."""

    @property
    def columns(self) -> int:
        """Columns of sums."""

    @property
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def factors(self) -> int:
        """Bytes of shared memory of the tiles of both factors."""


def stages_of(tile: SumsTile, reserved: int, rounds: int | None, target: Target) -> int:
    """Into how many parts shared memory is divided for the factors of a tile, beside `reserved`
    bytes. As many as the target asks for and as there are rounds, but not so many that fewer blocks
    (of at most two) fit a multiprocessor than their registers allow."""
    stages = target["matmul_stages"]
    assert isinstance(stages, int)
    if not copies_ahead(target) or stages == 1:
        return 1
    of_block = tile.rows * tile.columns * _SUM + tile.threads * _OF_THREAD
    blocks = 1 if 2 * of_block >= _REGISTERS else 2
    room = (most_shared(target) + _OF_SYSTEM) // blocks - _OF_SYSTEM
    return max(
        1, min(stages, (room - reserved) // tile.factors, stages if rounds is None else rounds)
    )


def warp_tile(
    rows: int | None, columns: int | None, batch: int, term_bytes: int | None, target: Target
) -> WarpTile | None:
    """The tile for a product of these extents, None being unknown. None if it has too few rows or
    columns, or if blocks of the target are too small."""
    if min(LEAST_ROWS if n is None else n for n in (rows, columns)) < LEAST_ROWS:
        return None
    threads, shared = target["max_num_threads"], target["max_shared_memory_per_block"]
    assert isinstance(threads, int) and isinstance(shared, int)
    sizes = [_size(rows), _size(columns)]
    tiles = batch * ((rows or _USUAL) // _LARGEST) * ((columns or _USUAL) // _LARGEST)
    if sizes == [_USUAL, _USUAL] and tiles >= _FULL:
        sizes = [_LARGEST, _LARGEST]
    terms = _TERMS if term_bytes is None or term_bytes > MMA_TERMS else MMA_TERMS
    down, across = _warps(sizes[0], sizes[1], min(_WARPS, threads // WARP_THREADS))
    tile = WarpTile(sizes[0], sizes[1], terms, down, across)
    return tile if down and tile.shared <= shared else None


def _size(extent: int | None) -> int:
    """The least power of two, from _UNIT to _USUAL, that is at least `extent`; _USUAL if it is
    unknown or larger."""
    size = _UNIT
    while size < _USUAL and (extent is None or size < extent):
        size *= 2
    return size


def _warps(rows: int, columns: int, limit: int) -> tuple[int, int]:
    """(warps along rows, warps along columns) of a tile, at most `limit` in all, such that the part
    of each is as square as possible and at least _UNIT x _UNIT. (0, 0) if a block has no room for a
    warp."""
    if not limit:
        return 0, 0
    down = across = 1
    while down * across * 2 <= limit and max(rows // down, columns // across) > _UNIT:
        if rows // down >= columns // across:
            down *= 2
        else:
            across *= 2
    return down, across


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether all architectures of the target multiply such factors."""
    if len(call.args) < 2:
        return False
    types = [a.type for a in call.args[:2]]
    left_type, right_type = (t.dtype.name if isinstance(t, TensorType) else "" for t in types)
    rounded = (left_type, right_type) == TF32 and target["matmul_precision"] == "tf32"
    if not rounded and (left_type, right_type) not in FACTORS:
        return False
    return least_capability(target) >= TENSOR_CORES[left_type]


def channels_of(call: Call, out: TensorType, target: Target) -> int | None:
    """The channels of each group with which a convolution of floats of 16 bits is computed with
    channels last, so that the terms of a tap are neighbours in memory, in whole vectors: its own,
    or a few more. None for other calls, and for those of several groups of few outputs."""
    if call.op != "conv2d" or not _fits(call, out, target) or not _is_of_halves(call, out):
        return None
    sizes = [int_value(n) for t in _images(call) for n in t.shape[1:]]
    outputs, groups = int_value(out.shape[1]) or 0, call.attrs.groups
    enough = LEAST_ROWS if groups == 1 else LEAST_OUTPUTS
    if None in sizes or 0 in sizes or outputs // groups < enough:
        return None
    channels = int_value(_images(call)[1].shape[1]) or 0
    count = _whole_vectors(channels, groups)
    return count if groups == 1 or count == channels else None


def _whole_vectors(channels: int, groups: int) -> int:
    """The least whole vectors of channels; smaller vectors are for images of few channels."""
    if channels <= _VECTORS[0] and groups == 1:
        return _VECTORS[0]
    return -(-channels // _VECTORS[1]) * _VECTORS[1]


def _images(call: Call) -> tuple[TensorType, TensorType]:
    """The types of the image and the weights of a convolution."""
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    return x, w


def _is_of_halves(call: Call, out: TensorType) -> bool:
    """Whether a convolution multiplies floats of 16 bits, of weights as they come."""
    x, w = _images(call)
    is_half = x.dtype == w.dtype and x.dtype.is_half and out.dtype.sums == FLOAT32
    return is_half and call.attrs.get("channel_window") is None


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    """Channels last, if they are whole vectors."""
    if call.op != "conv2d":
        return None
    if channels_of(call, out, target) != int_value(_images(call)[1].shape[1]):
        return None
    bias = (None,) * (len(call.args) - 2)
    weights = CHANNELS_LAST if has_few_channels(_images(call)[0]) else TAPS_FIRST
    return Layouts((CHANNELS_LAST, weights, *bias), CHANNELS_LAST)


def _rewrite(call: Call, out: TensorType, target: Target) -> tuple[Rewrite, int] | None:
    """How a convolution with constant weights is computed by another one, or several
    (`decomposition.py`): with more channels, or in parts. None for neither."""
    count = channels_of(call, out, target)
    if count is None or not isinstance(call.args[1], Constant):
        return None
    if count > call.args[1].array.shape[1]:
        return with_channels, count
    parts = parts_of(call, out, target, _PART, _MOST_PARTS)
    return None if parts is None else (in_channel_parts, parts)


def _rewritten(b: Binding, choice: tuple[Rewrite, int], rewriter: Rewriter) -> Call:
    rewrite, count = choice
    return rewrite(b, count, rewriter)


def apart(call: Call, operand: int, before: Sequence[Binding], target: Target) -> bool:
    """Whether an operand is to be computed by a kernel of its own: with channels last, hardware
    copies it while threads multiply."""
    x = call.args[0].type
    return call.op == "conv2d" and isinstance(x, TensorType) and is_channels_last(x)


CONTRACTION = Family(
    op_class="gpu_tensor_cores",
    operators=operators_of("contraction"),
    fits=_fits,
    layouts=_layouts,
    epilogue=elementwise_epilogue,
    prologue=light,
    apart=apart,
    inplace=True,
    algorithm=Algorithm("conv2d", _rewrite, _rewritten),
    devices=("cuda",),
    before=("contraction",),
)

ROWS = (CONTRACTION,)
