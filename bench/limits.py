"""What this machine can do at most, measured: peaks of its multipliers and read bandwidth of one
core, of the instructions that a target has.

All programs are compiled by Tensorkiln, so that they run wherever it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorkiln as tk
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.runtime.tensor import aligned_empty, dtype_named
from tensorkiln.script import T, from_source
from tensorkiln.target.dots import multiplies_tiles, saturates_byte_pairs

STEPS = 300_000
CHAINS = 16  # of 16 vectors: more than latency times throughput of any FMA unit so far
# Bytes that are read again and again, in order: from what fits every first-level cache to what no
# cache holds.
FOOTPRINTS = tuple(1 << n for n in range(15, 29))
READ_BYTES = 1 << 26  # of one measurement


# Adds a product, or several, to each lane of a register; `Unit` fills in the operands.
_PEAK = """
@T.prim_func
def peak(
    A: T.Buffer(({lefts},), "{lhs}"),
    B: T.Buffer(({rights},), "{rhs}"),
    Y: T.Buffer(({lanes},), "{sums}"),
) -> None:
    acc = T.alloc_buffer(({all},), "{sums}", scope="register")
    for r in T.unroll({chains}):
        acc[T.Ramp(r * {lanes}, 1, {lanes})] = Y[T.Ramp(0, 1, {lanes})]
    for _step in range({steps}):
        for r in T.unroll({chains}):
            acc[T.Ramp(r * {lanes}, 1, {lanes})] = {step}
    for r in T.unroll({chains}):
        Y[T.Ramp(0, 1, {lanes})] = Y[T.Ramp(0, 1, {lanes})] + acc[T.Ramp(r * {lanes}, 1, {lanes})]
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """What multiplies and adds: types of the sums and factors, products per lane, and the step.
    `factors`: vectors of each factor; several where a product is an instruction of its own, which
    would be computed once for all sums. Two steps in turn have different left ones."""

    sums: str
    lhs: str
    rhs: str
    count: int
    step: str
    factors: int = 1

    def program(self, target: tk.Target, chains: int) -> PrimFunc:
        """`chains` registers, to each of whose lanes STEPS steps are added."""
        lanes = target.vector_lanes("float32")
        wide = self.count * lanes
        n = self.factors
        places = (f"(_step % 2 * {n} + r // {n}) * {wide}", f"r % {n} * {wide}")
        starts = places if n > 1 else ("0", "0")
        factors = (
            f"{x}[T.Ramp({start}, 1, {wide})]" for x, start in zip("AB", starts, strict=True)
        )
        operands = (f"acc[T.Ramp(r * {lanes}, 1, {lanes})]", *factors)
        text = _PEAK.format(
            **{f: getattr(self, f) for f in ("sums", "lhs", "rhs")},
            **{"lanes": lanes, "lefts": 2 * n * wide, "rights": n * wide},
            **{"chains": chains, "all": chains * lanes},
            **{"steps": STEPS, "step": self.step.format(*operands)},
        )
        (function,) = from_source(text).functions
        return function


# By the name of the precision whose products it computes.
UNITS = {
    "float32": Unit("float32", "float32", "float32", 1, "T.fma({0}, {1}, {2})"),
    "bfloat16": Unit("float32", "bfloat16", "bfloat16", 2, "T.dot2_bf16({0}, {1}, {2})"),
    "int8": Unit("int32", "uint8", "int8", 4, "T.dot4({0}, {1}, {2})"),
}
# What a processor whose sums of two products of bytes saturate computes of small weights.
SMALL_BYTES = Unit("int32", "uint8", "int8", 4, "T.dot4_small({0}, {1}, {2})", factors=4)


# Adds products of tiles to four tiles of sums, from two tiles of each factor.
_TILE_PEAK = """
@T.prim_func
def peak(
    A: T.Buffer((32, {terms}), "{lhs}"),
    B: T.Buffer((32, {terms}), "{rhs}"),
    Y: T.Buffer((64, 16), "{sums}"),
) -> None:
    c = T.alloc_buffer((4, 16, 16), "{sums}", scope="tile")
    a = T.alloc_buffer((2, 16, {terms}), "{lhs}", scope="tile")
    b = T.alloc_buffer((2, 16, {terms}), "{rhs}", scope="tile")
    for n in T.unroll(4):
        c[n, {sum}] = {zero}
    for n in T.unroll(2):
        a[n, {factor}] = A[{part}]
        b[n, {factor}] = B[{part}]
    for _step in range({steps}):
        for n in T.unroll(4):
            c[n, {sum}] = T.{product}(c[n, {sum}], a[n // 2, {factor}], b[n % 2, {factor}])
    for n in T.unroll(4):
        Y[{place}] = c[n, {sum}]
"""


def _matrix(columns: int, first: str = "") -> str:
    """The indices of 16 rows, from row `first` on, of so many columns."""
    count = 16 * columns
    lanes, size = f"T.Ramp(0, 1, {count})", f"T.Broadcast({columns}, {count})"
    start = f" + T.Broadcast({first}, {count})" if first else ""
    return f"{lanes} // {size}{start}, {lanes} % {size}"


@dataclass(frozen=True, slots=True)
class TileUnit:
    """What multiplies tiles: types of the sums and factors, terms of a row, the product."""

    sums: str
    lhs: str
    rhs: str
    terms: int
    product: str

    def program(self) -> PrimFunc:
        """Four tiles of sums, to each of which STEPS products are added."""
        text = _TILE_PEAK.format(
            **{f: getattr(self, f) for f in ("sums", "lhs", "rhs", "terms", "product")},
            **{"sum": _matrix(16), "factor": _matrix(self.terms), "steps": STEPS},
            **{"part": _matrix(self.terms, "n * 16"), "place": _matrix(16, "n * 16")},
            zero="0.0" if self.sums == "float32" else "0",
        )
        (function,) = from_source(text).functions
        return function


