"""Fused groups -> tensor programs: each primitive function becomes one scheduled PrimFunc."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tensorkiln.base.cache import Cache, key_of, user_cache
from tensorkiln.ir.derived import Forms, Head, Origin, derived, head_key, promised
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Binding, Call, Function, GlobalRef, ShapeValue, TensorType
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_function
from tensorkiln.schedule.attention import schedule_attention, supports_attention
from tensorkiln.schedule.conv2d import schedule_conv2d, schedule_depthwise, supports_conv2d
from tensorkiln.schedule.conv2d_program import is_depthwise
from tensorkiln.schedule.global_pool import schedule_global_pool, supports_global_pool
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.linear import schedule_linear, supports_linear
from tensorkiln.schedule.loops import schedule_loops
from tensorkiln.schedule.lrn import schedule_lrn, supports_lrn
from tensorkiln.schedule.movement import schedule_movement, supports_movement
from tensorkiln.schedule.pool import schedule_pool, supports_pool
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import finished
from tensorkiln.schedule.rows import schedule_layer_norm, schedule_softmax, supports_rows
from tensorkiln.schedule.strassen import schedule_parts, schedule_strassen
from tensorkiln.schedule.winograd import schedule_winograd
from tensorkiln.target import Target

# What schedules a group: (group, target, whether each step is proved).
Policy = Callable[[Group, Target, bool], Schedule]


@dataclass(frozen=True, slots=True)
class LowerGroups:
    """Schedule every primitive function for a target; equal groups share one kernel.

    R.function conv2d_relu(x, w) [primitive] + main: y = conv2d_relu(x, w)
    ->  T.prim_func conv2d_relu(...)         + main: y = conv2d_relu(x, w, symbols)

    Needs: `fuse_ops`.
    """

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Run the pass."""
        cache = user_cache()
        kernels: dict[str, PrimFunc] = {}
        renamed: dict[str, str] = {}
        symbols: dict[str, tuple[Expr, ...]] = {}
        others: list[AnyFunction] = []
        for f in mod.functions:
            if not isinstance(f, Function) or not f.is_primitive or f.external:
                others.append(f)
                continue
            group = Group(f, f.name)
            symbols[f.name] = group.symbols
            key = print_function(f, canonical=True)
            if key not in kernels:
                kernels[key] = kernel_of(group, f"{self.target}\n{key}", self.target, cache)
            renamed[f.name] = kernels[key].name
        if not renamed:
            return mod
        graphs = [
            _call_kernels(f, renamed, symbols) if isinstance(f, Function) else f for f in others
        ]
        return mod.with_functions((*graphs, *kernels.values()))


def kernel_of(group: Group, source: str, target: Target, cache: Cache | None) -> PrimFunc:
    """The scheduled kernel of a group, or the promise of one: where the cache knows what comes of
    `source`, which is all that it follows from, the body waits until somebody looks at it."""
    forms: Forms = {"group": lambda: group.params, "flat": lambda: tuple(group.flat.values())}
    make = partial(schedule_group, group, target)
    found = cache.get(key_of(head_key(source))) if cache is not None else None
    if found is None:
        return derived(make(), source, forms)
    head = Head.from_bytes(found)
    return promised(group.name, forms[head.params](), Origin(source, head), make)


def schedule_group(group: Group, target: Target, check: bool = False) -> PrimFunc:
    """The most specific schedule whose conditions hold; plain loops otherwise.

    `check` proves every step.
    """
    return finished(choose_schedule(group, target)(group, target, check))


def trace_of(group: Group, target: Target) -> str:
    """The steps that schedule a group, as `replay` reads them."""
    return str(choose_schedule(group, target)(group, target, False).trace)


def choose_schedule(group: Group, target: Target) -> Policy:
    """The schedule for a group: a table in code, most specific first."""
    call, var = group.anchor, group.anchor_var
    # The others know the shapes of groups that fusion makes by itself.
    if group.function.attrs.get("by_rule", False):
        return schedule_loops
    if call is None or var is None:
        return schedule_movement if supports_movement(group, target) else schedule_loops
    out = group.out_type
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if call.op == "conv2d" and supports_conv2d(call, out):
        return schedule_depthwise if is_depthwise(call, out) else schedule_conv2d
    if call.op == "winograd_conv2d":
        return schedule_winograd
    if call.op == "strassen_linear":
        return schedule_strassen
    if call.op == "strassen_parts":
        return schedule_parts
    if call.op in ("linear", "matmul") and supports_linear(call, out):
        return schedule_linear
    if call.op in ("max_pool2d", "avg_pool2d") and supports_pool(group):
        return schedule_pool
    if supports_global_pool(group, target):
        return schedule_global_pool
    if call.op == "lrn" and supports_lrn(group):
        return schedule_lrn
    if call.op == "attention" and supports_attention(call, target):
        return schedule_attention
    if call.op in ("softmax", "log_softmax") and supports_rows(call, out):
        return schedule_softmax
    if call.op == "layer_norm" and supports_rows(call, out):
        return schedule_layer_norm
    return schedule_loops


def _call_kernels(
    f: Function, renamed: dict[str, str], symbols: dict[str, tuple[Expr, ...]]
) -> Function:
    """Calls of fused groups become calls of their kernels, with the symbols they need."""
    bindings = []
    for b in f.bindings:
        call = b.value
        if isinstance(call, Call) and isinstance(call.callee, GlobalRef):
            name = call.callee.name
            if name in renamed:
                extra = (ShapeValue(symbols[name]),) if symbols[name] else ()
                call = replace(call, callee=GlobalRef(renamed[name]), args=(*call.args, *extra))
                b = Binding(b.var, call)
        bindings.append(b)
    return replace(f, bindings=tuple(bindings))
