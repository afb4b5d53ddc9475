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
        return 130
    return entry.main(argv)
