"""One-pass attention by warpgroups (wgmma of sm_90a): when it fits, and the tile of a block."""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.families.attention.gpu_row import moves_operand
from tensorkiln.families.attention.row import ATTENTION, head_sizes
from tensorkiln.ir.device_instructions import (
    ATTENTION_SIZES,
    WARP_THREADS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
)
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family, Layouts
from tensorkiln.target import Target
from tensorkiln.target.capability import most_shared, multiprocessors

_HALF = 2  # bytes of an element
_ENOUGH = 33  # queries from which on no tile of fewer would do
_STAGES = 2  # tiles of keys in shared memory: one in use, and one that is copied
_UNKNOWN = 512  # what a number of queries or keys that is not known counts as
_SMALL, _LARGE = ATTENTION_SIZES  # of heads, and keys of a tile


@dataclass(frozen=True, slots=True)
class WarpgroupAttentionTile:
    """A block of `groups` warpgroups with 64 queries each, which takes `keys` keys at a time. As
    many as `stages` tiles of keys and values are in shared memory."""

    groups: int
    keys: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return self.groups * WARPGROUP_THREADS

    @property
    def producers(self) -> int:
        """Threads that copy. A whole warpgroup can leave registers to several others."""
        return WARPGROUP_THREADS if self.groups > 1 else WARP_THREADS

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return self.groups * WARPGROUP_ROWS

    def shared(self, depth: int, width: int) -> int:
        """Bytes of shared memory: queries (later the results), keys and values."""
        keys = self.stages * self.keys * (depth + width)
        return (self.rows * max(depth, width) + keys) * _HALF

    def fits(self, depth: int, width: int, target: Target) -> bool:
        """Whether a block of the target has so many threads, and so much shared memory."""
        threads = target["max_num_threads"]
        assert isinstance(threads, int)
        memory = self.shared(depth, width) <= most_shared(target)
        return memory and self.threads + self.producers <= threads


def tile_of(call: Call, target: Target) -> WarpgroupAttentionTile | None:
    """The tile for an attention. None if its sizes are none of those that warpgroups multiply, or
    if it has less than two tiles of keys, or few queries."""
    q, k = call.args[0].type, call.args[1].type
    assert isinstance(q, TensorType) and isinstance(k, TensorType)
    rows, keys = int_value(q.shape[2]), int_value(k.shape[2])
    depth, width = head_sizes(call)
    if depth not in ATTENTION_SIZES or width not in ATTENTION_SIZES:
        return None
    query_count = _UNKNOWN if rows is None else rows
    key_count = _UNKNOWN if keys is None else keys
    heads = (int_value(q.shape[0]) or 1) * (int_value(q.shape[1]) or 1)
    blocks = heads * -(-query_count // (2 * WARPGROUP_ROWS))
    full = blocks >= (multiprocessors(target) or 1)
    tile = _tile(full, key_count, max(depth, width), len(call.args) > 3)
    enough = query_count >= _ENOUGH and key_count > tile.keys
    return tile if enough and tile.fits(depth, width, target) else None


def _tile(full: bool, keys: int, size: int, masked: bool) -> WarpgroupAttentionTile:
    """The tile for heads of a size. `full`: blocks of two warpgroups still fill the device."""
    # Of small heads, exponentials take as long as products: several blocks on a multiprocessor,
    # which do not wait for each other, do both at once better than warpgroups of one block.
    groups = 2 if full and size > _SMALL else 1
    # The values of a mask need registers beside the scores.
    is_large = groups > 1 and not masked and keys > _LARGE
    return WarpgroupAttentionTile(groups, _LARGE if is_large else _SMALL, _STAGES)


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    """Row-major operands of float16 or bfloat16, and a tile that fits."""
    q = call.args[0].type
    if target["matmul_kernel"] != "wgmma" or call.attrs.get("wide"):
        return None
    if not isinstance(q, TensorType) or not q.dtype.is_half or tile_of(call, target) is None:
        return None
    return Layouts((None,) * len(call.args))


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    return _layouts(call, out, target) is not None


ATTENTION_WGMMA = Family(
    op_class="gpu_attention_wgmma",
    operators=("attention",),
    fits=_fits,
    layouts=_layouts,
    decompose=ATTENTION.decompose,
    epilogue=ATTENTION.epilogue,
    prologue=moves_operand,
    devices=("cuda",),
    before=("attention_tensor_cores",),
)

ROWS = (ATTENTION_WGMMA,)
