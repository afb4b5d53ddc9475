"""How the factors of a product on tensor cores are copied to shared memory, and how they lie there.

Both global and shared memory are accessed in vectors of up to 16 bytes, so a factor has the same
order in both: terms are adjacent, or its rows or columns are. The second is possible for elements
of 16 bits, which tensor cores can transpose as they load them. Where a device copies while its
threads compute, and can do so for both factors, shared memory has several parts, all but one of
which are filled for later rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.families.tensor_cores.gpu_row import FACTORS, TF32, WarpTile, stages_of
from tensorkiln.families.wgmma.gpu_row import WarpgroupTile
from tensorkiln.ir.buffer import Buffer, buffer
from tensorkiln.ir.copies import LEAST, copy_of
from tensorkiln.ir.expr import Cast, Expr, IntImm, Select, const, int_value, intrin, select
from tensorkiln.ir.stmt import Stmt, Store
from tensorkiln.schedule.build import nest, within
from tensorkiln.schedule.gpu.products import Product
from tensorkiln.schedule.gpu.tiles import Side, TiledProduct, adjacent
from tensorkiln.schedule.group import static
from tensorkiln.schedule.primitives import Cooperative, Schedule
from tensorkiln.target import Target

ROUND = "round"  # the role of the loop whose rounds fill the factors
_AT_ONCE = 8  # most loads that a thread waits for together: each needs registers


def factors_of(p: Product) -> tuple[Expr, Expr] | None:
    """The two factors in the types that tensor cores multiply; None if they do not."""
    left_factor, right_factor = _narrow(p.left), _narrow(p.right)
    if (left_factor.dtype.name, right_factor.dtype.name) in FACTORS:
        return left_factor, right_factor
    if (p.left.dtype.name, p.right.dtype.name) == TF32:  # only where the target asks for it
        return intrin("thread_round_tf32", p.left), intrin("thread_round_tf32", p.right)
    return None


def _narrow(value: Expr) -> Expr:
    """A factor without the conversion to the type of the sums: x for cast(x), also where zeros are
    around it."""
    if isinstance(value, Cast):
        return value.a
    if isinstance(value, Select) and value.b == const(0, value.dtype):
        inner = _narrow(value.a)
        return select(value.cond, inner, const(0, inner.dtype))
    return value


@dataclass(frozen=True, slots=True)
class HowCopied:
    """The order of a factor in shared memory. `transposed`: rows or columns are adjacent there,
    else terms are. `lanes`: elements that a thread copies at once. `neighbours`: whether
    neighbouring threads write neighbouring elements of shared memory."""

    transposed: bool
    lanes: int
    neighbours: bool


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor in shared memory. Row or column j of the tile and its term k are at `place(j, k)` of
    `buffer`."""

    side: Side
    buffer: Buffer
    how: HowCopied
    place: Callable[[Expr, Expr], tuple[Expr, ...]]

    @property
    def role(self) -> str:
        """The role of the nests that copy it to shared memory."""
        return f"copy {self.buffer.name}"


def how_copied(name: str, side: Side, of: TiledProduct) -> HowCopied:
    """How a factor ("left" or "right") is copied: along the axes, its own or the terms, in which
    more of its elements are adjacent in memory."""
    along_terms = adjacent((side.value,), of.p.terms, of.terms)
    along_own = adjacent((side.value,), side.axes, side.extent)
    # Where nothing is adjacent, as in padded images, the axis of the output that is adjacent
    # decides.
    across = along_own > along_terms or (along_own == along_terms and name == "right")
    flips = across and side.dtype.bytes == 2
    lanes = along_own if flips else 0 if across else along_terms
    return HowCopied(flips, max(1, int(lanes)), flips or not across)


def fill(c: Factor, of: TiledProduct, start: tuple[Expr, Expr, Expr]) -> Stmt:
    """The statement by which all threads copy a tile of a factor to shared memory. `start` is the
    batch, the first row or column, and the first term. Neighbouring threads read neighbouring
    elements or vectors."""
    role, copying = c.role, c.how
    lanes = (copying.lanes, 1) if copying.transposed else (1, copying.lanes)

    def element(j: Expr, k: Expr) -> Stmt:
        return of.copy(c.side, start, j, k, lambda x: Store(c.buffer, c.place(j, k), x), lanes)

    size, depth = c.side.size, of.depth
    if copying.transposed:
        return nest(["k", "j"], [depth, size], lambda k, j: element(j, k), [role, ""], True)
    if copying.neighbours:
        return nest(["j", "k"], [size, depth], element, [role, ""], True)
    # Eight neighbours in memory, which are different rows of shared memory, by four terms: so a
    # warp reads whole sectors and writes to all banks.
    extents = [size // 8, depth // 4, 8, 4]
    return nest(
        ["jo", "ko", "ji", "ki"],
        extents,
        lambda jo, ko, ji, ki: element(simplify(jo * 8 + ji), simplify(ko * 4 + ki)),
        [role, "", "", ""],
        True,
    )


def with_factors(
    left_factor: Factor,
    right_factor: Factor,
    of: TiledProduct,
    tile: tuple[Expr, Expr, Expr],
    k: Expr,
    body: Stmt,
) -> Stmt:
    """`body`, after all threads have copied the terms of round `k` of both factors. `tile` is the
    batch, the first row and the first column."""
    batch, row, column = tile
    term = k * of.depth
    return within(
        [left_factor.buffer, right_factor.buffer],
        fill(left_factor, of, (batch, row, term)),
        fill(right_factor, of, (batch, column, term)),
        body,
    )


def _can_go_on(c: Factor) -> bool:
    """Whether a factor can be copied while threads compute: its elements are loads, or zeros, in
    pieces that are large enough for asynchronous copies."""
    into = buffer("tile", (1,), c.side.dtype, "shared")
    if c.how.lanes * c.side.dtype.bytes < LEAST:
        return False
    return copy_of(Store(into, (IntImm(0),), c.side.value)) is not None


def copy_ahead(
    s: Schedule,
    factors: Sequence[Factor],
    of: TiledProduct,
    tile: WarpTile | WarpgroupTile,
    out_bytes: int,
    target: Target,
    producers: int = 0,
    tensor_maps: bool = False,
) -> int:
    """Let the factors, which the loop with role ROUND allocates, be copied for later rounds, if the
    target can and shared memory has room for several parts beside `out_bytes` of sums.

    All threads copy, or `producers` threads of their own; with `tensor_maps` hardware does where it
    can. Returns how many dimensions the buffers of the factors have got in front: 0 or 1.
    """
    stages = stages_of(tile, out_bytes, int_value(of.rounds), target)
    if stages == 1 or not all(map(_can_go_on, factors)):
        return 0
    (name,) = s.loops(role=ROUND)
    s.pipeline(name, stages, producers, tensor_maps)
    return 1


def divide_copies(s: Schedule, c: Factor, threads: int) -> None:
    """Divide the nests that fill a factor among the threads of a block."""
    for name in s.loops(role=c.role):
        division: Cooperative = s.cooperative(name, threads, c.how.lanes)
        # Unrolled copies load before they store, so each iteration takes registers.
        if static(s.loop(division.rounds).extent, "rounds of a copy") > _AT_ONCE:
            s.unroll(s.split(division.rounds, _AT_ONCE).inner)
        else:
            s.unroll(division.rounds)
