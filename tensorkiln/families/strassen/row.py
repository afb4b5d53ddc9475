"""Strassen's algorithm for large products with constant weights, if the target enables it.

    y = linear(x, w, b)  ->  parts = strassen_parts(x); y = strassen_linear(parts, w, b, rows=...)

Products of the same x share their parts. Seven products of quarter matrices replace eight, at the
cost of additions for each operand and result, so it pays for long sums with many rows and columns.
A row of the result then depends on another row, through rounding errors and through infinities and
NaN. The target option `strassen` is therefore off by default.
"""

from __future__ import annotations

from math import prod

from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType
from tensorkiln.kernels.family import Algorithm, Family, Layouts, Rewriter
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.layouts import by_lanes, is_float32
from tensorkiln.ops import call as op_call
from tensorkiln.target import Target
from tensorkiln.target.registers import max_rows

# The width of a panel of weights, in vectors of columns. Panel p of the left half of the columns is
# computed together with panel p of the right half.
PANEL_VECTORS = 2
# The most terms that are summed in registers at once; their weights fit the first-level cache.
_CHUNK = 192
# The least rows, columns, terms and elements of the weights that pay for the additions: weights are
# combined once for all rows, rows once for all columns, results once for all terms. Measured time
# relative to direct sums: with 768 terms 0.92 for 56 rows or more, 0.97 for 49 rows, 1.0 for 49
# rows and 9 MB of weights; 0.95 to 1.04 for 384 x 384 weights, 0.92 for 512 x 512, 0.90 for
# 384 x 1536.
_ROWS, _COLUMNS, _TERMS, _WEIGHTS = 56, 384, 384, 512 * 512
# With more rows, a panel's products no longer fit the second-level cache, and at last the stack.
_MOST_ROWS = 512


def parts_layout(half: int, k: int, target: Target) -> Layout | None:
    """The layout of the seven left operands [7, half, k]: [chunk][7][tile][row][term] in memory.

    None if k is not a multiple of the vector width, or there are no rows.
    """
    lanes = target.vector_lanes("float32")
    chunk = _chunk(k, lanes)
    if not chunk or not half:
        return None
    # The time of a tile is that of its rows, including padding rows in the last tile, and of half a
    # row more.
    rows = min(
        range(1, max_rows(target, PANEL_VECTORS) + 1), key=lambda n: -(-half // n) * (n + 0.5)
    )
    return Layout.parse(f"C/{chunk} A B/{rows} B%{rows} C%{chunk}")


def _chunk(k: int, lanes: int) -> int:
    """The number of terms in a chunk: the largest divisor of k that is at most `_CHUNK` and a
    multiple of the vector width; 0 if there is none."""
    step = max(lanes, 4)
    return max((n for n in range(step, _CHUNK + 1, step) if k % n == 0), default=0)


def _choose(call: Call, out: TensorType, target: Target) -> tuple[int, ...] | None:
    """The rows of a linear that `strassen_linear` can compute and that is large enough to be faster
    on processors that execute an addition beside one multiply-add per cycle (Zen 4)."""
    w = call.args[1]
    if not target["strassen"] or not isinstance(w, Constant) or w.type.dtype != FLOAT32:
        return None
    lead = tuple(map(int_value, out.shape[:-1]))
    if None in lead or not lead:
        return None
    rows = tuple(n or 0 for n in lead)
    k, n = (int_value(d) or 0 for d in w.type.shape)
    lanes = target.vector_lanes("float32")
    whole = k % (2 * lanes) == 0 and n % (2 * PANEL_VECTORS * lanes) == 0
    large = k >= _TERMS and n >= _COLUMNS and k * n >= _WEIGHTS
    # With chunks shorter than half of _CHUNK, partial sums would be added too often.
    many = _ROWS <= prod(rows) <= _MOST_ROWS
    return rows if whole and large and many and _chunk(k // 2, lanes) >= _CHUNK // 2 else None


def _rewrite(b: Binding, rows: tuple[int, ...], rewriter: Rewriter) -> Call:
    call = b.value
    assert isinstance(call, Call)
    x, w, *bias = call.args
    name = x.name if isinstance(x, RVar) else "constant"
    split = op_call("strassen_parts", x, span=call.span)
    parts = rewriter.once(("strassen_parts", x), lambda: rewriter.bind(split, f"{name}_parts"))
    return op_call("strassen_linear", parts, w, *bias, span=call.span, rows=rows)


def _parts_layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    half, k = (int_value(d) or 0 for d in out.shape[1:])
    return Layouts((None,), parts_layout(half, k, target)) if is_float32(call) else None


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    parts = call.args[0].type
    if not is_float32(call) or not isinstance(parts, TensorType):
        return None
    half, k = (int_value(d) or 0 for d in parts.shape[1:])
    nr = target.vector_lanes("float32") * PANEL_VECTORS
    weights = Layout.parse(f"B/{nr} A B%{nr}") if isinstance(call.args[1], Constant) else None
    bias = [by_lanes(target)] * len(call.args[2:])
    return Layouts((parts_layout(half, k, target), weights, *bias))


STRASSEN_PARTS = Family(
    op_class="strassen_parts",
    operators=("strassen_parts",),
    layouts=_parts_layouts,
)
STRASSEN = Family(
    op_class="linear_strassen",
    operators=("strassen_linear",),
    layouts=_layouts,
    epilogue=elementwise_epilogue,
    inplace=True,
    # An infinite weight would put NaN into other columns.
    algorithm=Algorithm("linear", _choose, _rewrite, finite_weights=True),
    before=("linear",),
)

ROWS = (STRASSEN_PARTS, STRASSEN)
