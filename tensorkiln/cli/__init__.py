"""The `kiln` command: one file per sub-command, each a thin layer over the public functions."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from tensorkiln.base.interrupts import INTERRUPTED, report_interrupt

__all__ = ["main"]

# Objects that a command makes between two searches for garbage, in a process of its own. The nodes
# of programs refer to each other in one direction, so there is next to none.
_MANY_OBJECTS = 100_000


def main(argv: Sequence[str] | None = None) -> int:
    """See `tensorkiln.cli.entry.main`. The commands are imported here, so that an interrupt during
    the imports is reported as one, too, and so is one that finds `entry.main` at its first or last
    lines, outside of its own handlers."""
    try:
        if argv is None:
            gc.set_threshold(_MANY_OBJECTS)
        from tensorkiln.cli import entry

        code = entry.main(argv)
    except KeyboardInterrupt as interrupt:
        code = report_interrupt(interrupt)
    if code == INTERRUPTED:
        # If KeyboardInterrupt was raised inside an `exec` of text (dataclasses use it when they are
        # defined), Python ends by SIGINT whatever the exit code, until another `exec` is run.
        exec("")
    return code
