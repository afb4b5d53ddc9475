"""Index arithmetic: simplification, bounds, proofs and affine forms; `rules.py` lists the laws."""

from tensorkiln.arith.ranges import Bounds, Limit, Range
from tensorkiln.arith.simplify import affine, bound, prove, prove_equal, simplify
from tensorkiln.arith.statements import simplify_stmt

__all__ = [
    "Bounds",
    "Limit",
    "Range",
    "affine",
    "bound",
    "prove",
    "prove_equal",
    "simplify",
    "simplify_stmt",
]
