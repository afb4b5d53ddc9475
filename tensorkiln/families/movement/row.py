"""Data movement: changes of layout, transposes, concatenations, elements that are taken.

Elementwise work that a data-movement kernel cannot fuse (another element type, `_apart`) runs in a
separate kernel before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tensorkiln.ir.dtype import INT16
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Binding, Call, TensorType
from tensorkiln.kernels.estimates import expected
from tensorkiln.kernels.family import Family, operators_of
from tensorkiln.kernels.fusion import is_view, looks_up, transposes_rows
from tensorkiln.ops import get, infer
from tensorkiln.target import Target

# Rows of a table that are taken in the order of another kernel must be this many times fewer than
# all of it: a row's elements lie in as many lines of the cache, of which the product beside reads
# all of the table.
_FEW_ROWS = 16


def _in_blocks(call: Call, out: TensorType, target: Target) -> bool:
    """Whether loops over channel blocks compute a call: elementwise, or a concatenation of whole
    blocks, or a slice that keeps all images and channels, or rows or columns that are taken, or
    bytes that are looked up."""
    a = call.attrs
    if call.op == "concat":
        sizes = [int_value(t.type.shape[1]) for t in call.args if isinstance(t.type, TensorType)]
        lanes = target.vector_lanes("float32")
        return a.axis in (1, -3) and all(s is not None and s % lanes == 0 for s in sizes)
    if call.op == "slice":
        x = call.args[0].type
        assert isinstance(x, TensorType)
        first = all(int_value(i) == 0 for i in a.begin[:2])
        return first and out.shape[:2] == x.shape[:2] and a.strides[:2] == (1, 1)
    if call.op == "take":
        along = a.axis % out.ndim > 1 and getattr(call.args[1].type, "ndim", 0) == 1
        return along or looks_up(call)
    return get(call.op).pattern in ("elementwise", "broadcast")


def _takes_rows(call: Call, operand: int, target: Target) -> bool:
    """Whether a call takes few rows of a constant table one element after the other. Then it costs
    little to read the table in the order in which another kernel, which reads all of it, has it."""
    if call.op != "take" or operand != 0:
        return False
    table, indices = (a.type for a in call.args)
    assert isinstance(table, TensorType) and isinstance(indices, TensorType)
    if table.ndim != 2 or call.attrs.axis % 2:
        return False
    rows = prod(map(expected, indices.shape))
    return target.optimize == "size" or rows * _FEW_ROWS <= (int_value(table.shape[0]) or 0)


def _apart(call: Call, operand: int, before: Sequence[Binding], target: Target) -> bool:
    """Whether elements should be computed by a kernel of their own before they are moved. The
    kernels that move pairs of int16, and pictures of bytes, know no other type, and plain loops
    move only 0.3 elements in a nanosecond. A concatenation copies a view's rows, not its elements
    at places that it would compute from those of the view's operand."""
    if transposes_rows(call, operand, before, target):
        return True
    if call.op == "concat":
        return len(before) == 1 and is_view(before[0])
    out = infer(call)
    assert isinstance(out, TensorType)
    moves = ("relayout", "transpose") if out.dtype == INT16 else ("relayout", "pad")
    if call.op not in moves or not (out.dtype == INT16 or is_picture(out)):
        return False
    types = [a.type for b in before if isinstance(b.value, Call) for a in b.value.args]
    return any(isinstance(t, TensorType) and t.dtype != out.dtype for t in types)


def is_picture(t: TensorType) -> bool:
    """Whether a tensor of bytes is a picture of at most four channels, of known width."""
    is_image = t.ndim == 4 and int_value(t.shape[3]) is not None
    return is_image and t.dtype.bits == 8 and 0 < (int_value(t.shape[1]) or 0) <= 4


MOVEMENT = Family(
    op_class="movement",
    operators=operators_of("injective", "elementwise", "broadcast"),
    in_blocks=_in_blocks,
    apart=_apart,
    shares=_takes_rows,
)

ROWS = (MOVEMENT,)
