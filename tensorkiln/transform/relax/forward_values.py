"""Copy propagation: replace variables that are bound to another variable or to a constant."""

from __future__ import annotations

from tensorkiln.ir.module import IRModule
from tensorkiln.transform.rewriting.graph import forward_aliases


def forward_values(mod: IRModule) -> IRModule:
    """Remove bindings `y = x` and `y = constant`, and use the value itself where y is read.

    Before:  y = x; z = relu(y)
    After:   z = relu(x)
    """
    return mod.map_graphs(forward_aliases)
