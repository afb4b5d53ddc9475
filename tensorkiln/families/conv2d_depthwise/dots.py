"""Depthwise convolutions of bytes by dot products of four: what they compute, tile by tile.

Four rows of the image under a filter are put side by side, element by element, zeros in place of
rows that the filter lacks. Each such column is read by all outputs of a row under whose filter it
is, one dot product for each: three for a filter of 3x3 instead of nine products.

Weights are packed [C/v][kh/4][kw][1][v][4]. Roles of loops: "unit" of four columns of the image and
"interleave" of each of them, "pixel" of a tile, others as in `families/conv2d/program.py`.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import simplify
from tensorkiln.families.conv2d.program import Conv
from tensorkiln.families.conv2d_depthwise.knobs import UNIT, least_columns
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, as_expr, cast, const
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.build import lanes, loop, nest, within
from tensorkiln.schedule.group import inplace_params, view_index


def dots_program(c: Conv, width: int) -> PrimFunc:
    """for image, panel of channels, row, tile of at most `width` columns: columns of the image,
    then bias + dot products and the epilogue of each pixel."""
    shape = c.xt.physical_shape
    x = replace(c.x, shape=(*shape[:-2], simplify(shape[-2] * shape[-1])))
    filters = c.wt.physical_shape
    w = replace(c.w, shape=(*filters[:-2], as_expr(c.lanes * UNIT)))
    operands = {c.x: x, c.w: w}
    columns_of_row = c.columns
    lowest = least_columns(c.kernel[1], c.stride[1])
    count = min(-(-columns_of_row // width), columns_of_row // lowest)
    size, wide = columns_of_row // count, columns_of_row % count

    def row(n: Expr, panel: Expr, h: Expr) -> Stmt:
        pieces, first = [], 0
        for pixels, tiles in ((size + 1, wide), (size, count - wide)):

            def tile(t: Expr, start: int = first, pixels: int = pixels) -> Stmt:
                return _tile(c, x, w, (n, panel, h, simplify(t * pixels + start)), pixels)

            if tiles:
                pieces.append(loop("w", tiles, tile, "column", keep=True))
            first += pixels * tiles
        return seq(*pieces)

    def image(n: Expr, panel: Expr) -> Stmt:
        rows = loop("h", c.height, lambda h: row(n, panel, h), "row", keep=True)
        return seq(c.border(n, panel), rows)

    body = nest(["n", "panel"], [c.ot.shape[0], c.panels], image, ["batch", "panel"])
    params = tuple(operands.get(p, p) if isinstance(p, Buffer) else p for p in c.group.params)
    return PrimFunc(c.group.name, params, body, inplace=inplace_params(c.group))


def _tile(c: Conv, x: Buffer, w: Buffer, place: tuple[Expr, ...], pixels: int) -> Stmt:
    """`pixels` neighbours of a row from `place` on: (image, panel, row, column)."""
    n, panel, h, first = place
    groups = -(-c.kernel[0] // UNIT)
    wide = (pixels - 1) * c.stride[1] + c.kernel[1]
    columns = buffer("columns", (groups, wide, c.lanes * UNIT), "uint8", "local")

    def unit(g: int, first_column: Expr) -> Stmt:
        def element(j: Expr, lane: Expr) -> Stmt:
            def row(k: int) -> Expr:
                y = simplify(h * c.stride[0] + (g * UNIT + k - c.pad[0]))
                column = simplify(first * c.stride[1] + first_column - c.pad[1])
                index = view_index(c.xt, (n, simplify(panel * c.lanes), y, column))
                at_pixel = simplify(index[-2] * c.lanes + j * c.lanes + lane)
                return Load(x, (*map(simplify, index[:-2]), at_pixel))

            rows = min(UNIT, c.kernel[0] - g * UNIT)
            target = (IntImm(g), simplify(first_column + j))
            return seq(
                *(
                    Store(
                        columns,
                        (*target, simplify(lane * UNIT + k)),
                        row(k) if k < rows else const(0, columns.dtype),
                    )
                    for k in range(UNIT)
                )
            )

        return nest(["j", "l"], [UNIT, c.lanes], element, ["interleave", ""])

    def fill(g: int) -> Stmt:
        units = loop("u", wide // UNIT, lambda u: unit(g, u * UNIT), "unit", keep=True)
        # The last columns of a row that is no whole number of units are taken a second time.
        return seq(units, unit(g, as_expr(wide - UNIT)) if wide % UNIT else None)

    def pixel(q: Expr) -> Stmt:
        total = buffer("total", (c.lanes,), c.dtype, "local")
        start = lanes("start", c.lanes, lambda i: Store(total, (i,), c.initial(panel, i)))

        def term(g: Expr, kw: Expr, lane: Expr, b: Expr) -> Stmt:
            byte = simplify(lane * UNIT + b)
            data = Load(columns, (g, simplify(q * c.stride[1] + kw), byte))
            weight = Load(w, (panel, g, kw, IntImm(0), byte))
            product = cast(data, c.dtype) * cast(weight, c.dtype)
            return Store(total, (lane,), Load(total, (lane,)) + product)

        extents = [groups, c.kernel[1], c.lanes, UNIT]
        names, roles = ["g", "kw", "l", "b"], ["kernel_row", "kernel_column", "dot", ""]
        sums = nest(names, extents, term, roles)
        end = lanes(
            "end",
            c.lanes,
            lambda i: c.finish(Load(total, (i,)), n, panel, i, h, simplify(first + q)),
        )
        return within([total], start, sums, end)

    return within(
        [columns], *map(fill, range(groups)), loop("q", pixels, pixel, "pixel", keep=True)
    )
