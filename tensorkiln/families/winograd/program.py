"""What a Winograd convolution computes, tile by tile: the plain program that `schedule.py`
schedules.

Input [N][C/v][H + halo][W + halo][v], transformed weights [OC/nr][n][n'][IC/v][v][nr], output
blocked like the input. A tile of m x m' outputs takes three steps: transform its n x n' inputs,
V = B^T D B; for each of the n n' transformed values, multiply by the weights and sum over the input
channels, P; transform back, A^T P A (Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2016). The zero halo of the input is the padding. The last tiles may extend past the
image; the outputs that they compute there are not stored. With a dilation d, outputs whose rows are
equal modulo d, and columns likewise, read no others' inputs: they are an image of their own (a
*phase*), and a tile is d outputs apart.

Sums are taken in shorter pieces than those of direct convolutions (schedule/accumulate.py), because
the output transform enlarges their errors; the order of the additions depends on shapes alone.

Roles of loops: "tile", "granule" of input channels and "channel" of those; "vector", "lane", "dot",
"sum" and "total" as in schedule/register_tile.py.
The schedule finds the others by their place in the nest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import add, sub

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import (
    Expr,
    ExprLike,
    as_expr,
    const,
    int_value,
    intrin,
    maximum,
    minimum,
)
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Alloc, If, PrimFunc, Stmt, Store, seq
from tensorkiln.kernels.estimates import expected
from tensorkiln.kernels.layouts import has_float_pairs
from tensorkiln.ops.winograd import TAPS, matrices
from tensorkiln.schedule.access import lane_bounds
from tensorkiln.schedule.accumulate import join_pairs
from tensorkiln.schedule.build import loop, nest, vectors, within
from tensorkiln.schedule.channel_blocks import ChannelBlocks, size_of
from tensorkiln.schedule.group import Group, inplace_params, static, view_index

# Products that one register sums before they join the total.
SUM_TERMS = 32


class Winograd(ChannelBlocks):
    """The geometry and operands of one Winograd convolution."""

    def __init__(self, group: Group):
        super().__init__(group)
        x, u = self.call.args[:2]
        assert isinstance(x, RVar) and isinstance(u, RVar)
        self.x, self.u = group.buffers[x], group.buffers[u]
        self.xt = x.tensor
        # Whether two input channels are multiplied at once (schedule/accumulate.py).
        self.in_pairs = has_float_pairs(u.tensor, 1)
        nr = u.tensor.memory.axes[-2 if self.in_pairs else -1].modulus
        if self.in_pairs:
            shape = (*u.tensor.physical_shape[:-2], as_expr(nr * 2))
            self.u = group.buffers[u] = replace(self.u, shape=shape)
        # The role of the loop whose rounds fetch weights ahead.
        self.sum_role = "granule" if self.in_pairs else "channel"
        self.set_panels(nr // self.lanes)
        self.pad: tuple[int, int] = self.call.attrs.padding[:2]
        self.tile: tuple[int, int] = self.call.attrs.tile
        self.dilation: tuple[int, int] = self.call.attrs.dilation
        self.inner = (self.tile[0] + TAPS - 1, self.tile[1] + TAPS - 1)
        self.products = self.inner[0] * self.inner[1]
        # Rows and columns of tiles of all phases; their product, and what it is taken for.
        self.grid = tuple(
            simplify((n + m * d - 1) // (m * d) * d)
            for n, m, d in zip((self.height, self.width), self.tile, self.dilation, strict=True)
        )
        self.tiles = math.prod(map(expected, self.grid))
        self.all_tiles = self.tiles
        # Of an image of unknown size: the most tiles of a block, those that are multiplied together
        # at least, and the fewest blocks if there are as many tiles as `alone`.
        self.most, self.unit, self.fewest, self.alone = 0, 1, 1, 1
        self.input_blocks = -(-size_of(self.xt.shape[1]) // self.lanes)
        # Multiply-adds of one image; eight count as one scalar operation.
        self.work = self.tiles * self.products * self.channels * self.input_blocks * self.lanes // 8

    def cut(self, blocks: int) -> int:
        """Cut the tiles into blocks of equal size, and return that size. The last block may contain
        tiles below the image."""
        size = -(-self.tiles // blocks)
        self.all_tiles = size * blocks
        return size

    def corner(self, t: Expr) -> tuple[Expr, Expr]:
        """Row and column of the first output of a tile."""
        if self.is_open:
            t = minimum(t, self.grid[0] * self.grid[1] - 1)
        columns = self.grid[1]
        return self._first(t // columns, 0), self._first(t % columns, 1)

    def _first(self, place: Expr, dim: int) -> Expr:
        """The first row (dim 0) or column (dim 1) of a tile, from its position in the grid of
        tiles. In the grid, tiles of all phases that begin side by side follow each other."""
        m, d = self.tile[dim], self.dilation[dim]
        return place * m if d == 1 else place // d * (m * d) + place % d

    def under(self, corner: Expr, i: ExprLike, dim: int) -> Expr:
        """Row (dim 0) or column (dim 1) of the input at row or column `i` of a tile.

        Positions past the last stored row or column are clamped to it. It is zero if there is a
        halo, and no stored output depends on it.
        """
        last = simplify(self.xt.shape[2 + dim] - 1 + self.xt.memory.halo(2 + dim))
        d, end, reach = self.dilation[dim], int_value(last), self.reach(dim)
        position = corner + (as_expr(i) * d - self.pad[dim])
        if end is None or reach is None or reach - 1 + (TAPS - 1) * d - self.pad[dim] > end:
            return minimum(position, last)
        return position

    def input(self, n: Expr, block: Expr, lane: Expr, h: Expr, w: Expr) -> Load:
        """Load the input of image n, channel block * lanes + lane, at row h and column w."""
        channel = simplify(block * self.lanes + lane)
        index = view_index(self.xt, (n, channel, h, w))
        return Load(self.x, tuple(simplify(i, lane_bounds(lane, self.lanes)) for i in index))

    def kept(self, corner: Expr, i: ExprLike, dim: int, body: Stmt) -> Stmt:
        """`body`, if row (dim 0) or column (dim 1) `i` of the tile is inside the image; without the
        condition if that holds for all tiles."""
        size, tile, number = (self.height, self.width)[dim], self.tile[dim], int_value(as_expr(i))
        d, length, reach = self.dilation[dim], int_value(size), self.reach(dim)
        past = 0 if number is None else tile - 1 - number
        if length is None or reach is None or reach - 1 - past * d >= length:
            return If(simplify(corner + as_expr(i) * d) < size, body)
        return body

    def reach(self, dim: int) -> int | None:
        """Output rows (dim 0) or columns (dim 1) that the tiles cover; None if it is unknown."""
        tiles = int_value(self.grid[dim])
        if dim == 0 and not self.is_open:  # the last block may contain tiles below the image
            tiles = -(-self.all_tiles // static(self.grid[1], "columns of tiles"))
        d = self.dilation[dim]
        return None if tiles is None else -(-tiles // d) * d * self.tile[dim]

    def summands(self) -> tuple[int, int, int]:
        """(input channel blocks per piece of a sum, whole pieces, blocks of a last short piece)."""
        size = max(1, SUM_TERMS * (1 + self.in_pairs) // self.lanes)
        return size, self.input_blocks // size, self.input_blocks % size


def combination(row: Sequence[float], values: Sequence[Expr]) -> Expr | None:
    """sum(row[k] * values[k]), terms of coefficient 1 and -1 first; None if all are 0."""
    order = sorted(range(len(row)), key=lambda k: abs(row[k]) != 1)
    total: Expr | None = None
    for k in order:
        factor, x = float(np.float32(row[k])), values[k]
        if factor == 0:
            continue
        if total is None:
            total = x if factor == 1 else const(factor, x.dtype) * x
        elif abs(factor) == 1:
            total = total + x if factor == 1 else total - x
        else:
            total = intrin("fma", const(factor, x.dtype), x, total)
    return total


def input_transform(m: int, d: Sequence[Expr]) -> list[Expr]:
    """B^T d. The rows of opposite interpolation points a and -a share their even and odd parts."""
    bt = matrices(m)[2]
    out = [_some(bt[0], d)]
    for i in range(1, m + 1, 2):
        row = bt[i]
        lead = max(k for k in range(1, m + 2, 2) if row[k])
        even = _some([0 if k % 2 else c for k, c in enumerate(row)], d)
        odd = _some([c / row[lead] if k % 2 else 0 for k, c in enumerate(row)], d)
        out += [_scaled(odd, row[lead], even), _scaled(odd, -row[lead], even)]
    return [*out, _some(bt[-1], d)]


def output_transform(m: int, p: Sequence[Expr]) -> list[Expr]:
    """A^T p. Products at opposite interpolation points are used as their sum or difference."""
    matrix, pairs = matrices(m)[0], range(1, m + 1, 2)
    sums, differences = ([f(p[i], p[i + 1]) for i in pairs] for f in (add, sub))
    out = []
    for k in range(m):
        row = [matrix[k, 0], *(matrix[k, i] for i in pairs), matrix[k, -1]]
        out.append(_some(row, [p[0], *(differences if k % 2 else sums), p[-1]]))
    return out


def _some(row: Sequence[float], values: Sequence[Expr]) -> Expr:
    total = combination(row, values)
    assert total is not None
    return total


def _scaled(x: Expr, factor: float, addend: Expr) -> Expr:
    """x * factor + addend."""
    scaled_sum = combination([1.0, factor], [addend, x])
    assert scaled_sum is not None
    return scaled_sum


def winograd_program(c: Winograd) -> PrimFunc:
    """for image, tile: transform inputs; for panel of channels: products, transform, epilogue."""

    def tile(n: Expr, t: Expr) -> Stmt:
        v = buffer("V", (c.products, c.input_blocks, c.lanes), c.dtype, "local")

        def panel(p: Expr) -> Stmt:
            sums = buffer("P", (c.products, c.vectors, c.lanes), c.dtype, "local")
            return Alloc(sums, seq(_products(c, v, sums, p, ()), _outputs(c, sums, n, p, t, ())))

        panels = loop("panel", c.panels, panel, keep=True)
        return Alloc(v, seq(_inputs(c, v, n, t, ()), panels))

    def image(n: Expr) -> Stmt:
        border = loop("border", c.panels, lambda p: c.border(n, p))
        if c.is_open:
            return seq(border, _blocks(c, n))
        return seq(border, loop("t", c.all_tiles, lambda t: tile(n, t), "tile", keep=True))

    body = loop("n", c.ot.shape[0], image)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


def _blocks(c: Winograd, n: Expr) -> Stmt:
    """for block of tiles: transform inputs; for panel of channels: products, transform, epilogue.
    For an unknown number of tiles.

    Blocks have nearly equal numbers of tiles, multiples of `c.unit` but for the last block. A unit
    is multiplied as a whole; positions behind the last tile compute the last tile again, and store
    nothing.
    """
    tiles = simplify(c.grid[0] * c.grid[1])
    fewest = minimum(c.fewest, (tiles + c.alone - 1) // c.alone)
    count = maximum(maximum((tiles + c.most - 1) // c.most, fewest), 1)
    size = ((tiles + count - 1) // count + c.unit - 1) // c.unit

    def block(b: Expr) -> Stmt:
        v = buffer("V", (c.most, c.products, c.input_blocks, c.lanes), c.dtype, "local")
        first = b * size * c.unit
        tile_count = maximum(minimum(size * c.unit, tiles - first), 0)
        units = (tile_count + c.unit - 1) // c.unit

        def panel(p: Expr) -> Stmt:
            sums = buffer("P", (c.most, c.products, c.vectors, c.lanes), c.dtype, "local")

            def products(u: Expr, i: Expr) -> Stmt:
                return _products(c, v, sums, p, (u * c.unit + i,))

            def outputs(t: Expr) -> Stmt:
                return _outputs(c, sums, n, p, first + t, (t,))

            return within(
                [sums],
                nest(["u", "i"], [units, c.unit], products, ["unit", "tile"], keep=True),
                loop("t_out", tile_count, outputs, "output", keep=True),
            )

        def inputs(t: Expr) -> Stmt:
            return _inputs(c, v, n, first + t, (t,))

        return within(
            [v],
            loop("tile", units * c.unit, inputs, "input", keep=True),
            loop("panel", c.panels, panel, "panel", keep=True),
        )

    return loop("b", count, block, "block", keep=True)


def _inputs(c: Winograd, v: Buffer, n: Expr, t: Expr, lead: tuple[Expr, ...]) -> Stmt:
    """V = B^T D B of every block of input channels: columns of D, then rows. `lead`: the indices of
    the tile in V, if it holds several."""
    (rows, columns), (h, w) = c.inner, c.corner(t)

    def block(b: Expr) -> Stmt:
        half = buffer("half", (rows, columns, c.lanes), c.dtype, "local")

        def column(j: Expr, lane: Expr) -> Stmt:
            d = [c.input(n, b, lane, c.under(h, i, 0), c.under(w, j, 1)) for i in range(rows)]
            values = input_transform(c.tile[0], d)
            return seq(*(Store(half, (as_expr(i), j, lane), x) for i, x in enumerate(values)))

        def row(i: Expr, lane: Expr) -> Stmt:
            d = [Load(half, (i, as_expr(j), lane)) for j in range(columns)]
            values = input_transform(c.tile[1], d)
            places = [simplify(i * columns + j) for j in range(columns)]
            return seq(
                *(Store(v, (*lead, k, b, lane), x) for k, x in zip(places, values, strict=True))
            )

        return within(
            [half],
            nest(["column", "l_column"], [columns, c.lanes], column, ["", "lane"]),
            nest(["row", "l_row"], [rows, c.lanes], row, ["", "lane"]),
        )

    return loop("block", c.input_blocks, block, keep=True)


def _products(c: Winograd, v: Buffer, sums: Buffer, panel: Expr, lead: tuple[Expr, ...]) -> Stmt:
    """P[x] = sum over the input channels of V[x] * U[x], for each transformed value x."""
    (size, whole, tail_size), few = c.summands(), 1 + c.in_pairs
    roles = ["granule", "channel", "vector", "lane", "dot"]

    def value(x: Expr) -> Stmt:
        def piece(lo: Expr, count: int, first: bool) -> Stmt:
            width = c.lanes // few
            part = buffer("part", (c.vectors * few, c.lanes), c.dtype, "local")

            def term(g: Expr, k: Expr, o: Expr, lane: Expr, b: Expr) -> Stmt:
                block, place = simplify(lo + g), (o, simplify(lane * few + b))
                column = (o * width + lane) * few + b
                index = (panel, x // c.inner[1], x % c.inner[1], block, k, column)
                weight = Load(c.u, tuple(map(simplify, index)))
                value = Load(v, (*lead, x, block, simplify(k * few + b)))
                return Store(part, place, intrin("fma", value, weight, Load(part, place)))

            def keep(o: Expr, lane: Expr, value: Expr) -> Stmt:
                index = (*lead, x, o, lane)
                return Store(sums, index, value if first else Load(sums, index) + value)

            zero = const(0, part.dtype)
            extents = (count, width, c.vectors * few, width, few)
            if c.in_pairs:
                end = join_pairs(part, keep, "total" if first else "sum")
            else:
                end = vectors("keep", part.shape, lambda o, v: keep(o, v, Load(part, (o, v))))
            return within(
                [part],
                vectors("zero", part.shape, lambda o, lane: Store(part, (o, lane), zero)),
                nest(["g", "c", "o", "l", "b"], extents, term, roles),
                end,
            )

        def pieces(lo: int, count: int, blocks: int) -> Stmt | None:
            first_summand: Callable[[Expr], Expr] = lambda i: simplify((i + lo) * size)  # noqa: E731
            body: Callable[[Expr], Stmt] = lambda i: piece(first_summand(i), blocks, lo == 0)  # noqa: E731
            return loop("piece", count, body, keep=True) if count else None

        if not whole:
            return seq(pieces(0, 1, tail_size))
        last = pieces(whole, 1, tail_size) if tail_size else None
        return seq(pieces(0, 1, size), pieces(1, whole - 1, size), last)

    return loop("x", c.products, value)


def _outputs(
    c: Winograd, products: Buffer, n: Expr, panel: Expr, t: Expr, lead: tuple[Expr, ...]
) -> Stmt:
    """A^T P A of every channel of a panel, columns first, and the epilogue."""
    (rows, columns), (m, k), (h, w) = c.inner, c.tile, c.corner(t)
    (below, beside) = c.dilation

    def vector(o: Expr) -> Stmt:
        half = buffer("sums", (m, columns, c.lanes), c.dtype, "local")
        block = simplify(panel * c.vectors + o)

        def column(j: Expr, lane: Expr) -> Stmt:
            p = [Load(products, (*lead, simplify(j + i * columns), o, lane)) for i in range(rows)]
            sums = output_transform(m, p)
            return seq(*(Store(half, (as_expr(i), j, lane), x) for i, x in enumerate(sums)))

        def row(i: Expr, lane: Expr) -> Stmt:
            p = [Load(half, (i, as_expr(j), lane)) for j in range(columns)]
            y = output_transform(k, p)
            if len(c.call.args) > 2:
                y = [c.initial(block, lane) + value for value in y]
            out_row = simplify(h + i * below)
            stores = [
                c.kept(w, j, 1, c.finish(value, n, block, lane, out_row, simplify(w + j * beside)))
                for j, value in enumerate(y)
            ]
            return c.kept(h, i, 0, seq(*stores))

        return within(
            [half],
            nest(["column_out", "l_column"], [columns, c.lanes], column, ["", "lane"]),
            nest(["row_out", "l_row"], [m, c.lanes], row, ["", "lane"]),
        )

    return loop("out", c.vectors, vector)
