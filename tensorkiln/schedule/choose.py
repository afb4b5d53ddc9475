"""Which schedule a group gets: that of the first kernel family that fits.

A schedule may decline (return None) because of how the group computes its operands; then the next
family is asked. Plain loops, the last family, take every group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Param, PrimFunc
from tensorkiln.kernels import Family, families
from tensorkiln.kernels.knobs import Choices, Knob, choices_of
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import finished
from tensorkiln.target import Target


def schedule_group(group: Group, target: Target, check: bool = False) -> PrimFunc:
    """The scheduled kernel of a group. With `check`, every step is proved to keep all
    dependences."""
    family, s = _scheduled(group, target, check)
    return replace(finished(s), op_class=family.op_class)


def trace_of(group: Group, target: Target) -> str:
    """The steps that schedule a group, as `replay` reads them."""
    return str(_scheduled(group, target, False)[1].trace)


def _scheduled(group: Group, target: Target, check: bool) -> tuple[Family, Schedule]:
    for family in fitting(group, target):
        group.choices = _choices(family, group, target)
        s = _run(family, group, target, check)
        if s is not None:
            return family, s
    raise InternalError(f"group {group.name}: no kernel family computes it")


def fitting(group: Group, target: Target) -> Iterator[Family]:
    """The families that fit a group, in the order in which their schedules are tried."""
    for family in families(target).of(group.main.op):
        if _may_compute(family, group) and family.fits(group.main, group.out_type, target):
            yield family


def knobs_of(family: Family, group: Group, target: Target) -> tuple[Knob, ...]:
    """The knobs that a family has for a group."""
    return family.knobs(group.main, group.out_type, target) if family.knobs is not None else ()


def _choices(family: Family, group: Group, target: Target) -> Choices:
    """The values of a family's knobs for a group. UserError (code `bad-knob`) for those that its
    attribute `knobs` asks for and that are not legal."""
    knobs, knob_values = knobs_of(family, group, target), group.given(family.op_class)
    try:
        return choices_of(knobs, knob_values)
    except UserError as error:
        message = f"{family.op_class}: {error.message}"
        raise UserError(message, code=error.code, where=group.name, hint=error.hint) from None


def _may_compute(family: Family, group: Group) -> bool:
    """Whether a family can compute a group of this form: with an epilogue, with a prologue, or
    formed by a rule of the caller's."""
    if family.any_form:
        return True
    if group.function.attrs.get("by_rule", False):
        return False
    if group.anchor is None:
        return True
    after = group.anchor_var is not group.out_var
    before = any(isinstance(a, RVar) and a in group.calls for a in group.anchor.args)
    takes = (family.epilogue or not after) and (family.prologue or not before)
    return bool(takes)


def _run(family: Family, group: Group, target: Target, check: bool) -> Schedule | None:
    if not family.owner:
        schedule: Schedule | None = family.load_schedule()(group, target, check)
        return schedule
    plugin_call = f"{family.owner}: schedule"
    with plugin(plugin_call):
        schedule = family.load_schedule()(group, target, check)
    if schedule is not None and not isinstance(schedule, Schedule):
        raise bad_answer(plugin_call, schedule, "Schedule or None", "bad-family")
    if schedule is not None and not _takes_operands(schedule.func, group):
        raise UserError(
            f"{plugin_call} returned a program of other parameters than those of its group",
            code="bad-family",
            hint="PrimFunc(group.name, group.params, ...), or group.flat_params",
        )
    return schedule


def _takes_operands(f: PrimFunc, group: Group) -> bool:
    """Whether a program has the name of a group, and its parameters, with their shapes or flat."""
    pairs = list(zip(group.params, group.flat_params, strict=True))
    same_params = len(f.params) == len(pairs) and all(map(_is_one_of, f.params, pairs))
    return same_params and f.name == group.name


def _is_one_of(p: Param, forms: tuple[Param, Param]) -> bool:
    return p is forms[0] or p is forms[1]
