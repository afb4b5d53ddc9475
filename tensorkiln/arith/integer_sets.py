"""Sets of integer points under affine conditions, built from text and queried by isl.

The conditions are those of `arith/affine_text.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from tensorkiln.arith.affine_text import TRUE
from tensorkiln.base.packages import missing_package

# Limit on the operations of isl per proof. A simple nest takes thousands, one of dozens of steps a
# million or two, a pipelined product five. A proof that needs more may not end in reasonable time.
MOST_OPERATIONS = 6_000_000

_local = threading.local()


class GaveUp(Exception):
    """A proof needs more than MOST_OPERATIONS operations."""


class Sets:
    """Builds and queries isl sets over given parameters, of which `facts` hold."""

    def __init__(self, params: Sequence[str], facts: Sequence[str]):
        try:
            import islpy
        except ImportError:
            raise missing_package("islpy", "a proof that a schedule keeps results") from None
        self.isl = islpy
        ctx = getattr(_local, "context", None)
        if ctx is None:
            ctx = _local.context = islpy.Context()
        ctx.reset_operations()
        ctx.set_max_operations(MOST_OPERATIONS)
        self.ctx = ctx
        self.head = f"[{', '.join(params)}] -> "
        self.params, self.facts = list(params), list(facts)

    def make(self, dims: Iterable[str], conds: Iterable[str], exists: Sequence[str] = ()) -> Any:
        """The set of points for which all conditions hold."""
        body = " and ".join([f"({c})" for c in (*self.facts, *conds)]) or TRUE
        if exists:
            body = f"exists ({', '.join(exists)}: {body})"
        return self.limited(
            self.isl.Set.read_from_str, self.ctx, f"{self.head}{{ [{', '.join(dims)}] : {body} }}"
        )

    def limited(self, function: Any, *args: Any) -> Any:
        """Call a function of isl. Raises GaveUp past the limit on operations."""
        try:
            return function(*args)
        except self.isl.Error:
            # past the limit, isl may also report a syntax error in the text that it is reading
            raise GaveUp from None

    def empty(self, s: Any) -> bool:
        """Whether a set has no point, whatever the parameters."""
        return bool(self.limited(s.is_empty))

    def within(self, a: Any, b: Any) -> bool:
        """Whether every point of `a` is in `b`."""
        return bool(self.limited(a.is_subset, b))

    def sample(self, s: Any, names: Sequence[str]) -> dict[str, int]:
        """A point of a set that is not empty: values by coordinate name, parameters included."""
        point = self.limited(s.sample_point)
        kinds = self.isl.dim_type
        values = {
            n: int(point.get_coordinate_val(kinds.set, k).to_python()) for k, n in enumerate(names)
        }
        for k, n in enumerate(self.params):
            values[n] = int(point.get_coordinate_val(kinds.param, k).to_python())
        return values
