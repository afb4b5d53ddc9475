"""One-pass attention on tensor cores: when it fits, and the tile of a block."""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.families.attention.gpu_row import moves_operand
from tensorkiln.families.attention.row import ATTENTION, head_sizes
from tensorkiln.families.tensor_cores.gpu_row import PAD
from tensorkiln.ir.device_instructions import WARP_THREADS
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family, Layouts
from tensorkiln.target import Target
from tensorkiln.target.capability import least_capability
from tensorkiln.target.gpus import TENSOR_CORES

UNIT = 16  # queries of a warp; keys, and columns of heads, of one product
_HALF = 2  # bytes of an element
_WARPS = (4, 2, 1)
_KEYS = (64, 32, 16)
_FULL = 128  # blocks that fill a device
_UNKNOWN = 512  # what a number of queries that is not known counts as
_WIDEST = 256  # columns of the values whose sums the registers of a warp hold
_WIDEST_MASKED = 128  # those beside which they hold the values of a mask
_WIDE = 96  # those beside which there is less room


@dataclass(frozen=True, slots=True)
class WarpAttentionTile:
    """A block of `warps` warps with 16 queries each, which takes `keys` keys at a time."""

    warps: int
    keys: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP_THREADS

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return self.warps * UNIT

    def shared(self, depth: int, width: int) -> int:
        """Bytes of shared memory: queries (later the results), keys and values."""
        depth, width = whole(depth), whole(width)
        rows = self.rows * (max(depth, width) * _HALF + PAD)
        return rows + self.keys * ((depth + width) * _HALF + 2 * PAD)


def whole(size: int) -> int:
    """The size of a head in shared memory, rounded up to whole products."""
    return -(-size // UNIT) * UNIT


def tile_of(call: Call, target: Target) -> WarpAttentionTile | None:
    """The tile for an attention: with as many queries as still leave enough blocks to fill a
    device, then with as many keys as fit. None if blocks of the target are too small, or the head
    is too large."""
    q, k = call.args[0].type, call.args[1].type
    assert isinstance(q, TensorType) and isinstance(k, TensorType)
    rows, keys = int_value(q.shape[2]), int_value(k.shape[2])
    depth, width = head_sizes(call)
    memory_limit, threads = target["max_shared_memory_per_block"], target["max_num_threads"]
    assert isinstance(memory_limit, int) and isinstance(threads, int)
    if not depth or not width or width > (_WIDEST if len(call.args) < 4 else _WIDEST_MASKED):
        return None

    def fits(t: WarpAttentionTile) -> bool:
        return t.threads <= threads and t.shared(depth, width) <= memory_limit

    # The values of a mask need registers beside the scores, and beside the sums.
    sizes = _KEYS if len(call.args) < 4 else _KEYS[1:] if width <= _WIDE else _KEYS[2:]
    tiles = [t for w in _WARPS for n in sizes if fits(t := WarpAttentionTile(w, n))]
    if keys is not None:
        tiles = [t for t in tiles if t.keys < keys + UNIT] or tiles[-1:]
    if rows is not None:
        tiles = [t for t in tiles if t.rows < rows + UNIT] or [t for t in tiles if t.warps == 1]
    heads = (int_value(q.shape[0]) or 1) * (int_value(q.shape[1]) or 1)
    enough = [t for t in tiles if heads * -(-(rows or _UNKNOWN) // t.rows) >= _FULL]
    # Each block reads all keys and values: a single warp would read them for 16 queries alone.
    return next(iter([*enough, *[t for t in tiles if t.warps <= 2], *tiles]), None)


def _lacks(call: Call, out: TensorType, target: Target) -> str:
    q = call.args[0].type
    if not isinstance(q, TensorType) or not q.dtype.is_half:
        return "its operands are neither float16 nor bfloat16"
    if call.attrs.get("wide"):
        return "its result is float32"
    if least_capability(target) < TENSOR_CORES[q.dtype.name]:
        return f"the target has no tensor cores for {q.dtype}"
    if None in head_sizes(call):
        return "its head size is symbolic"
    if tile_of(call, target) is not None:
        return ""
    sizes = " and ".join(map(str, dict.fromkeys(head_sizes(call))))
    return f"no tile of head size {sizes} fits a block of the target"


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    """Row-major operands of float16 or bfloat16, known head sizes, and a tile that fits."""
    return None if _lacks(call, out, target) else Layouts((None,) * len(call.args))


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    return _layouts(call, out, target) is not None


ATTENTION_TENSOR_CORES = Family(
    op_class="gpu_attention_tensor_cores",
    operators=("attention",),
    fits=_fits,
    layouts=_layouts,
    lacks=_lacks,
    decompose=ATTENTION.decompose,
    epilogue=ATTENTION.epilogue,
    prologue=moves_operand,
    devices=("cuda",),
)

ROWS = (ATTENTION_TENSOR_CORES,)
