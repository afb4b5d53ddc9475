"""What a kind brings to the compiler: plain callables, stored here and called from above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from tensorkiln.base.errors import UserError

# The rooms that call these import this one, so their types cannot be named here.
Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Attributes of a kind; each is called with the Target, which has a host by then.

    `relax_pipeline(target, externals)`, `tir_pipeline(target)`: what `"auto"` means for this kind;
    `externals` are those that the user gave to `compile`.
    `pre_codegen(target)`: a pass or passes that run last, unless `tir_pipeline=None` was asked for.
    `relax_codegen(target)`: code generators for whole operators, a sequence of `External`.
    `tir_codegen(target, functions)`: artifacts (C sources or objects) that define every PrimFunc.
    `linker(target)`: the `fcompile` that links its libraries where the user gives none.
    """

    pre_codegen: Hook | None = None
    relax_pipeline: Hook | None = None
    tir_pipeline: Hook | None = None
    relax_codegen: Hook | None = None
    tir_codegen: Hook | None = None
    linker: Hook | None = None

    def check(self, where: str) -> None:
        """Raise UserError (code `bad-kind`) for an attribute that cannot be called."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not callable(value):
                raise UserError(
                    f"{field.name} is {value!r}, expected a function", code="bad-kind", where=where
                )
