"""Which schedule a group gets."""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import PrimFunc
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

# A function that schedules a group: (group, target, whether to prove the order of each step).
Policy = Callable[[Group, Target, bool], Schedule]


def schedule_group(group: Group, target: Target, check: bool = False) -> PrimFunc:
    """The most specific schedule whose conditions hold; plain loops otherwise.

    With `check`, every step is proved to keep all dependences.
    """
    return finished(choose_schedule(group, target)(group, target, check))


def trace_of(group: Group, target: Target) -> str:
    """The steps that schedule a group, as `replay` reads them."""
    return str(choose_schedule(group, target)(group, target, False).trace)


def choose_schedule(group: Group, target: Target) -> Policy:
    """The schedule for a group: a table in code, most specific first."""
    call, var = group.anchor, group.anchor_var
    # A group that the default fusion rules would not have formed may have any form; the specific
    # schedules expect those of the default rules.
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
