"""One-pass attention by warpgroups, of float16 and bfloat16: wgmma of sm_90a.

As `families/attention_tensor_cores/gpu.py`, but each warpgroup has 64 queries of the block's tile,
and tensor cores read keys and values from shared memory by themselves. So all queries of a
warpgroup share what is read there, where else those of a warp do. Queries are read there too;
weights are a factor in registers. A producer warp copies keys and values for the next tile
(`ir/rings.py`), by TMA where operands are whole tensors, while the other warps compute; and
warpgroups wait for nothing but it, so one multiplies while the other computes exponentials.

In shared memory all have permuted rows of 64 elements, as the instruction reads them
(`schedule/intrin/warpgroup.py`): a row is of a query or key and 64 elements of its head; those of a
second 64 follow behind the first. Values are a transposed factor, 64 keys by 64.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.families.attention.gpu_blocks import bind_blocks
from tensorkiln.families.attention_tensor_cores.gpu import (
    REGISTER,
    ROUND,
    TensorCoreAttention,
    bind_registers,
    divide,
)
from tensorkiln.families.attention_wgmma.gpu_row import tile_of
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.copies import LEAST, copy_of
from tensorkiln.ir.device_instructions import (
    MATRIX_ALIGN,
    WARPGROUP_ROWS,
    WARPGROUP_TERMS,
    WARPGROUP_THREADS,
    warpgroup_mma_name,
)
from tensorkiln.ir.expr import Broadcast, Expr, IntImm, Var, const, intrin
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.build import lane_ramp, loop, within
from tensorkiln.schedule.gpu.fragments import chosen
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.intrin.fragments import SUMS, warpgroup_left, warpgroup_sums
from tensorkiln.schedule.intrin.warpgroup import swizzled, whole_rows
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target
from tensorkiln.target.capability import least_capability

_AT_ONCE = 2  # loads that a producer waits for together: it has few registers
_BLOCK = 64  # elements of a row of shared memory


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of attention of 16-bit floats, with data movement before and after it. None
    where no tile fits, or keys and values cannot be copied while threads compute."""
    assert group.anchor is not None
    tile = tile_of(group.anchor, target)
    if tile is None:
        return None
    tiles = _WarpgroupAttention(group.unviewed, tile, least_capability(target))
    if not tiles.can_go_on:
        return None
    s = Schedule(PrimFunc(group.name, tiles.group.params, tiles.grid(tiles.block)), check)
    bind_blocks(s)
    (rounds,) = s.loops(role=ROUND)
    s.pipeline(rounds, tile.stages, tile.producers, True)
    threads = {"queries": tile.threads, "keys": tile.producers, "values": tile.producers}
    divide(s, tiles, threads, _AT_ONCE)
    bind_registers(s)
    return s


