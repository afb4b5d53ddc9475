"""Long sums in pieces: registers hold the sum of a piece, memory the total of the pieces.

The rounding error of one register that sums K products grows as sqrt(K). Pieces of at most
SUM_TERMS products are as accurate as the best libraries and cost 1% of the time: one load, add and
store per accumulator and piece. The order of the additions depends on the shape alone.

Where terms come in pairs, for processors without instructions that broadcast, the first terms and
the second ones have sums of their own within a piece:

    part[2*c + b] += x[2*k + b] * w[2*k + b, c]           b: 0, 1; columns c
    total[c] += part[2*c] + part[2*c + 1]
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, cast, const, intrin
from tensorkiln.ir.stmt import Stmt, Store
from tensorkiln.kernels.knobs import SUM_TERMS
from tensorkiln.schedule.build import nest, vectors, within
from tensorkiln.schedule.group import static


def add_product(acc: Buffer, index: tuple[Expr, ...], x: Expr, w: Expr) -> Stmt:
    """acc[index] += x * w in the accumulator's type; one fused multiply-add for floats."""
    total = Load(acc, index)
    if acc.dtype.is_float:
        return Store(acc, index, intrin("fma", cast(x, acc.dtype), cast(w, acc.dtype), total))
    return Store(acc, index, total + cast(x, acc.dtype) * cast(w, acc.dtype))


def add_piece(
    total: Buffer, terms: Callable[[Buffer], Stmt], name: str = "part", place: tuple[Expr, ...] = ()
) -> Stmt:
    """total += the sum that the statement `terms(part)` adds up in `part`, a new buffer of
    registers of that name, which begins at zero. `place`: which vectors of `total`, if it has
    several."""
    part = buffer(name, total.shape[len(place) :], total.dtype, "local")
    zero = const(0, part.dtype)

    def add(*index: Expr) -> Stmt:
        return Store(total, (*place, *index), Load(total, (*place, *index)) + Load(part, index))

    start = vectors("zero", part.shape, lambda *index: Store(part, index, zero))
    return within([part], start, terms(part), vectors("add", part.shape, add))


def add_pairs(total: Buffer, terms: Callable[[Buffer], Stmt], place: tuple[Expr, ...] = ()) -> Stmt:
    """As `add_piece`, of terms that come in pairs: `part` has two vectors for each of `total`, two
    lanes for each of its lanes, one of which sums the first terms of all pairs, the other the
    second ones."""
    vector_count, lanes = total.shape[len(place) :]
    part = buffer("part", (vector_count * 2, lanes), total.dtype, "local")
    zero = const(0, part.dtype)

    def add(o: Expr, lane: Expr, pair: Expr) -> Stmt:
        return Store(total, (*place, o, lane), Load(total, (*place, o, lane)) + pair)

    start = vectors("zero", part.shape, lambda *index: Store(part, index, zero))
    return within([part], start, terms(part), join_pairs(part, add))


def join_pairs(part: Buffer, store: Callable[[Expr, Expr, Expr], Stmt], role: str = "sum") -> Stmt:
    """`store(vector, lane, sum)` for every two lanes of `part` of one pair. `role`: "sum" if totals
    grow by it, "total" if they are it."""
    count, lanes = (static(n, "vectors of sums") for n in part.shape)

    def join(o: Expr, half: Expr, pair: Expr) -> Stmt:
        first, second = (Load(part, (o * 2 + half, pair * 2 + b)) for b in range(2))
        return store(o, half * (lanes // 2) + pair, first + second)

    roles = ["vector", "lane", role]
    return nest(["o", "h", "l"], (count // 2, 2, lanes // 2), join, roles)


def pieces_of(units: int, terms_per_unit: int, max_terms: int = SUM_TERMS) -> tuple[int, int, int]:
    """Cut a sum of `units` evenly: (units per piece, whole pieces, units in a last short one).

    A piece has at most `max_terms` terms, or one unit: pieces_of(10, 48) is (3, 3, 1).
    """
    max_units = max(1, max_terms // terms_per_unit)
    size = -(-units // -(-units // max_units))
    return size, units // size, units % size
