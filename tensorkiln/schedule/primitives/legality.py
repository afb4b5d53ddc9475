"""Whether a transformation keeps every dependence."""

from __future__ import annotations

from tensorkiln.ir.stmt import PrimFunc


def require_order(before: PrimFunc, after: PrimFunc, what: str) -> None:
    """Refuse `after` unless it computes what `before` does."""
