"""The `kiln` command: one file per sub-command, each a thin shell over the public functions."""

from tensorkiln.cli.entry import main

__all__ = ["main"]
