"""What `tensorize` puts in place of loops."""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.tree.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction for `tensorize`: `template` is what it computes, as plain loops,
    `implementation`, with the same parameters, the code that replaces them. ScheduleError if the
    parameters differ."""

    name: str
    template: PrimFunc
    implementation: PrimFunc

    def __post_init__(self) -> None:
        mine = [(b.dtype, b.shape) for b in self.template.buffers]
        other = [(b.dtype, b.shape) for b in self.implementation.buffers]
        scalars = len(self.template.scalars) == len(self.implementation.scalars)
        if mine != other or not scalars:
            raise ScheduleError(
                f"template and implementation of {self.name!r} have other parameters",
                where=f"Instruction({self.name!r})",
                hint="the same buffers, of the same shapes, in the same order",
            )
