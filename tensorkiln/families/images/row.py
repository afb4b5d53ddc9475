"""Images of unknown size that change layout."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.layouts import channel_blocks, has_vectors
from tensorkiln.target import Target


def _is_open_image(call: Call, out: TensorType, target: Target) -> bool:
    """Whether images of unknown size and known channels, of 32-bit elements, change layout."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    static_dims = [int_value(d) is not None for d in out.shape]
    if out.ndim != 4 or not static_dims[1] or all(static_dims) or x.dtype != out.dtype:
        return False
    blocks = {t.memory.with_halo({}) for t in (x, out)} - {Layout.plain(4)}
    return out.dtype.bits == 32 and has_vectors(target) and blocks <= {channel_blocks(target, out)}


IMAGES = Family(
    op_class="images",
    operators=("relayout",),
    fits=_is_open_image,
    before=("movement",),
)

ROWS = (IMAGES,)
