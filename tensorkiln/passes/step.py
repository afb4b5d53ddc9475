"""Pass and Pipeline types, the Step that describes one run of a pass, and Instrument.

A pass is a callable IRModule -> IRModule that returns the same object when nothing changed. A pass
without options is a plain function; a pass with options is a frozen dataclass whose fields are the
options: `AssignLayouts(target)`. In dumps and tables both have a function-style name:
`assign_layouts`.
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
    """The name of the pass's function, or of its class in snake case; `partial` is unwrapped."""
    if isinstance(p, partial):
        return pass_name(p.func)
    name = getattr(p, "__name__", None)
    if name is not None:
        return str(name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(p).__name__).lower()


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a pass. `number` counts the passes of all pipelines of a compile from 1; `after`
    is None and `seconds` 0 until the pass has run."""

    number: int
    pipeline: str
    name: str
    before: IRModule
    after: IRModule | None = None
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        """Whether the pass returned another module object."""
        return self.after is not None and self.after is not self.before


class Instrument(Protocol):
    """Watches the passes of a compile: `tk.compile(mod, instruments=[...])`.

    Write a subclass, or any class with these two methods. An exception in them ends the compile:
    as the cause of a UserError (code `plugin-failed`), unless it is one of Tensorkiln's errors.
    """

    def before(self, step: Step) -> None:
        """Called before the pass runs."""
        return

    def after(self, step: Step) -> None:
        """Called when the pass has run; not if it raised."""
        return
