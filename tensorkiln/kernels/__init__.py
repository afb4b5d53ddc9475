"""Kernel families: for each, what it computes and what it needs, in one row of one table."""

from tensorkiln.kernels.family import Algorithm, Family, Layouts, Packed, Rewriter
from tensorkiln.kernels.fusion import (
    VIEWS,
    computes_nothing,
    elementwise_epilogue,
    is_view,
    light,
)
from tensorkiln.kernels.knobs import Knob
from tensorkiln.kernels.table import Families, algorithm_of, computes, families

__all__ = [
    "VIEWS",
    "Algorithm",
    "Families",
    "Family",
    "Knob",
    "Layouts",
    "Packed",
    "Rewriter",
    "algorithm_of",
    "computes",
    "computes_nothing",
    "elementwise_epilogue",
    "families",
    "is_view",
    "light",
]
