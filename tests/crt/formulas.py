"""Sizes over `n` and `m`, as host functions hold them."""

from __future__ import annotations

from tensorkiln.codegen.host.function import Size
from tensorkiln.codegen.host.size_text import size_of
from tensorkiln.ir.expr import Expr, Var

N, M, Q = Var("n"), Var("m"), Var("q")


def size(e: Expr) -> Size:
    """The size, with symbols called as the variables are."""
    return size_of(e, {v: v.name for v in (N, M, Q)})
