"""Products of warpgroups (wgmma of sm_90a): which types are multiplied, and the tile of a block."""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.base.element_types import HALF_TYPES
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
from tensorkiln.target.capability import most_shared

PAD = 8  # elements behind each row of the sums in shared memory
OUT_COLUMNS = 64  # of the sums that a block has in shared memory at a time
_MULTIPROCESSORS = 132  # of an H100: tiles grow only while each has a block
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
        return self.factors + self.rows * (OUT_COLUMNS + PAD) * _SUM


def warpgroup_tile(
    rows: int | None, columns: int | None, batch: int, target: Target
) -> WarpgroupTile | None:
    """The tile for a product of these extents, None being unknown: the largest with which every
    multiprocessor has a block. None if it has too few rows or columns, or if blocks of the target
    are too small."""
    if any(n is not None and n < _ENOUGH for n in (rows, columns)):
        return None
    threads, shared = target["max_num_threads"], most_shared(target)
    assert isinstance(threads, int)
    tiles = [WarpgroupTile(r * WARPGROUP_ROWS, c) for r in (1, 2) for c in WARPGROUP_COLUMNS]
    fit = [t for t in tiles if t.threads <= threads and t.shared <= shared]
    full = [t for t in fit if _blocks(t, rows, columns) * batch >= _MULTIPROCESSORS]
    return max(full or fit[:1], key=lambda t: t.rows * t.columns, default=None)


def _blocks(t: WarpgroupTile, rows: int | None, columns: int | None) -> int:
    """The number of blocks of a product, where unknown rows or columns count as one tile."""
    return -(-(rows or t.rows) // t.rows) * -(-(columns or t.columns) // t.columns)


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
