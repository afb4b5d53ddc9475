"""What a pass is, and what those who watch a pipeline are told.

A pass is a callable IRModule -> IRModule that answers the same object when nothing changed. One
without options is a plain function; one with options is a frozen dataclass whose fields they are,
`AssignLayouts(target)`. Both go by the function-style name, `assign_layouts`, in dumps and tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tensorkiln.ir.module import IRModule

Pass = Callable[[IRModule], IRModule]
Pipeline = str | Pass | Sequence[Pass] | None


def pass_name(p: Pass) -> str:
    """The name of a pass: its function's, or its class's in the style of a function."""
    if isinstance(p, partial):
        return pass_name(p.func)
    name = getattr(p, "__name__", None)
    if name is not None:
        return str(name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(p).__name__).lower()


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of one compile. `number` counts the passes of all its pipelines from 1; `after` is
    None and `seconds` 0 until the pass has run."""

    number: int
    pipeline: str
    name: str
    before: IRModule
    after: IRModule | None = None
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        """Whether the pass answered another module."""
        return self.after is not None and self.after is not self.before


class Instrument(Protocol):
    """Watches the passes of a compile: `tk.compile(mod, instruments=[...])`.

    Write a subclass, or any class with these two methods. What they raise ends the compile,
    as a UserError with that as its cause.
    """

    def before(self, step: Step) -> None:
        """The pass is about to run."""
        return

    def after(self, step: Step) -> None:
        """The pass has run; not called when it raised."""
        return
