"""Use Strassen's algorithm for large products with constant weights, if the target enables it.

    y = linear(x, w, b)  ->  parts = strassen_parts(x); y = strassen_linear(parts, w, b, rows=...)

Products of the same x share their parts. Seven products of quarter matrices replace eight, at the
cost of additions for each operand and result, so it pays for long sums with many rows and columns.
A row of the result then depends on another row, through rounding errors and through infinities and
NaN. The target option `strassen` is therefore off by default.

Needs: canonical linear with constant weights; run before `assign_layouts`, which packs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tensorkiln.base.threads import in_threads
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, RVar, TensorType, Value
from tensorkiln.ops import call as op_call
from tensorkiln.ops import infer
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


@dataclass(frozen=True, slots=True)
class SelectStrassen:
    """Replace large linear by strassen_parts and strassen_linear if the target's option `strassen`
    is true.

    The limits on size are those from which it is faster on processors that execute an addition
    beside one multiply-add per cycle (Zen 4).
    """

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the rewritten module; `mod` itself if no product is replaced."""
        if not self.target["strassen"]:
            return mod
        return mod.map_graphs(lambda f: _function(f, self.target))


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


def _function(f: Function, target: Target) -> Function:
    parts: dict[Value, RVar] = {}
    bindings: list[Binding] = []
    finite = _finite(f, target)
    for b in f.bindings:
        call = b.value
        # An infinite weight would put NaN into other columns: `finite` holds no such call.
        if not isinstance(call, Call) or not finite.get(id(call)):
            bindings.append(b)
            continue
        x, w, *bias = call.args
        if x not in parts:
            made = op_call("strassen_parts", x, span=call.span)
            name = x.name if isinstance(x, RVar) else "constant"
            parts[x] = RVar(f"{name}_parts", infer(made))
            bindings.append(Binding(parts[x], made))
        rows = tuple(int_value(d) or 0 for d in b.var.tensor.shape[:-1])
        now = op_call("strassen_linear", parts[x], w, *bias, span=call.span, rows=rows)
        bindings.append(replace(b, value=now))
    return f if len(bindings) == len(f.bindings) else replace(f, bindings=tuple(bindings))


def _finite(f: Function, target: Target) -> dict[int, bool]:
    """For the id of each call that `_fits`, whether all its weights are finite."""
    found: dict[int, bool] = {}

    # A finite sum implies finite elements, and the sum takes a fraction of the time of looking at
    # each; but it may overflow. This reads all weights from the file.
    def look(call: Call) -> None:
        w = call.args[1]
        assert isinstance(w, Constant)
        with np.errstate(over="ignore", invalid="ignore"):
            found[id(call)] = bool(np.isfinite(w.array.sum()) or np.isfinite(w.array).all())

    calls = (b.value for b in f.bindings if isinstance(b.value, Call))
    in_threads(look, [c for c in calls if _fits(c, target)])
    return found


def _fits(call: Call, target: Target) -> bool:
    """Whether a call is a linear that `strassen_linear` can compute, and large enough to be
    faster."""
    if call.op != "linear":
        return False
    x, w = call.args[:2]
    if not isinstance(w, Constant) or w.type.dtype.name != "float32":
        return False
    assert isinstance(x.type, TensorType)
    lead = [int_value(d) for d in x.type.shape[:-1]]
    if None in lead or not lead:
        return False
    rows = prod(n or 0 for n in lead)
    k, n = (int_value(d) or 0 for d in w.type.shape)
    lanes = target.vector_lanes("float32")
    whole = k % (2 * lanes) == 0 and n % (2 * PANEL_VECTORS * lanes) == 0
    large = k >= _TERMS and n >= _COLUMNS and k * n >= _WEIGHTS
    # With chunks shorter than half of _CHUNK, partial sums would be added too often.
    many = _ROWS <= rows <= _MOST_ROWS
    return whole and large and many and _chunk(k // 2, lanes) >= _CHUNK // 2