class _WarpgroupAttention(TensorCoreAttention):
    """The program of attention by warpgroups."""

    def _shared(self, name: str, *shape: int) -> Buffer:
        rows, columns = shape
        rows *= columns // _BLOCK
        return buffer(name, (rows, _BLOCK), self.half, "shared", MATRIX_ALIGN)

    def _weighted_sums(self) -> Buffer:
        return self._own("weighted", warpgroup_sums(self.columns).count)

    @property
    def can_go_on(self) -> bool:
        """Whether keys and values are loads, in pieces that are large enough for asynchronous
        copies."""
        index = [Var(n) for n in ("b", "h", "s", "d")]
        into = buffer("tile", (1,), self.half, "shared")
        return all(
            self.lanes[name] * self.half.bytes >= LEAST
            and copy_of(Store(into, (IntImm(0),), element(*index))) is not None
            for name, element in (("keys", self.k), ("values", self.v))
        )

    def _blocks(self, b: Buffer) -> int:
        """How many rows of a shared buffer a query has."""
        return static(b.shape[0], "rows") // self.tile.rows

    def _place(self, b: Buffer, row: Expr, d: Expr) -> tuple[Expr, Expr]:
        block, d = simplify(d // _BLOCK), simplify(d % _BLOCK)
        if b is self.values:  # 64 keys by 64, and of these 64 elements by 64
            above, row = row // WARPGROUP_TERMS * self.columns, simplify(row % WARPGROUP_TERMS)
            row, d = swizzled(d + block * _BLOCK, row, True)
            return simplify(above + row), d
        if b is self.key:
            above = block * self.tile.keys
        else:  # of each warpgroup by itself
            blocks = self._blocks(b)
            group, row = row // WARPGROUP_ROWS, simplify(row % WARPGROUP_ROWS)
            above = (group * blocks + block) * WARPGROUP_ROWS
        row, d = swizzled(row, d, False)
        return simplify(above + row), d

    def _copy_values(self, b: Expr, h: Expr, first: Expr) -> Stmt:
        """Copy a tile of values, 64 rows at a time, each of which TMA can copy."""
        return seq(
            *(
                self._copy(
                    self.values,
                    first,
                    self.keys,
                    self.width,
                    lambda t, d: self.v(b, h, t, d),
                    (above, WARPGROUP_TERMS),
                )
                for above in range(0, self.tile.keys, WARPGROUP_TERMS)
            )
        )

    # ---- threads -------------------------------------------------------------------------------

    def _each_weighted(self, t: Expr, body: Callable[[Load, Expr], Stmt]) -> Stmt:
        return body(self._whole_weighted(t), IntImm(0))

    def _whole_weighted(self, t: Expr) -> Load:
        return Load(self.weighted, (t, lane_ramp(warpgroup_sums(self.columns).count)))

    def _each_eight(self, t: Expr, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        eights, whole = self.columns // SUMS.columns, self._whole_weighted(t)
        parts = self._scratch("parts", eights, SUMS.count)
        ramp, stores = lane_ramp(SUMS.count), []
        for c in range(eights):
            part = chosen(whole, tuple(range(c * SUMS.count, (c + 1) * SUMS.count)))
            stores.append(Store(parts, (IntImm(c), ramp), part))

        def eight(c: Expr) -> Stmt:
            return body(Load(parts, (c, ramp)), simplify(c * SUMS.columns))

        return within([parts], *stores, loop("c", eights, eight, REGISTER))

    def _sums(self) -> Buffer:
        return self._scratch("sums", warpgroup_sums(self.tile.keys).count)

    def _products(self, t: Expr, sums: Buffer) -> Stmt:
        """Multiply the queries of a warpgroup by all keys in shared memory."""
        count = warpgroup_sums(self.tile.keys).count
        first = simplify(t // WARPGROUP_THREADS * (self._blocks(self.queries) * WARPGROUP_ROWS))
        queries = whole_rows(self.queries, WARPGROUP_ROWS * self.terms // _BLOCK, first)
        keys = whole_rows(self.key, self.tile.keys * self.terms // _BLOCK)
        name = warpgroup_mma_name(self.tile.keys, "", self.terms)
        zero = Broadcast(const(0, self.dtype), count)
        return Store(sums, (lane_ramp(count),), intrin(name, queries, keys, zero))

    def _apart(self, sums: Buffer, scores: Buffer) -> Stmt:
        count = warpgroup_sums(self.tile.keys).count
        whole = Load(sums, (lane_ramp(count),))
        return seq(
            *(
                Store(
                    scores, (IntImm(k // SUMS.count), IntImm(k % SUMS.count)), chosen(whole, (k,))
                )
                for k in range(count)
            )
        )

    def _weigh(self, t: Expr, scores: Buffer) -> Stmt:
        """Add the values in shared memory, times their weights."""
        keys = self.tile.keys
        count = warpgroup_left(keys).count
        a = self._scratch("w", count, dtype=self.half)
        values = whole_rows(self.values, keys * self.columns // _BLOCK)
        sums = self._whole_weighted(t)
        name = warpgroup_mma_name(self.columns, "b", keys, True)
        value = intrin(name, Load(a, (lane_ramp(count),)), values, sums)
        weights = self._weights(scores, IntImm(0), keys // SUMS.columns)
        return within(
            [a], Store(a, (lane_ramp(count),), weights), Store(self.weighted, sums.indices, value)
        )
