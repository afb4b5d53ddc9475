"""The pass that gives fused groups the knob values which records say are better than the untuned
ones.

`compile(records=)` puts it before `LowerGroups`. A record is found by the hash of the group's text
without names, and the text of the target. It also has a hash of the sources of its family's
schedule and knobs (`schedule_digest`); if these have changed since it was measured, it is stale: a
note names it, and it is not used. Which kernels were tuned is shown by `placement()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.kernels.knobs import ATTRIBUTE, choices_of
from tensorkiln.kernels.records import Record, Records, schedule_digest, target_text, workload_of
from tensorkiln.schedule.choose import fitting, knobs_of
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target, target_in


@dataclass(frozen=True, slots=True)
class ApplyRecords:
    """Write the knobs of a group's best record into its attribute `knobs`.

    R.function linear(x, w) [primitive]
    ->  R.function linear(x, w) [primitive, knobs=(("linear_packed", "rows", 6),)]

    A record belongs to a group's text and target; records of other groups are ignored. One that is
    not better than the untuned kernel beside it changes nothing. `note` is told of those that
    cannot be used: the schedule of their family has changed since, or their knobs are not legal.
    Groups that have the attribute already keep it.

    Needs: `fuse_ops`. Before `lower_groups`.
    """

    target: Target
    records: Records
    note: Callable[[str], None] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle, as of a debug compile's Executable, has nobody to tell anything to."""
        return ApplyRecords, (self.target, self.records)

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with knobs; `mod` itself if no record applies."""
        problems: dict[str, list[str]] = {}
        functions: list[AnyFunction] = []
        for f in mod.functions:
            if isinstance(f, Function) and f.is_primitive and not f.external:
                f = self._tuned(f, problems)
            functions.append(f)
        if self.note is not None:
            for problem, names in problems.items():
                self.note(f"records not used, {problem}: {listed(names)}")
        unchanged = all(a is b for a, b in zip(functions, mod.functions, strict=True))
        return mod if unchanged else mod.with_functions(tuple(functions))

    def _tuned(self, f: Function, problems: dict[str, list[str]]) -> Function:
        target = target_in(self.target, f.attrs)
        workload, _ = workload_of(f)
        records = self.records.of(workload, target_text(target))
        if not records or ATTRIBUTE in f.attrs:
            return f
        group = Group(f, f.name, target)
        problem_of = {record: _problem(record, group, target) for record in records}
        best = next((record for record, problem in problem_of.items() if not problem), None)
        if best is None:
            for problem in dict.fromkeys(problem_of.values()):
                problems.setdefault(problem, []).append(f.name)
            return f
        if not best.is_better:
            return f
        rows = tuple((best.family, name, value) for name, value in best.knobs)
        return replace(f, attrs=Attrs.of(**{**f.attrs, ATTRIBUTE: rows}))


def _problem(record: Record, group: Group, target: Target) -> str:
    """Why a record cannot be used for a group; empty if it can."""
    family = next(fitting(group, target), None)
    if family is None or family.op_class != record.family or family.knobs is None:
        now = f", but {family.op_class}" if family is not None else ""
        return f"{record.family} with knobs does not compute them{now}"
    if record.schedule != schedule_digest(family):
        return f"the schedule of {record.family} has changed since they were measured"
    try:
        choices_of(knobs_of(family, group, target), record.choices)
    except UserError as error:
        return f"{record.family} cannot take them: {error.message}"
    return ""
