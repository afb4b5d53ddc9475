"""Remove unused bindings and fused groups."""

from __future__ import annotations

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function, GlobalRef
from tensorkiln.ir.stmt import CallKernel, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.transform.rewriting.graph import live


def eliminate_dead_code(mod: IRModule) -> IRModule:
    """Remove bindings whose variable is unused, and fused groups that nothing calls.

    Before:  y = exp(x); z = neg(x); return z
    After:   z = neg(x); return z
    Needs:   nothing (operators have no side effects).
    """
    mod = mod.map_graphs(live)
    called = {
        b.value.callee.name
        for f in mod.functions
        if isinstance(f, Function)
        for b in f.bindings
        if isinstance(b.value, Call) and isinstance(b.value.callee, GlobalRef)
    }
    called |= {
        s.name
        for f in mod.functions
        if isinstance(f, PrimFunc)
        for s in walk_stmt(f.body)
        if isinstance(s, CallKernel)
    }
    live_functions = tuple(
        f
        for f in mod.functions
        if not (isinstance(f, Function) and f.is_primitive) or f.name in called
    )
    return mod if len(live_functions) == len(mod.functions) else mod.with_functions(live_functions)
