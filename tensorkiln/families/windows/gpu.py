"""Windows on a device: pooling, depthwise and grouped convolution, and convolutions with too few
rows or columns for tiles of products (`families/contraction/gpu.py`).

A thread computes a few rows of one column, for a few channels that read the same part of the image,
and loads a value that several of its sums need only once. Neighbouring threads have neighbouring
columns, so all accesses of a warp are to neighbours in memory:

    out[n, c, i, j] = sum x[n, c, i + kh, j + kw] * w[c, kh, kw]        rows i, i + 1

    for kw:
        w0 = w[c, 0, kw]; w1 = w[c, 1, kw]
        v = x[n, c, i, j + kw];     sums[0] += v * w0
        v = x[n, c, i + 1, j + kw]; sums[0] += v * w1; sums[1] += v * w0
        v = x[n, c, i + 2, j + kw];                    sums[1] += v * w1

Values are the same if their expressions are equal. The order of a sum depends on the window alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Binary,
    Expr,
    IntImm,
    Reduce,
    Var,
    binary,
    int_value,
    neutral,
)
from tensorkiln.ir.stmt import If, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import substitute
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.build import around, nest, within
from tensorkiln.schedule.gpu.grid import on_grid
from tensorkiln.schedule.group import Group, inplace_params
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.reductions import reductions_of, replaced
from tensorkiln.target import Target

# Rows of a thread, the best first. Those that divide the height need no conditions.
_ROWS = (4, 7, 5, 3, 2)
_CHANNELS = (4, 3, 2)
_SUMS = 12  # of a thread, in registers
# With fewer threads a device is not full, so each computes less. An unknown extent counts as
# _UNKNOWN.
_FULL, _UNKNOWN = 1 << 14, 16
# Most taps along the height, all of which are spelled out.
_TAPS = 16
_AT = (IntImm(0),)


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of a group with a convolution or a pooling. None where a thread for each element
    is better, as with high windows."""
    tile = tile_of(group)
    kernel = None if tile is None else _Windows(group.unviewed, tile)
    if kernel is None or not kernel.suits:
        return None
    params, inplace = kernel.group.params, inplace_params(group)
    s = Schedule(PrimFunc(group.name, params, kernel.stmt(), inplace=inplace), check)
    on_grid(s, s.loops(role="outer"), target)
    return s


@dataclass(frozen=True, slots=True)
class WindowTile:
    """Channels and rows of the output that a thread computes."""

    channels: int
    rows: int


