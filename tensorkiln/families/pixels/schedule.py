"""Pictures of up to four channels of bytes, row by row, into pixels of four bytes.

    for image, row, tile of 16 columns:
        rows[c, w] = x[.., c, .., w]                    c: channels, then zeros
        pixels[w * 4 + c] = rows[c, w]                  interleaved in registers
        out[.., w * 4 + c] = pixels[w * 4 + c]

Around them is what the picture is padded with, or the halo of the layout. The last tile of a row
overlaps the one before. Roles of loops: "task", over images and rows; "turned" of an interleaving;
"lane".
"""

from __future__ import annotations

import math

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, Var, const, int_value, minimum, select
from tensorkiln.ir.relax import Call, RVar, TensorType, Value
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.access import has_vector_loads, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, loop, nest, within
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.intrin.transpose import interleave_name
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target

_PIXEL, _COLUMNS = 4, 16


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """A layout change of a picture of bytes, perhaps padded. None if elements of its rows are not
    adjacent in memory, or rows are shorter than a tile."""
    p = _Picture(group)
    if not p.fits():
        return None
    s = Schedule(p.program(), check)
    for turned in s.loops(role="turned"):
        s.tensorize(turned, interleave_name(_PIXEL, _COLUMNS, group.out.dtype.name))
    for lane in s.loops(role="lane"):
        s.vectorize(lane)
    for name in ("rows", "pixels"):
        s.set_scope(name, "register")
    if target.has_threads and p.work > PARALLEL_WORK:
        for outer in [x for x in s.loops(role="task") if s.parent(x) is None]:
            share(s, [outer, *(x for x in s.children(outer) if s.role(x) == "task")])
    return s


class _Picture:
    """The picture inside its border: rows and columns before and after it, filled with `fill`."""

    def __init__(self, group: Group):
        self.group, self.t = group, group.out_type
        self.dtype = group.out.dtype
        call = group.calls[group.out_var]
        self.inside: Value = call.args[0]
        halo = [self.t.memory.halo(d) for d in (2, 3)]
        self.before, self.after, self.fill = list(halo), list(halo), 0
        pad = group.calls.get(self.inside) if isinstance(self.inside, RVar) else None
        self.whole = True
        if pad is not None and pad.op == "pad":
            self.whole = self._pad(pad, halo)
        inside = self.inside.type
        assert isinstance(inside, TensorType)
        shape = inside.shape
        self.images, self.channels = shape[0], int_value(shape[1]) or 0
        self.height, self.width = shape[2:]
        self.work = 2 * math.prod(int_value(d) or 64 for d in self.t.shape)
        self.element = group.element(self.inside)

    def _pad(self, pad: Call, halo: list[int]) -> bool:
        """Take a pad of rows and columns, by known numbers, as the border; False if it is another
        pad."""
        sides = [tuple(map(int_value, pad.attrs[x])) for x in ("before", "after")]
        if any(halo) or pad.attrs.mode != "constant" or any(None in s for s in sides):
            return False
        if any(n != 0 for s in sides for n in s[:2]) or any((n or 0) < 0 for s in sides for n in s):
            return False
        self.before, self.after = ([n or 0 for n in s[2:]] for s in sides)
        self.fill, self.inside = int(pad.attrs.value), pad.args[0]
        return True

    def fits(self) -> bool:
        """Whether the rows of the picture are adjacent in memory, and at least as long as a
        tile."""
        n, c, h, w = (Var(name) for name in "nchw")
        width = int_value(self.width) or 0
        value = simplify_value(self.element(n, c, h, w), {})
        return self.whole and width >= _COLUMNS and has_vector_loads(value, w)

    def program(self) -> PrimFunc:
        """The plain program, on the result as bytes one after the other."""
        self.group.flatten([])
        (top_pad, left_pad), (bottom_pad, right_pad) = self.before, self.after
        rows, columns = (simplify(d + 0) for d in (self.height, self.width))
        all_rows = simplify(rows + (top_pad + bottom_pad))
        length = (int_value(columns) or 0) + left_pad + right_pad

        def border(n: Expr, row: Expr, first: int, count: int) -> Stmt | None:
            start = simplify(((n * all_rows + row) * length + first) * _PIXEL)
            return loop("b", count, lambda i: self._filled(simplify(start + i * _PIXEL)))

        def band(first: Expr, count: int) -> Stmt | None:
            if not count:
                return None
            return nest(
                ["n", "h"],
                [self.images, count],
                lambda n, h: border(n, simplify(first + h), 0, length) or seq(),
                ["task", "task"],
                keep=True,
            )

        def row(n: Expr, h: Expr) -> Stmt:
            out_row = simplify(h + top_pad)
            start = simplify((n * all_rows + out_row) * length + left_pad)
            return seq(
                border(n, out_row, 0, left_pad) if left_pad else None,
                self._tiles(n, h, start),
                border(n, out_row, length - right_pad, right_pad) if right_pad else None,
            )

        body = seq(
            band(IntImm(0), top_pad),
            nest(["n", "h"], [self.images, rows], row, ["task", "task"], keep=True),
            band(simplify(rows + top_pad), bottom_pad),
        )
        return PrimFunc(self.group.name, self.group.params, body)

    def _filled(self, start: Expr) -> Stmt:
        """A pixel of the border."""
        fill, zero = const(self.fill, self.dtype), const(0, self.dtype)

        def byte(c: Expr) -> Stmt:
            value = fill if not self.fill else select(c < self.channels, fill, zero)
            return Store(self.group.out, (simplify(start + c),), value)

        return loop("c", _PIXEL, byte, "lane")

    def _tiles(self, n: Expr, h: Expr, start: Expr) -> Stmt:
        width = int_value(self.width) or 0
        count = -(-width // _COLUMNS)

        def tile(i: Expr) -> Stmt:
            first = i * _COLUMNS
            first = simplify(minimum(first, width - _COLUMNS) if width % _COLUMNS else first)
            rows = buffer("rows", (_PIXEL, _COLUMNS), self.dtype, "local")
            pixels = buffer("pixels", (_PIXEL * _COLUMNS,), self.dtype, "local")

            def read(c: int) -> Stmt:
                def one(w: Expr) -> Stmt:
                    if c >= self.channels:
                        return Store(rows, (IntImm(c), w), const(0, self.dtype))
                    value = self.element(n, IntImm(c), h, first + w)
                    return Store(rows, (IntImm(c), w), simplify_value(value, {}))

                return loop("w", _COLUMNS, one, "lane")

            turn = nest(
                ["j", "c"],
                [_COLUMNS, _PIXEL],
                lambda j, c: Store(pixels, (j * _PIXEL + c,), Load(rows, (c, j))),
                ["turned", ""],
            )
            place = simplify((start + first) * _PIXEL)
            write = loop(
                "e",
                _PIXEL * _COLUMNS,
                lambda e: Store(self.group.out, (simplify(place + e),), Load(pixels, (e,))),
                "lane",
            )
            return within([rows, pixels], *map(read, range(_PIXEL)), turn, write)

        return loop("tile", count, tile)
