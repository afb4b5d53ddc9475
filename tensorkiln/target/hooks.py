"""Hooks of a target kind: functions that other parts of the compiler call for targets of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from tensorkiln.base.errors import UserError

# The callers import this module, so naming the types they use would be a circular import.
Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of a kind, all optional. Each is called with the Target, whose host is set.

    `relax_pipeline(target, externals)`, `tir_pipeline(target)`: return the pipeline that `"auto"`
    means for this kind; `externals` are those that the user gave to `compile`.
    `pre_codegen(target)`: returns a pass or passes that run last, unless the user passes
    `tir_pipeline=None`.
    `relax_codegen(target)`: returns code generators for whole operators, a sequence of `External`.
    `tir_codegen(target, functions)`: returns artifacts that define every PrimFunc in `functions`,
    such as C sources or objects.
    `linker(target)`: returns the `fcompile` that links libraries if the user gives none.
    """

    pre_codegen: Hook | None = None
    relax_pipeline: Hook | None = None
    tir_pipeline: Hook | None = None
    relax_codegen: Hook | None = None
    tir_codegen: Hook | None = None
    linker: Hook | None = None

    def check(self, place: str) -> None:
        """Raise UserError (code `bad-kind`) for a hook that is not callable."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not callable(value):
                raise UserError(
                    f"{field.name} is {value!r}, expected a function", code="bad-kind", where=place
                )