def tile_of(group: Group) -> WindowTile | None:
    """The tile of a group; None if its result is not an image [N, C, H, W]."""
    anchor, t = group.anchor, group.out_type
    if anchor is None or t.ndim != 4 or t.layout is not None:
        return None
    work = 1
    for d in t.shape:
        work *= int_value(d) or _UNKNOWN
    height = int_value(t.shape[2])
    if height is None:
        return WindowTile(_channels(group, 4, work // 4), 4)
    fits = [r for r in _ROWS if height % r == 0] + ([4] if height > 16 else [])
    rows = next((r for r in fits if work // r >= _FULL), 1)
    return WindowTile(_channels(group, rows, work // rows), rows)


def _channels(group: Group, rows: int, work: int) -> int:
    """Channels of a thread. They divide the channels that read the same part of the image."""
    assert group.anchor is not None
    if group.anchor.op != "conv2d":
        return 1
    outputs = int_value(group.out_type.shape[1]) or 1
    alike = outputs // group.anchor.attrs.groups
    fits = (n for n in _CHANNELS if alike % n == 0 and n * rows <= _SUMS)
    return next((n for n in fits if work // n >= _FULL), 1)


class _Windows:
    """The program of a group. `suits`: its element is a function of one window of known, small
    height."""

    def __init__(self, group: Group, tile: WindowTile):
        self.group, self.tile, self.shape = group, tile, group.out_type.shape
        self.index = tuple(Var(f"i{d}") for d in range(4))
        self.value = simplify_value(group.element(group.out_var)(*self.index), {})
        reductions = list(dict.fromkeys(reductions_of(self.value)))
        self.suits = len(reductions) == 1 and self._is_window(reductions[0])
        if not self.suits:
            return
        self.total = reductions[0]
        # A buffer each: proofs then compare the accesses of one sum only.
        self.sums = [
            buffer(f"sum{k}", (1,), self.total.dtype, "register")
            for k in range(tile.channels * tile.rows)
        ]
        self.exact = int_value(simplify(self.shape[2] % tile.rows)) == 0

    def _is_window(self, r: Reduce) -> bool:
        extents = [int_value(e) for _, e in r.axes]
        return len(extents) >= 2 and 0 < (extents[-2] or 0) <= _TAPS

    def stmt(self) -> Stmt:
        """for image, tile of channels, tile of rows, column: the sums of a thread."""
        n, c, h, w = self.shape
        tile = self.tile
        rows = simplify((h + (tile.rows - 1)) // tile.rows)
        extents = [n, simplify(c // tile.channels), rows, w]
        return nest(["n", "c", "y", "x"], extents, self._thread, ["outer"] * 4, True)

    def _thread(self, n: Expr, c: Expr, y: Expr, x: Expr) -> Stmt:
        tile, total = self.tile, self.total
        places = [
            (simplify(c * tile.channels + k), simplify(y * tile.rows + r))
            for k in range(tile.channels)
            for r in range(tile.rows)
        ]
        starts = [Store(b, _AT, neutral(total.op, total.dtype)) for b in self.sums]
        outputs = [dict(zip(self.index, (n, o, i, x), strict=True)) for o, i in places]
        ends = [self._finish(k, place) for k, place in enumerate(outputs)]
        outer = [(var, extent, "reduction") for var, extent in (*total.axes[:-2], total.axes[-1])]
        loops = [t for t in outer if int_value(t[1]) != 1]
        units = {var: IntImm(0) for var, extent, _ in outer if int_value(extent) == 1}
        terms = around(loops, self._terms(outputs, units))
        return within(self.sums, *starts, terms, *ends)

    def _terms(self, outputs: Sequence[Mapping[Var, Expr]], units: Mapping[Var, Expr]) -> Stmt:
        """Add the terms of one column of the window. Its taps along the height are written out one
        by one, so that values which several rows share are found."""
        var, extent = self.total.axes[-2]
        taps = int_value(extent)
        assert taps is not None
        # value -> the (number of a sum, factor) that it is a part of
        values: dict[Expr, list[tuple[int, Expr | None]]] = {}
        for tap in range(taps):
            for k, place in enumerate(outputs):
                term = substitute(self.total.value, {**place, **units, var: IntImm(tap)})
                value, factor = self._parts(simplify_value(term, {}))
                values.setdefault(value, []).append((k, factor))
        factors = dict.fromkeys(f for uses in values.values() for _, f in uses if f is not None)
        names = {f: Var(f"w{k}", f.dtype) for k, f in enumerate(factors)}
        body = seq(*(self._uses(outputs, v, uses, names) for v, uses in values.items()))
        for factor, name in reversed(names.items()):
            body = Let(name, factor, body)
        return body

    def _parts(self, term: Expr) -> tuple[Expr, Expr | None]:
        """(the value that several rows may share, the factor it is multiplied by, or None)"""
        if self.total.op == "sum" and isinstance(term, Binary) and term.op == "mul":
            return term.a, term.b
        return term, None

    def _uses(
        self,
        places: Sequence[Mapping[Var, Expr]],
        value: Expr,
        uses: Sequence[tuple[int, Expr | None]],
        names: Mapping[Expr, Var],
    ) -> Stmt:
        """Add a value to each sum that needs it. It is not loaded where all rows that need it are
        below the output."""
        op, v = REDUCE_BINARY[self.total.op], Var("v", value.dtype)
        adds = []
        for k, factor in uses:
            term = v if factor is None else v * names[factor]
            adds.append(Store(self.sums[k], _AT, binary(op, Load(self.sums[k], _AT), term)))
        body = Let(v, value, seq(*adds))
        # If the topmost of the rows is below the output, so are the others.
        first = min((k for k, _ in uses), key=lambda k: k % self.tile.rows)
        return self._inside(first, places[first], body)

    def _finish(self, k: int, place: Mapping[Var, Expr]) -> Stmt:
        """Store element k of a thread, computed from its sum."""
        total = Load(self.sums[k], _AT)
        value = substitute(replaced(self.value, self.total, total), place)
        index = self.group.store_index(tuple(place[var] for var in self.index))
        store = Store(self.group.out, index, simplify_value(value, {}))
        return self._inside(k, place, store)

    def _inside(self, k: int, place: Mapping[Var, Expr], body: Stmt) -> Stmt:
        """`body` if the row of element k is inside of the output, as the first row of a thread
        always is."""
        if self.exact or k % self.tile.rows == 0:
            return body
        return If(place[self.index[2]] < self.shape[2], body)
