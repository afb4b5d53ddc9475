"""The `kiln` command: one file per sub-command, each a thin layer over the public functions."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence

from tensorkiln.base.interrupts import Terminated

__all__ = ["INTERRUPTED", "main", "report_interrupt"]

# The exit codes of shells: of Ctrl-C, and what is added to the number of another signal.
INTERRUPTED, _SIGNALLED = 130, 128
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


def report_interrupt(interrupt: KeyboardInterrupt) -> int:
    """Say on standard error what ended the command, and return the exit code."""
    if not isinstance(interrupt, Terminated):
        print("kiln: interrupted", file=sys.stderr)
        return INTERRUPTED
    number = interrupt.args[0]
    print(f"kiln: ended by {signal.Signals(number).name}", file=sys.stderr)
    return _SIGNALLED + int(number)
