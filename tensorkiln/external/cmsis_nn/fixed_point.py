"""Real factors as CMSIS-NN takes them: an int32 multiplier and a power of two.

    factor = multiplier * 2**(shift - 31),  2**30 <= multiplier < 2**31

An int32 sum `a` is rescaled in two roundings, each to the nearest integer: first
`b = a * 2**max(shift, 0) * multiplier / 2**31`, ties upwards, then `b / 2**max(-shift, 0)`, ties
away from zero. (CMSIS-NN compiled with CMSIS_NN_USE_SINGLE_ROUNDING rounds once.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_SHIFT, MAX_SHIFT = -30, 30


@dataclass(frozen=True, slots=True)
class FixedPointFactor:
    """`multiplier * 2**(shift - 31)`."""

    multiplier: int
    shift: int

    @staticmethod
    def of(value: float) -> FixedPointFactor | None:
        """The factor nearest to a positive number, ties away from zero; None for a number outside
        of [2**-31, 2**30), whose shift CMSIS-NN cannot apply."""
        mantissa, shift = math.frexp(value)
        multiplier = math.floor(mantissa * 2.0**31 + 0.5)
        if multiplier == 1 << 31:
            multiplier, shift = 1 << 30, shift + 1
        return FixedPointFactor(multiplier, shift) if MIN_SHIFT <= shift <= MAX_SHIFT else None
