"""How fast the units of processors are beside each other, by microarchitecture: which of two
instructions for a product a kernel takes.

A virtual machine may show another model of processor than it runs on, so a row is found by features
that only its microarchitectures have, or by the name of the processor. `python -m bench.units`
measures what a row says; processors without a row are taken to multiply pairs twice as fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.target.target import Target


@dataclass(frozen=True, slots=True)
class Rates:
    """Products of one core in a second, as a multiple of those of float32's multiply-adds: `pairs`
    of bfloat16 by vectors (vdpbf16ps, bfdot); `tiles` of bfloat16 by tiles, 0 without any."""

    name: str
    features: frozenset[str]
    cpus: frozenset[str]
    pairs: float
    tiles: float = 0.0


def _row(name: str, pairs: float, tiles: float = 0.0, features: str = "", cpus: str = "") -> Rates:
    return Rates(name, frozenset(features.split()), frozenset(cpus.split()), pairs, tiles)


_GOLDEN_COVE = "sapphirerapids emeraldrapids graniterapids graniterapids-d"
# The first row that fits counts. Measured: on a Xeon with AMX, 236 GFLOP/s of float32, 116 of
# pairs, 3,730 of tiles in registers; on an EPYC of Zen 4, 118 and 231, of Zen 5 277 and 533.
ROWS = (
    _row("Golden Cove", 0.5, 15.8, features="amx-tile avx512bf16", cpus=_GOLDEN_COVE),
    _row("Zen 4, Zen 5", 2.0, cpus="znver4 znver5"),
)
_OTHER = _row("other", pairs=2.0)


def rates_of(target: Target) -> Rates:
    """The row of a target's processor; one of usual rates if there is none."""
    for row in ROWS:
        has_all = target.arch == "x86_64" and all(map(target.has, sorted(row.features)))
        if (row.features and has_all) or target.mcpu in row.cpus:
            return row
    return _OTHER


def has_fast_pairs(target: Target) -> bool:
    """Whether multiplying pairs of bfloat16 is at least as fast as multiplying float32, where a
    processor has an instruction for it."""
    return rates_of(target).pairs >= 1


__all__ = ["ROWS", "Rates", "has_fast_pairs", "rates_of"]
