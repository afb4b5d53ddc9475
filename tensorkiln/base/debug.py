"""The debug ladder: what each level of `KILN_DEBUG` prints on standard error."""

from __future__ import annotations

import sys

from tensorkiln.base.config import read_config

# A level prints what those below it print as well.
LADDER: tuple[tuple[int, str], ...] = (
    (1, "every pass with its time; tracebacks with errors"),
    (2, "what each pass changed, as a diff of the script"),
    (3, "the sources that are emitted: LLVM IR of kernels, C of the entry file"),
    (4, "every rewrite rule that fired, and where"),
    (5, "the commands of the tool chain"),
)
PASSES, CHANGES, SOURCES, RULES, COMMANDS = (level for level, _ in LADDER)


def wants(level: int) -> bool:
    """Whether `KILN_DEBUG` asks for this level now."""
    return read_config().debug >= level


def say(level: int, text: str) -> None:
    """Print on standard error, in one write, when `KILN_DEBUG` asks for this level."""
    if wants(level):
        sys.stderr.write(f"kiln[{level}] {text.rstrip()}\n")
        sys.stderr.flush()
