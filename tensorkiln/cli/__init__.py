"""The `kiln` command: one file per sub-command, each a thin shell over the public functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """See `tensorkiln.cli.entry.main`. The commands load here, where Ctrl-C is expected already."""
    try:
        from tensorkiln.cli import entry
    except KeyboardInterrupt:
        print("kiln: interrupted", file=sys.stderr)
        code = 130
    else:
        code = entry.main(argv)
    if code == 130:
        # Python ends by SIGINT, whatever the code, where an interrupt left an `exec` of text, as
        # dataclasses do when they are made; the next `exec` makes it forget that one.
        exec("")
    return code
