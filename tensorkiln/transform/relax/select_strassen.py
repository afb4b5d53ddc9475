"""Give large products with constant weights to Strassen's algorithm, where the target asks for it.

    y = linear(x, w, b)  ->  parts = strassen_parts(x); y = strassen_linear(parts, w, b, rows=...)

Products of the same x share their parts. Seven products of quarters replace eight, and a few
additions per operand and result come with them: what is won is won on long sums of many rows and
columns. The results of a row then depend on other rows: by rounding, and on values that are not
finite. So no target has it by itself; its option `strassen` turns it on.

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

# Vectors of columns in a panel of weights; panels p and p + half of them go together.
PANEL_VECTORS = 2
# Terms that one register sums, and whose combined weights fit the first-level cache.
_CHUNK = 192
# Fewer rows, columns or terms do not pay for the additions: weights are combined once for all
# rows, rows once for all columns, results once for all terms. Measured, Strassen's time for direct
# sums with 768 terms: 0.92 with 56 rows and more, 0.97 with 49, and 1.0 where these meet 9 MB of
# weights. 0.95 to 1.04 for 384 x 384 weights, 0.92 for 512 x 512, 0.90 for 384 x 1536.
_ROWS, _COLUMNS, _TERMS, _WEIGHTS = 56, 384, 384, 512 * 512
# With more rows a panel's products leave the second-level cache, and the stack in the end.
_MOST_ROWS = 512


@dataclass(frozen=True, slots=True)
class SelectStrassen:
    """Replace linear by strassen_parts and strassen_linear, where the target's option `strassen`
    is true and that is faster on processors that add beside one multiply-add a cycle (Zen 4)."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Run the pass."""
        if not self.target["strassen"]:
            return mod
        return mod.map_graphs(lambda f: _function(f, self.target))


def parts_layout(half: int, k: int, target: Target) -> Layout | None:
    """How the left operands of `half` rows of `k` terms lie: [chunk][7][tile][row][term].

    None where k is no number of whole vectors.
    """
    lanes = target.vector_lanes("float32")
    chunk = _chunk(k, lanes)
    if not chunk or not half:
        return None
    # A tile costs half a row more than its rows, those that only fill the last one included.
    rows = min(
        range(1, max_rows(target, PANEL_VECTORS) + 1), key=lambda n: -(-half // n) * (n + 0.5)
    )
    return Layout.parse(f"C/{chunk} A B/{rows} B%{rows} C%{chunk}")


def _chunk(k: int, lanes: int) -> int:
    """Terms of the sums in one chunk: the most that divide k evenly, in whole vectors; or 0."""
    step = max(lanes, 4)
    return max((n for n in range(step, _CHUNK + 1, step) if k % n == 0), default=0)


def _function(f: Function, target: Target) -> Function:
    parts: dict[Value, RVar] = {}
    bindings: list[Binding] = []
    finite = _finite(f, target)
    for b in f.bindings:
        call = b.value
        # An infinite weight would make other columns not a number.
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
    """Whether the weights are numbers, by the identity of each call that fits."""
    found: dict[int, bool] = {}

    # A weight's sum is a number only where all of it is, and takes a fraction of the time; but it
    # may overflow. All weights come into memory here.
    def look(call: Call) -> None:
        w = call.args[1]
        assert isinstance(w, Constant)
        with np.errstate(over="ignore", invalid="ignore"):
            found[id(call)] = bool(np.isfinite(w.array.sum()) or np.isfinite(w.array).all())

    calls = (b.value for b in f.bindings if isinstance(b.value, Call))
    in_threads(look, [c for c in calls if _fits(c, target)])
    return found


def _fits(call: Call, target: Target) -> bool:
    """Whether the algorithm can do it, and is faster."""
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
    # A chunk much shorter than others would join its sums too often.
    many = _ROWS <= rows <= _MOST_ROWS
    return whole and large and many and _chunk(k // 2, lanes) >= _CHUNK // 2
