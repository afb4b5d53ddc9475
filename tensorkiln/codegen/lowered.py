"""Whether a module is low enough for code generation, and which pass is missing where it is not."""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.base.errors import UserError
from tensorkiln.codegen.outer_calls import HOST_STEPS
from tensorkiln.codegen.outer_scope import bindings_in
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function
from tensorkiln.ir.stmt import Block, For, PrimFunc
from tensorkiln.ir.visit import walk_stmt

_SHOWN = 8
_LOOPS = {"vectorized": "vectorize_loops", "unrolled": "unroll_loops"}


def require_lowered(mod: IRModule) -> None:
    """UserError (code `not-lowered`) that lists what is not lowered, each with the passes that
    would do it."""
    found = [sentence for f in mod.functions for sentence in _faults(f)]
    if not found:
        return
    more = [f"... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    lines = "\n  ".join([*found[:_SHOWN], *more])
    raise UserError(
        f"the module is not lowered:\n  {lines}",
        code="not-lowered",
        hint='"auto" pipelines run every pass; None runs none',
    )


def _faults(f: Function | PrimFunc) -> Iterator[str]:
    if isinstance(f, PrimFunc):
        kinds = {s.kind for s in walk_stmt(f.body) if isinstance(s, For)}
        for kind in sorted(kinds & set(_LOOPS)):
            yield f"{f.name}: a loop is still {kind}: run {_LOOPS[kind]}"
        if any(isinstance(s, Block) for s in walk_stmt(f.body)):
            yield f"{f.name}: there are blocks: run lower_blocks"
        return
    if f.is_primitive:
        if not f.external:
            yield f"{f.name}: a fused group without loops: run lower_groups"
        return
    if f.is_planned or f.makes_storages:
        return
    if f.is_outer:
        yield from _outer_faults(f)
        return
    before = f"{f.name}: "
    for b in f.bindings:
        call = b.value
        if not isinstance(call, Call):
            yield f"{before}{b.var.name} is no kernel call: run canonicalize"
        elif call.op and call.op != "reshape":
            what = f"{b.var.name} = {call.op}(...)"
            yield f"{before}{what} is an operator: run fuse_ops, lower_groups"
    if "homes" not in f.attrs:
        yield f"{before}its values have no place in memory: run plan_memory, partial_graph_aot"
    else:
        yield f"{before}no run function calls its kernels: run partial_graph_aot"


def _outer_faults(f: Function) -> Iterator[str]:
    for b in bindings_in(f.bindings):
        if isinstance(b.value, Call) and b.value.op and b.value.op not in HOST_STEPS:
            what = f"{b.var.name} = {b.value.op}(...)"
            yield f"{f.name}: {what} is an operator in an outer function: run outline_dataflow"


__all__ = ["require_lowered"]
