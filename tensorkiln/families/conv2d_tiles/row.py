"""Direct convolutions in tiles of the processor."""

from __future__ import annotations

from math import prod

from tensorkiln.families.conv2d.row import fits
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.layouts import TILED_ROWS, is_blocked, takes_tiles, together
from tensorkiln.target import Target


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether the kernel of `conv2d` fits, and pixels of the image are rows of tiles, and at least
    a few."""
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    if not fits(call, out, target) or not takes_tiles(call, target):
        return False
    pixels = prod(int_value(d) or 0 for d in out.shape[2:])
    few = together(w, 1)
    return few > 1 and is_blocked(x) and pixels >= TILED_ROWS


CONV2D_TILES = Family(
    op_class="conv2d_tiles",
    operators=("conv2d",),
    fits=_fits,
    epilogue=elementwise_epilogue,
    inplace=True,
    before=("conv2d",),
)

ROWS = (CONV2D_TILES,)