TILE_UNITS = {
    "bfloat16": TileUnit("float32", "bfloat16", "bfloat16", 32, "tile_dot2_bf16"),
    "int8": TileUnit("int32", "uint8", "int8", 64, "tile_dot4"),
}
TILES = " tiles"


def read_program(rounds: int, rows: int, chains: int, lanes: int) -> Any:
    """Adds up rows x chains x lanes numbers, `rounds` times."""

    @T.prim_func
    def add_rows(
        X: T.Buffer((rows, chains, lanes), "float32"), Y: T.Buffer((lanes,), "float32")
    ) -> None:
        for _round in range(rounds):
            acc = T.alloc_buffer((chains, lanes), "float32", scope="register")
            for r in T.unroll(chains):
                for v in T.vectorized(lanes):
                    acc[r, v] = 0.0
            for i in range(rows):
                for r in T.unroll(chains):
                    for v in T.vectorized(lanes):
                        acc[r, v] = acc[r, v] + X[i, r, v]
            for r in T.unroll(chains):
                for v in T.vectorized(lanes):
                    Y[v] = Y[v] + acc[r, v]

    return add_rows


def compiled(func: PrimFunc, target: tk.Target) -> Callable[..., object]:
    """The function of a library that holds only it."""
    return tk.compile(tk.IRModule((func,)), target, relax_pipeline=None).jit()[func.name]


def least(run: Callable[[], object], times: int = 1) -> float:
    """Processor seconds of the fastest call."""
    best = float("inf")
    for _ in range(times):
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
    return best


def peak_of(unit: str, target: tk.Target) -> tuple[Callable[[], object], float]:
    """A call that keeps the units of `unit`, one of UNITS, busy, and its operations."""
    u, lanes = UNITS[unit], target.vector_lanes("float32")
    chains = CHAINS if target.num_vector_registers >= 32 else 12
    if unit == "int8" and saturates_byte_pairs(target):  # products take registers
        u, chains = SMALL_BYTES, 8
    call = compiled(u.program(target, chains), target)
    sizes = zip((2 * u.factors, u.factors), (u.lhs, u.rhs), strict=True)
    a, b = (np.full(n * u.count * lanes, 0.5).astype(dtype_named(d)) for n, d in sizes)
    y = np.zeros(lanes, u.sums)
    return lambda: call(a, b, y), 2.0 * u.count * lanes * chains * STEPS


def tile_peak_of(unit: str, target: tk.Target) -> tuple[Callable[[], object], float]:
    """The same for tiles of `unit`, one of TILE_UNITS."""
    u = TILE_UNITS[unit]
    call = compiled(u.program(), target)
    a, b = (np.full((32, u.terms), 1).astype(dtype_named(d)) for d in (u.lhs, u.rhs))
    y = np.zeros((64, 16), u.sums)
    return lambda: call(a, b, y), 2.0 * 4 * 16 * 16 * u.terms * STEPS


def units_of(target: tk.Target) -> dict[str, tuple[Callable[[], object], float]]:
    """By name, calls that keep the units of a target busy, and their operations."""
    units = {unit: peak_of(unit, target) for unit in UNITS}
    tiles = (unit for unit in TILE_UNITS if multiplies_tiles(target, unit))
    return units | {unit + TILES: tile_peak_of(unit, target) for unit in tiles}


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one core: GFLOP/s (of int8: Gop/s) by unit, and GB/s read by footprint in bytes."""

    peaks: Mapping[str, float]
    gbytes: tuple[tuple[int, float], ...]

    def peak(self, precision: str) -> float:
        """GFLOP/s of the fastest unit for products of a precision."""
        return max(self.peaks[precision], self.peaks.get(precision + TILES, 0.0))

    def bandwidth(self, footprint: float) -> float:
        """GB/s of the largest measured footprint that this one holds, the smallest if it holds
        none: no kernel reads faster, where a cache holds the one and not the other."""
        rates = [rate for size, rate in self.gbytes if size <= footprint]
        return rates[-1] if rates else self.gbytes[0][1]


def measure_limits(
    times: int = 10, target: tk.Target | None = None, footprints: Sequence[int] = FOOTPRINTS
) -> Limits:
    """Of the instructions that `target` has (this processor's). Takes seconds; the clock's
    frequency changes, so the peaks are taken twice."""
    target = target or tk.Target("native")
    units = units_of(target)
    before = {unit: least(run, times) for unit, (run, _) in units.items()}
    rates = []
    lanes, chains = target.vector_lanes("float32"), 8
    for size in footprints:
        rounds, rows = max(1, READ_BYTES // size), size // (4 * lanes * chains)
        x, y = aligned_empty((rows, chains, lanes), np.dtype(np.float32)), np.zeros(lanes, "f")
        x[...] = 0.0
        read = compiled(read_program(rounds, rows, chains, lanes), target)
        rates.append((size, rounds * size / least(lambda r=read, a=x, b=y: r(a, b), times) / 1e9))
    peaks = {
        unit: operations / min(before[unit], least(run, times)) / 1e9
        for unit, (run, operations) in units.items()
    }
    return Limits(peaks, tuple(rates))
