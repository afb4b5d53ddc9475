"""Into how many parts the sums of a product are divided on a device that it would leave idle.

A block of threads computes a tile of sums, so a product of few rows and columns has fewer blocks
than the device has multiprocessors, each of which walks along all terms. Blocks for parts of the
terms use all of them; the sums of the parts are then added.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, Constant, TensorType
from tensorkiln.target import Target
from tensorkiln.target.capability import multiprocessors

_TILE = 64  # rows and columns of a block's tile
# Output channels from which on the groups of a convolution are a batch of products.
LEAST_OUTPUTS = 16
# With fewer rows or columns, most of a tile would be computed in vain (`few_rows` computes them).
LEAST_ROWS = 8
# The least terms of a part, and the most parts.
_TERMS, _PARTS = 32, 64

# Microseconds on an H100. A term of a tile: of a block alone, much of which is waiting, and of each
# of several blocks of a multiprocessor. What a block takes besides. A partial sum that is written
# and read again. The second kernel. With them the products of ResNet-50 and BERT with a batch of
# one are estimated to 10%.
_TERM_ALONE, _TERM, _BLOCK, _SUM, _KERNEL = 0.046, 0.035, 1.0, 1e-6, 1.5
# Of a term, by bytes. Tensor cores multiply floats of 16 bits: an estimate, so low that only long
# sums are divided.
_WORK = {4: 1.0, 2: 0.05}
_GAIN = 0.9  # the time in parts, at most, of that in one part


@dataclass(frozen=True, slots=True)
class _DividedSums:
    """What a product adds: `rows` x `columns` sums over channels, of which each has a `window` of
    terms. Parts have whole channels."""

    rows: int
    columns: int
    channels: int
    window: int

    def parts(self, unit: int, limit: int) -> list[int]:
        """The numbers of parts that can be, up to `limit`, of which each has a multiple of `unit`
        channels."""
        limit = min(limit, self.channels * self.window // _TERMS)
        return [n for n in range(1, limit + 1) if self.channels % (n * unit) == 0]

    def time(self, parts: int, processors: int, work: float) -> float:
        """Microseconds of the product on so many multiprocessors, with `work` for each term."""
        tiles = -(-self.rows // _TILE) * -(-self.columns // _TILE)
        blocks = -(-tiles * parts // processors)
        work *= self.channels // parts * self.window
        products = max(work * _TERM_ALONE + _BLOCK, blocks * (work * _TERM + _BLOCK))
        if parts == 1:
            return products
        return products + _KERNEL + _SUM * self.rows * self.columns * parts


def parts_of(
    call: Call, out: TensorType, target: Target, unit: int = 1, limit: int = _PARTS
) -> int | None:
    """The number of parts for a `linear`, or a `conv2d` of one group, of floats and constant
    weights. None where not all extents are known, or one part is as good. There are up to `limit`,
    of multiples of `unit` channels."""
    processors = multiprocessors(target)
    if processors is None or not _of_one_type(call, out):
        return None
    sums = _sums_of(call, out)
    if sums is None or min(sums.rows, sums.columns) < LEAST_ROWS:
        return None
    work = _WORK[out.dtype.bytes]
    times = {n: sums.time(n, processors, work) for n in sums.parts(unit, limit)}
    parts = min(times, key=times.__getitem__, default=1)
    return parts if parts > 1 and times[parts] <= _GAIN * times[1] else None


def _of_one_type(call: Call, out: TensorType) -> bool:
    """Whether data, constant weights and result are float32, or floats of the same 16 bits."""
    x, w = call.args[0].type, call.args[1]
    if not isinstance(w, Constant) or not isinstance(x, TensorType):
        return False
    is_float = out.dtype == FLOAT32 or out.dtype.is_half
    return is_float and x.dtype == w.type.dtype == out.dtype


def _sums_of(call: Call, out: TensorType) -> _DividedSums | None:
    sizes = [int_value(d) for d in out.shape]
    w = call.args[1].type
    assert isinstance(w, TensorType)
    if None in sizes:
        return None
    extents = [n or 0 for n in sizes]
    weights = [int_value(d) or 0 for d in w.shape]
    if call.op == "linear":
        return _DividedSums(prod(extents[:-1]), extents[-1], weights[0], 1)
    if call.attrs.groups != 1 or call.attrs.get("channel_window") is not None:
        return None
    if extents[1] < LEAST_OUTPUTS:
        return None
    pixels = extents[0] * prod(extents[2:])
    return _DividedSums(extents[1], pixels, weights[1], prod(weights[2:]))
