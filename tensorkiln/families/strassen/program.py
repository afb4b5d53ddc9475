"""What one level of Strassen's algorithm computes: the plain programs that `schedule.py` schedules.

The left operands are a tensor of their own, [K/2 in chunks][7][rows/2 in tiles][tile][chunk], in
the order in which they are read. Weights [N/nr][K][nr] stay as they are; sums and differences of
their quarters are computed for one chunk of one panel by the first tile of rows that needs them, so
that the additions overlap with multiply-adds. Panels p and p + N/2/nr, of the left and right half
of the columns, are computed together.

Beside the products, memory takes most of the time. The next tile of rows and the weights of the
next chunk are therefore prefetched, which saves 5% to 10% of the time.

Roles of loops: "panel", "row" (of a tile, and of the left operands), "term"; "vector" and "lane" as
in schedule/register_tile.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tensorkiln.arith import simplify
from tensorkiln.families.linear.program import Linear
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, as_expr, const, intrin, minimum
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Alloc, Prefetch, PrimFunc, Stmt, Store, seq
from tensorkiln.ops.strassen import PRODUCTS
from tensorkiln.schedule.build import loop, nest, vectors, within
from tensorkiln.schedule.group import Group, inplace_params, product, static
from tensorkiln.target import Target

_LINE = 64  # bytes of a cache line, which one prefetch loads


class Strassen(Linear):
    """Sizes and operands of one `strassen_linear`."""

    def __init__(self, group: Group, target: Target):
        super().__init__(group, target)
        chunks, _, tiles, rows, chunk = (static(d, "parts") for d in self.x.shape)
        self.chunks, self.tiles, self.rows, self.chunk = chunks, tiles, rows, chunk
        self.vectors = self.nr // self.lanes
        self.panels = self.n // 2 // self.nr
        self.total_rows = static(self.m, "rows")
        self.half = -(-self.total_rows // 2)
        self.sums = buffer(
            "P", (PRODUCTS, tiles * rows, self.vectors, self.lanes), self.dtype, "local"
        )

    def weight(self, p: Expr, right: Expr, lower: Expr, k: Expr, o: Expr, lane: Expr) -> Load:
        """The weight in row k of quarter B(1 + lower)(1 + right), panel p of that half."""
        column = simplify(o * self.lanes + lane)
        index = (p + right * self.panels, lower * (self.k // 2) + k, column)
        return Load(self.w, tuple(map(simplify, index)))

    def part_sum(self, i: int, row: Expr, o: Expr, lane: Expr) -> Load:
        """Load one element of product i."""
        return Load(self.sums, (as_expr(i), row, o, lane))


# Weight: the weight of one product at (row of the chunk, vector, lane). Step: the statement of one
# iteration of a loop.
Weight = Callable[[Expr, Expr, Expr], Expr]
Step = Callable[[Expr], Stmt]


def strassen_program(c: Strassen) -> PrimFunc:
    """for panel: for chunk of K: seven products; then the four quarters and their epilogue."""

    def panel(p: Expr) -> Stmt:
        zero = nest(
            ["i", "r_zero", "o_zero", "l_zero"],
            c.sums.shape,
            lambda *index: Store(c.sums, index, const(0, c.dtype)),
            ["", "", "vector", "lane"],
        )
        weights = buffer("B", (c.chunk, c.vectors, c.lanes), c.dtype, "local")
        products = loop("chunk", c.chunks, lambda ch: Alloc(weights, _products(c, weights, p, ch)))
        body = seq(zero if c.chunks > 1 else None, products, _upper(c, p), _lower(c, p))
        return Alloc(c.sums, body)

    body = loop("panel", c.panels, panel, "panel", keep=True)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


def _products(c: Strassen, weights: Buffer, p: Expr, ch: Expr) -> Stmt:
    """All products of one chunk: P0 to P2 with sums of weights, P3 and P4 with differences, P5 and
    P6 with quarters as they are. `weights` holds those of one product."""
    zero, unit = IntImm(0), IntImm(1)

    def read(right: Expr, lower: Expr, k: Expr, o: Expr, lane: Expr) -> Expr:
        return c.weight(p, right, lower, ch * c.chunk + k, o, lane)

    def total(j: Expr, *index: Expr) -> Expr:
        """B11 + B22, B11 + B12, B21 + B22."""
        return read(zero, j // 2, *index) + read(unit, (j + 1) % 2, *index)

    def difference(j: Expr, *index: Expr) -> Expr:
        """B12 - B22, B21 - B11."""
        return read(1 - j, j, *index) - read(1 - j, 1 - j, *index)

    def combined(i: Expr, right: Expr, lower: Expr, value: Weight) -> Stmt:
        """Product i: the first tile computes its weights and keeps them in `weights`; each other
        tile prefetches a part of the next chunk of quarter B(1 + lower)(1 + right)."""

        def keep(k: Expr) -> Stmt:
            store = lambda *index: Store(weights, (k, *index), value(k, *index))  # noqa: E731
            return vectors("made", weights.shape[1:], store)

        def other(t: Expr) -> Stmt:
            tile = simplify(t + 1)
            ahead = partial(_next_weights, c, p, ch, right, lower, t)
            return _tile(c, ch, i, tile, buffered_weight, each_quad=ahead)

        buffered_weight: Weight = lambda *index: Load(weights, index)  # noqa: E731
        first = _tile(c, ch, i, zero, buffered_weight, each_term=keep)
        return seq(first, loop("tile", c.tiles - 1, other))

    def plain(j: Expr) -> Stmt:
        """The products with B11 (j = 0) and B22 (j = 1), which are read in place."""
        weight = partial(read, j, j)

        def tile(t: Expr) -> Stmt:
            ahead = partial(_next_results, c, p, ch, simplify(j * c.half + t * c.rows))
            return _tile(c, ch, simplify(j + 5), t, weight, each_quad=ahead)

        return loop("tile", c.tiles, tile)

    return seq(
        loop("j", 3, lambda j: combined(j, j % 2, j // 2, partial(total, j))),
        loop("j", 2, lambda j: combined(simplify(j + 3), unit, unit, partial(difference, j))),
        loop("j", 2, plain),
    )


def _next_weights(
    c: Strassen, p: Expr, ch: Expr, right: Expr, lower: Expr, part: Expr, k: Expr
) -> Stmt:
    """Prefetch a row of the weights of the next chunk; after the last chunk, of the next panel's
    first chunk. `part`: quarter of the chunk's rows, `k`: row in it. Parts above 3 are rows of
    chunks after that; they may lie past the end of the weights, where a prefetch has no effect."""
    panel, chunk = p + (ch + 1) // c.chunks, (ch + 1) % c.chunks
    row = chunk * c.chunk + part * (c.chunk // 4) + k
    columns = range(0, c.nr, _LINE // c.dtype.bytes)
    loads = (c.weight(panel, right, lower, row, IntImm(0), IntImm(v)) for v in columns)
    return seq(*(Prefetch(c.w, load.indices, 2) for load in loads))


def _next_results(c: Strassen, p: Expr, ch: Expr, first: Expr, k: Expr) -> Stmt:
    """Prefetch a line of the results of a tile's rows, from the `first`, for writing.

    Results are written all at once at the end, and acquiring a line that another core has read
    takes 7 ns.
    """
    lines = max(1, c.nr * c.dtype.bytes // _LINE)  # of a row in one panel
    step = k * c.chunks + ch
    row = minimum(simplify(first + step // (2 * lines) % c.rows), c.total_rows - 1)
    panel = p + step // lines % 2 * c.panels
    column = panel * c.nr + step % lines * (_LINE // c.dtype.bytes)
    place = c.group.store_index((*c.lead_index(row), simplify(column)))
    return Prefetch(c.group.out, tuple(map(simplify, place)), 2, write=True)


def _tile(
    c: Strassen,
    ch: Expr,
    i: Expr,
    tile: Expr,
    weight: Weight,
    each_term: Step | None = None,
    each_quad: Step | None = None,
) -> Stmt:
    """One tile of rows times the weights of a chunk, added to the sums of product i.

    `each_term` runs before the products with each row of weights, `each_quad` before each four.
    """
    part = buffer("part", (c.rows, c.vectors, c.lanes), c.dtype, "local")
    roles = ["row", "vector", "lane"]

    def quad(k0: Expr) -> Stmt:
        # The next tile follows this one in memory; the next product's first tile follows the last.
        lines = range(0, 4 * c.rows, _LINE // c.dtype.bytes)
        ahead = [simplify(k0 * (4 * c.rows) + n) for n in lines]
        return seq(
            *(Prefetch(c.x, (ch, i, simplify(tile + 1), IntImm(0), n)) for n in ahead),
            each_quad(k0) if each_quad else None,
            loop("k4", 4, lambda k: term(simplify(k0 * 4 + k)), "term"),
        )

    def term(k: Expr) -> Stmt:
        def add(row: Expr, *index: Expr) -> Stmt:
            x = Load(c.x, (ch, i, tile, row, k))
            return Store(
                part, (row, *index), intrin("fma", x, weight(k, *index), Load(part, (row, *index)))
            )

        products = nest(["row", "o", "l"], part.shape, add, roles)
        return seq(each_term(k) if each_term else None, products)

    def start(*index: Expr) -> Stmt:
        return Store(part, index, const(0, c.dtype))

    def join(row: Expr, *index: Expr) -> Stmt:
        to, have = (i, simplify(tile * c.rows + row), *index), Load(part, (row, *index))
        return Store(c.sums, to, have if c.chunks == 1 else Load(c.sums, to) + have)

    return within(
        [part],
        nest(["row_start", "o_start", "l_start"], part.shape, start, roles),
        loop("k", c.chunk // 4, quad),
        nest(["row_join", "o_join", "l_join"], part.shape, join, roles),
    )


def _upper(c: Strassen, p: Expr) -> Stmt:
    """The first half of the rows: C11 = P0 + P4 - P6 + P2, C12 = P3 + P6."""

    def element(row: Expr, o: Expr, lane: Expr) -> Stmt:
        s = [c.part_sum(i, row, o, lane) for i in range(PRODUCTS)]
        return _finish(c, p, row, o, lane, (s[0] + s[4]) + (s[2] - s[6]), s[3] + s[6])

    extents = [c.half, c.vectors, c.lanes]
    return nest(["r_upper", "o_upper", "l_upper"], extents, element, ["", "vector", "lane"])


def _lower(c: Strassen, p: Expr) -> Stmt:
    """The second half of the rows: C21 = P5 + P4, C22 = P0 - P5 + P3 + P1. The middle one of an odd
    number of rows is in both halves, and is left to `_upper`."""
    again = 2 * c.half - c.total_rows

    def element(row: Expr, o: Expr, lane: Expr) -> Stmt:
        s = [c.part_sum(i, simplify(row + again), o, lane) for i in range(PRODUCTS)]
        row = simplify(row + c.half)
        return _finish(c, p, row, o, lane, s[5] + s[4], (s[0] - s[5]) + (s[3] + s[1]))

    extents = [c.half - again, c.vectors, c.lanes]
    return nest(["r_lower", "o_lower", "l_lower"], extents, element, ["", "vector", "lane"])


def _finish(
    c: Strassen, p: Expr, row: Expr, o: Expr, lane: Expr, left_value: Expr, right_value: Expr
) -> Stmt:
    """Store two elements, one in each half of the columns, with bias and epilogue."""

    def one(panel: Expr, total: Expr) -> Stmt:
        start = c.initial(panel, o, lane)
        value = total if len(c.call.args) < 3 else start + total
        return c.finish(value, (), row, simplify(panel * c.nr + o * c.lanes + lane))

    return seq(one(p, left_value), one(simplify(p + c.panels), right_value))


class Parts:
    """Sizes and operands of the seven left operands of one product."""

    def __init__(self, group: Group, target: Target):
        call = group.anchor
        assert call is not None and isinstance(call.args[0], RVar)
        self.group, self.x = group, group.tensor_in(call.args[0])
        self.lead = self.x.type.shape[:-1]
        self.count = static(product(self.lead), "rows")
        self.half = -(-self.count // 2)
        self.k = static(self.x.type.shape[-1], "columns")
        self.lanes = target.vector_lanes(group.out_type.dtype.name)
        chunks, _, tiles, rows, chunk = (static(d, "parts") for d in group.out.shape)
        self.chunks, self.tiles, self.rows, self.chunk = chunks, tiles, rows, chunk

    def load(self, row: Expr, k: Expr) -> Expr:
        """Element k of a row of x, whose leading dimensions are flattened."""
        index: list[Expr] = []
        for extent in reversed(self.lead[1:]):
            index.append(row % extent)
            row = row // extent
        return self.x(*map(simplify, [row, *reversed(index)]), simplify(k))


def parts_program(c: Parts) -> PrimFunc:
    """for row of a half: the seven combinations; then zeros in the rest of the last tile."""

    def row(r: Expr, real: bool) -> Stmt:
        def vector(ch: Expr, o: Expr, lane: Expr) -> Stmt:
            k, out = simplify(o * c.lanes + lane), c.group.out
            if real:
                combinations = _combinations(c, r, ch * c.chunk + k)
            else:
                combinations = [const(0, out.dtype)] * PRODUCTS
            tile, within = simplify(r // c.rows), simplify(r % c.rows)
            indices = [(ch, as_expr(i), tile, within, k) for i in range(PRODUCTS)]
            return seq(*(Store(out, i, x) for i, x in zip(indices, combinations, strict=True)))

        extents = [c.chunks, c.chunk // c.lanes, c.lanes]
        return nest(["chunk", "o", "l"], extents, vector, ["", "vector", "lane"])

    real = loop("row", c.half, lambda r: row(r, True), "row")
    zero = loop("row_zero", c.tiles * c.rows - c.half, lambda r: row(simplify(r + c.half), False))
    return PrimFunc(c.group.name, c.group.params, seq(real, zero))


def _combinations(c: Parts, row: Expr, k: Expr) -> list[Expr]:
    """The left operands of the seven products at one row and column of the quarters."""
    lower_row, right = row + (c.count - c.half), k + c.k // 2
    a11, a12, a21, a22 = (c.load(r, q) for r in (row, lower_row) for q in (k, right))
    return [a11 + a22, a21 - a11, a12 - a22, a11, a22, a21 + a22, a11 + a12]
