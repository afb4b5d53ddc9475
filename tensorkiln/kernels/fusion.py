"""Rules shared by kernel families: which operators a kernel takes in before its own operator
(prologue) and after it (epilogue).
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln import ops
from tensorkiln.ir.dtype import FLOAT32, INT32
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.relax import Binding, Call, Constant, TensorType
from tensorkiln.kernels.layouts import in_same_order
from tensorkiln.ops.rules import same_extent
from tensorkiln.target import Target

# The most operators before one that passes over its row several times, such as softmax: each pass
# computes them again.
_MOST = 3
_COSTLY = {
    *("exp", "erf", "tanh", "gelu", "sigmoid", "silu", "log", "pow", "take"),
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
}


VIEWS = ("reshape", "fit")


def is_view(b: Binding) -> bool:
    """Whether a value is its row-major operand in another shape, whose memory it shares."""
    call = b.value
    if not isinstance(call, Call) or call.op not in VIEWS:
        return False
    types = [b.var.type, *(a.type for a in call.args)]
    return all(isinstance(t, TensorType) and t.layout is None for t in types)


def elementwise_epilogue(anchor: Binding, last: TensorType, reader: Binding) -> bool:
    """Whether `reader` computes each element from the one at the same place in memory. It may
    change the dtype of sums in int32, and round float32 to 16 bits."""
    call, t = reader.value, reader.var.type
    assert isinstance(call, Call) and isinstance(t, TensorType)
    if ops.get(call.op).pattern not in ("elementwise", "broadcast") and not looks_up(call):
        return False
    # Halos may differ: a kernel writes the halo of its last result only.
    order = in_same_order(t, last)
    sums = anchor.var.tensor.dtype == INT32
    rounds = last.dtype == FLOAT32 and t.dtype.sums == last.dtype
    return t.shape == last.shape and order and (t.dtype == last.dtype or sums or rounds)


def looks_up(call: Call) -> bool:
    """Whether a call takes elements of a constant table of 256 at indices that another value gives.
    Such a call can be fused after the computation of the indices, never after that of the table."""
    table = call.args[0] if call.op == "take" else None
    return isinstance(table, Constant) and table.type.static_shape() == (256,)


_WINDOWS = ("max_pool2d", "avg_pool2d")


def any_prologue(call: Call, operand: int, before: Sequence[Binding]) -> bool:
    """Every prologue: each element is read about once."""
    return True


def no_view(call: Call, operand: int, before: Sequence[Binding]) -> bool:
    """Every prologue of a reduction, except a view where windows overlap or have strides. A view
    costs nothing by itself, but elements that are read through it cannot be read as vectors."""
    return call.op not in _WINDOWS or not (len(before) == 1 and is_view(before[0]))


def light(call: Call, operand: int, before: Sequence[Binding]) -> bool:
    """A prologue of few and cheap operators on the first operand, for kernels that read it several
    times. A view costs nothing by itself."""
    names = {b.value.op for b in before if isinstance(b.value, Call)}
    view = len(before) == 1 and is_view(before[0])
    return operand == 0 and not view and len(before) <= _MOST and not names & _COSTLY


def transposes_rows(call: Call, operand: int, before: Sequence[Binding], target: Target) -> bool:
    """Whether a transpose takes apart rows of at least a vector, or a change of layout takes apart
    channel blocks, that were read at computed places. Fused, each element would be a load of its
    own, and its place would be computed once for each column."""
    if call.op == "relayout":
        blocks = before[-1].var.tensor.layout is not None
        return blocks and any(isinstance(b.value, Call) and b.value.op == "take" for b in before)
    if call.op != "transpose" or call.attrs.axes[-1] == len(call.attrs.axes) - 1:
        return False
    row = before[-1].var.tensor.shape[-1]
    length = int_value(row)
    if length is not None and length < target.vector_lanes("float32"):
        return False
    return any(_takes_rows(b, row) for b in before)


def _takes_rows(b: Binding, row: Expr) -> bool:
    """Whether a value consists of such rows of another at computed places."""
    call = b.value
    if not isinstance(call, Call) or call.op != "take":
        return False
    x = call.args[0].type
    assert isinstance(x, TensorType)
    axis = call.attrs.axis % x.ndim
    return axis < x.ndim - 1 and same_extent(x.shape[-1], row)


def computes_nothing(before: Sequence[Binding]) -> bool:
    """Whether operators only move elements."""
    calls = (b.value for b in before)
    return all(ops.get(c.op).pattern == "injective" for c in calls if isinstance(c, Call))
