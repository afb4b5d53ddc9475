"""Use values themselves where another name was bound to them."""

from __future__ import annotations

from tensorkiln.ir.module import IRModule
from tensorkiln.transform.relax.graph import forward_aliases


def forward_values(mod: IRModule) -> IRModule:
    """Drop bindings that only rename.

    Before:  y = x; z = relu(y)
    After:   z = relu(x)
    """
    return mod.map_graphs(forward_aliases)
