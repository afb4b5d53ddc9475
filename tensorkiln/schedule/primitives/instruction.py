"""The instructions that `tensorize` puts in place of loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.device_instructions import THREAD
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.stmt import PrimFunc, Stmt
from tensorkiln.schedule.tree.errors import ScheduleError

Memory = Mapping[int, tuple[str, ...]]


def typed_name(name: str, dtype: str) -> str:
    """The name of an instruction on elements of a type, which float32 need not say."""
    return name if dtype == FLOAT32.name else f"{name}_{dtype}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction for `tensorize`: `template` is what it computes, as plain loops,
    `implementation`, with the same parameters, the code that replaces them.

    `memory`: by position, the scopes in which a buffer among the parameters must be. `participants`
    and `threads`: who runs it, one thread (or a CPU), or the threads of a sub-group together, over
    which the implementation has a loop. ScheduleError if the parameters differ.
    """

    name: str
    template: PrimFunc
    implementation: PrimFunc
    memory: Memory = field(default_factory=dict)
    participants: str = THREAD
    threads: int = 1

    @staticmethod
    def of(
        name: str,
        params: tuple[Buffer, ...],
        template: Stmt,
        code: Stmt,
        memory: Memory | None = None,
        participants: str = THREAD,
        threads: int = 1,
    ) -> Instruction:
        """The instruction with these bodies of `template` and `implementation`."""
        plain, implementation = (PrimFunc(name, params, body) for body in (template, code))
        return Instruction(name, plain, implementation, memory or {}, participants, threads)

    def __post_init__(self) -> None:
        mine = [(b.dtype, b.shape) for b in self.template.buffers]
        implementation_params = [(b.dtype, b.shape) for b in self.implementation.buffers]
        scalars = len(self.template.scalars) == len(self.implementation.scalars)
        if mine != implementation_params or not scalars:
            raise ScheduleError(
                f"template and implementation of {self.name!r} have other parameters",
                where=f"Instruction({self.name!r})",
                hint="the same buffers, of the same shapes, in the same order",
            )
