"""The `kiln` command: one file per sub-command, each a thin layer over the public functions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

__all__ = ["main"]

# Objects that a command makes between two searches for garbage, in a process of its own. The nodes
# of programs refer to each other in one direction, so there is next to none.
_MANY_OBJECTS = 100_000


def main(argv: Sequence[str] | None = None) -> int:
    """See `tensorkiln.cli.entry.main`. The commands are imported here, so that Ctrl-C during the
    imports is reported as an interrupt too."""
    if argv is None:
        gc.set_threshold(_MANY_OBJECTS)
    try:
        from tensorkiln.cli import entry
    except KeyboardInterrupt:
        print("kiln: interrupted", file=sys.stderr)
        code = 130
    else:
        code = entry.main(argv)
    if code == 130:
        # If KeyboardInterrupt was raised inside an `exec` of text (dataclasses use it when they are
        # defined), Python ends by SIGINT whatever the exit code, until another `exec` is run.
        exec("")
    return code
