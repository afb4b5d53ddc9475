"""Pictures of bytes that become pixels of four bytes."""

from __future__ import annotations

from tensorkiln.families.movement.row import is_picture
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.layouts import has_vectors
from tensorkiln.target import Target


def _becomes_pixels(call: Call, out: TensorType, target: Target) -> bool:
    """Whether a picture of bytes changes to pixels of four bytes."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    pixels = out.memory.with_halo({}) == Layout.parse("A B/4 C D B%4")
    return is_picture(out) and pixels and x.memory.is_plain and has_vectors(target)


PIXELS = Family(
    op_class="pixels",
    operators=("relayout",),
    fits=_becomes_pixels,
    before=("images",),
)

ROWS = (PIXELS,)
