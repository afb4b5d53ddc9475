"""The place where a module is nested deepest, for errors about that."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call


def deepest_place(mod: IRModule) -> str:
    """The function that is nested deepest and, of a graph, the node that lies deepest in it: what
    the model calls it, else the name of its value. Calls nothing recursively, since it is asked
    where the stack is used up. Empty for a module without functions."""
    depth, place = 0, ""
    for f in mod.functions:
        function_depth, node = _deepest(f)
        if function_depth > depth:
            depth, place = function_depth, f"{f.name}: {node}" if node else f.name
    return place


def _deepest(f: Any) -> tuple[int, str]:
    visited = set[int]()
    stack: list[tuple[Any, int, str]] = [(f, 1, "")]
    depth, place = 0, ""
    while stack:
        part, level, node = stack.pop()
        if level > depth:
            depth, place = level, node
        if isinstance(part, tuple | list):
            stack += [(p, level, node) for p in reversed(part)]
        elif is_dataclass(part) and id(part) not in visited:
            visited.add(id(part))
            if isinstance(part, Binding):
                node = part.value.span if isinstance(part.value, Call) else ""
                node = node or part.var.name
            stack += [(getattr(part, k.name), level + 1, node) for k in fields(part)]
    return depth, place
