"""What `python -m bench.units` says of rates, and the programs that it measures tiles by."""

from __future__ import annotations

import pytest

import tensorkiln as tk
from bench.limits import TILE_UNITS, Limits
from bench.units import table, verdict
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.target import Target
from tensorkiln.target.rates import rates_of

PEAKS = {"float32": 200.0, "bfloat16": 100.0, "int8": 800.0, "bfloat16 tiles": 3000.0}
LIMITS = Limits(PEAKS, ((1 << 15, 300.0), (1 << 28, 15.0)))


def test_the_table_has_rates_and_bandwidths() -> None:
    lines = table(LIMITS)
    assert "| bfloat16 tiles | 3000.0 | 15.00 |" in lines and "| 32 KiB | 300.0 |" in lines
    assert LIMITS.peak("bfloat16") == 3000 and LIMITS.peak("int8") == 800


def test_a_row_that_the_rates_contradict_is_told() -> None:
    slow, fast = (rates_of(Target({"mcpu": name})) for name in ("sapphirerapids", "znver4"))
    assert "wrong" not in verdict(LIMITS, slow) and "pairs 0.50" in verdict(LIMITS, slow)
    assert "wrong rate" in verdict(LIMITS, fast)
    assert "no row" in verdict(LIMITS, rates_of(Target({"mcpu": "cooperlake"})))


@pytest.mark.parametrize("unit", TILE_UNITS)
def test_tiles_are_measured_by_products_alone(unit: str) -> None:
    mod = tk.IRModule((TILE_UNITS[unit].program(),))
    target = Target({"mcpu": "sapphirerapids"})
    artifacts = compile_module(mod, target, relax_pipeline=None).artifacts
    text = bytes(artifacts["llvm/peak.s"].view).decode()
    assert text.count("\ttdp") == 4 and text.count("\ttileloadd") == 4
