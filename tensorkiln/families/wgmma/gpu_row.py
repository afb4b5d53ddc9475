"""Products of warpgroups (wgmma of sm_90a): which types are multiplied, and the tile of a block."""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.base.element_types import HALF_TYPES
from tensorkiln.families.tensor_cores.gpu_row import stages_of
from tensorkiln.ir.device_instructions import (
    WARPGROUP_COLUMNS,
    WARPGROUP_ROWS,
    WARPGROUP_TERMS,
    WARPGROUP_THREADS,
)
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family, operators_of
from tensorkiln.kernels.fusion import elementwise_epilogue, light
from tensorkiln.target import Target
from tensorkiln.target.capability import most_shared, multiprocessors

PAD = 8  # elements behind each row of the sums in shared memory
OUT_COLUMNS = 64  # of the sums that a block has in shared memory at a time, at least
_LARGEST = 2 * WARPGROUP_ROWS * WARPGROUP_COLUMNS[-1]  # sums of a block
# Of the time of a block with the largest tile: copies that begin, and sums that are stored. Fitted
# to products of 128 to 8192 rows on an H100.
_BESIDES = 0.15
# How much longer a block takes for the same sums with fewer rows or columns: a single warpgroup
# waits for its products while nobody multiplies, and narrow tiles read more of shared memory.
# Fitted to a product of 4096 x 768 x 768 on an H200.
_NARROW, _WIDE = 1.25, 128
FEW_ROUNDS = 4  # of terms: with so few, a block mostly waits for memory (fitted to ResNet-50)
_TYPICAL = 512  # rows or columns, where they are not known: those of a sequence, or a batch of some
_ENOUGH = 33  # rows and columns from which on no smaller tile would do
_ELEMENT, _SUM = 2, 4  # bytes


@dataclass(frozen=True, slots=True)
class WarpgroupTile:
    """A tile of `rows` x `columns` sums of a block, which has a warpgroup for each 64 rows."""

    rows: int
    columns: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // WARPGROUP_ROWS * WARPGROUP_THREADS

    @property
    def factors(self) -> int:
        """Bytes of shared memory of the tiles of both factors."""
        return (self.rows + self.columns) * WARPGROUP_TERMS * _ELEMENT

    @property
    def shared(self) -> int:
        """The same, with 64 columns of the sums."""
        return self.factors + self.out_bytes(OUT_COLUMNS, _SUM)

    def out_bytes(self, columns: int, element: int) -> int:
        """Bytes of shared memory of some columns of elements of so many bytes."""
        return self.rows * (columns + PAD) * element


def out_columns(tile: WarpgroupTile, element: int, rounds: int | None, target: Target) -> int:
    """How many columns of what is stored, elements of so many bytes, a block has in shared memory
    at a time: the fewer times, the fewer barriers. As many as take no part from the factors."""

    def stages(columns: int) -> int:
        return stages_of(tile, tile.out_bytes(columns, element), rounds, target)

    sizes = range(OUT_COLUMNS, tile.columns + 1, OUT_COLUMNS)
    return max(n for n in sizes if tile.columns % n == 0 and stages(n) == stages(OUT_COLUMNS))


def warpgroup_tile(
    rows: int | None,
    columns: int | None,
    batch: int,
    target: Target,
    rounds: int | None = None,
) -> WarpgroupTile | None:
    """The tile with which a product of these extents, None being unknown, takes the least time.
    None if it has too few rows or columns, or if blocks of the target are too small. Of few rounds
    of terms, blocks have few columns, so that several run at a time: one multiplies while others
    wait for memory."""
    if any(n is not None and n < _ENOUGH for n in (rows, columns)):
        return None
    widest = _WIDE if (rounds or FEW_ROUNDS + 1) <= FEW_ROUNDS else WARPGROUP_COLUMNS[-1]
    fit = [t for t in _tiles(target) if t.columns <= widest]
    extents = rows or _TYPICAL, columns or _TYPICAL
    processors = multiprocessors(target) or 1
    return min(fit, key=lambda t: _time(t, *extents, batch, processors), default=None)


def _tiles(target: Target) -> list[WarpgroupTile]:
    """The tiles that blocks of a target have room for."""
    threads, shared = target["max_num_threads"], most_shared(target)
    assert isinstance(threads, int)
    tiles = [WarpgroupTile(r * WARPGROUP_ROWS, c) for r in (1, 2) for c in WARPGROUP_COLUMNS]
    return [t for t in tiles if t.threads <= threads and t.shared <= shared]


def _time(
    t: WarpgroupTile, rows: int, columns: int, batch: int, processors: int
) -> tuple[float, int]:
    """What a product takes, in units of a block of the largest tile: multiprocessors, of which each
    has a block at a time, wait for the last of a wave; a block takes as long as its sums, and some
    time besides. Of equal tiles, the one that copies least."""
    blocks = batch * -(-rows // t.rows) * -(-columns // t.columns)
    waves = -(-blocks // processors)
    factor = _NARROW if min(t.rows, t.columns) < _WIDE else 1
    return waves * factor * (t.rows * t.columns / _LARGEST + _BESIDES), t.factors


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether the target multiplies such factors by warpgroups."""
    if len(call.args) < 2 or target["matmul_kernel"] != "wgmma":
        return False
    types = [a.type for a in call.args[:2]]
    left_type, right_type = (t.dtype.name if isinstance(t, TensorType) else "" for t in types)
    return left_type == right_type and left_type in HALF_TYPES


WGMMA = Family(
    op_class="gpu_wgmma",
    operators=operators_of("contraction"),
    fits=_fits,
    epilogue=elementwise_epilogue,
    prologue=light,
    inplace=True,
    devices=("cuda",),
    before=("tensor_cores",),
)

ROWS = (WGMMA,)
