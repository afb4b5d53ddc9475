"""One-pass attention by blocks of threads: when it fits, and the tile of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.families.attention.row import ATTENTION, head_sizes, lacks_types
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Binding, Call, TensorType
from tensorkiln.kernels.family import GPUS, Family, Layouts
from tensorkiln.kernels.fusion import computes_nothing
from tensorkiln.target import Target

# Blocks that fill a device; tiles become smaller until there are as many.
_FULL = 128
_UNKNOWN = 512  # what a number of queries that is not known counts as


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A block of `down` x `across` threads, each of which has `rows` queries and `keys` keys of a
    tile."""

    down: int
    across: int
    rows: int
    keys: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.down * self.across

    @property
    def all_rows(self) -> int:
        """Queries of a block."""
        return self.down * self.rows

    @property
    def all_keys(self) -> int:
        """Keys that a block takes at a time."""
        return self.across * self.keys

    def columns(self, width: int) -> int:
        """Columns of the values that one thread sums."""
        return -(-width // self.across)

    def shared(self, depth: int, width: int) -> int:
        """Elements of shared memory: queries and keys, transposed; values; weights; parts of
        maxima and sums."""
        rows, keys = odd(self.all_rows), self.all_keys
        values = keys * self.columns(width) * self.across
        return depth * (rows + odd(keys)) + values + (keys + self.across) * rows


def odd(length: int) -> int:
    """The length of a row of shared memory such that threads that access a column use all banks."""
    return length | 1


# The largest first. Rows of threads share queries, so columns are a warp or half of one.
_TILES = (
    AttentionTile(16, 16, 4, 2),
    AttentionTile(16, 16, 2, 2),
    AttentionTile(8, 16, 2, 1),
    AttentionTile(4, 16, 2, 1),
    AttentionTile(4, 8, 2, 1),
    AttentionTile(1, 32, 1, 1),
    AttentionTile(1, 8, 1, 1),
)
_SINGLE = 4  # most queries of which each may have a block of its own
_SUMS = 32  # columns x rows of values that a thread has registers for


def tile_of(call: Call, target: Target) -> AttentionTile | None:
    """The tile for an attention: the largest that is at least half full and of which there are
    enough to fill a device. None if no tile fits the shared memory of a block."""
    q = call.args[0].type
    assert isinstance(q, TensorType)
    rows, (depth, width) = int_value(q.shape[2]), head_sizes(call)
    memory_limit, threads = target["max_shared_memory_per_block"], target["max_num_threads"]
    assert isinstance(memory_limit, int) and isinstance(threads, int)
    if not depth or not width:
        return None

    def fits(t: AttentionTile) -> bool:
        if t.down == 1 and (rows is None or rows > _SINGLE):
            return False  # each query would read all keys and values by itself
        few = t.threads <= threads and t.rows * t.columns(width) <= _SUMS
        return few and t.shared(depth, width) * q.dtype.bytes <= memory_limit

    tiles = [t for t in _TILES if fits(t)]
    if rows is not None:
        tiles = [t for t in tiles if t.all_rows < 2 * rows] or tiles[-1:]
    heads = (int_value(q.shape[0]) or 1) * (int_value(q.shape[1]) or 1)

    def blocks(t: AttentionTile) -> int:
        return heads * -(-(rows or _UNKNOWN) // t.all_rows)

    wide = [t for t in tiles if t.across >= 16 and t.down > 1]
    enough = [t for t in wide if blocks(t) >= _FULL]
    return next(iter([*enough[:1], *wide[-1:], *tiles[:1]]), None)


def _lacks(call: Call, out: TensorType, target: Target) -> str:
    if (reason := lacks_types(call)) or tile_of(call, target) is not None:
        return reason
    sizes = " and ".join(map(str, dict.fromkeys(head_sizes(call))))
    shared, threads = target["max_shared_memory_per_block"], target["max_num_threads"]
    return f"no tile of head size {sizes} fits {threads} threads with {shared} bytes to share"


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    """Row-major operands. Needs float32, known head sizes, and a tile that fits."""
    return None if _lacks(call, out, target) else Layouts((None,) * len(call.args))


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    return _layouts(call, out, target) is not None


def moves_operand(call: Call, operand: int, before: Sequence[Binding]) -> bool:
    """Data movement of queries, keys and values. Arithmetic would be repeated for each tile."""
    return operand < 3 and computes_nothing(before)


GPU_ATTENTION = Family(
    op_class="gpu_attention",
    operators=("attention",),
    fits=_fits,
    layouts=_layouts,
    lacks=_lacks,
    decompose=ATTENTION.decompose,
    epilogue=ATTENTION.epilogue,
    prologue=moves_operand,
    devices=GPUS,
    before=("attention_wgmma", "attention_tensor_cores"),
)

ROWS = (GPU_ATTENTION,)
