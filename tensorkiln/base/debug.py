"""What each level of `KILN_DEBUG` prints on standard error."""

from __future__ import annotations

import sys

from tensorkiln.base.config import read_config

# Levels are cumulative: level 3 also prints what levels 1 and 2 print.
LADDER: tuple[tuple[int, str], ...] = (
    (1, "every pass with its time; why kernels are not in the cache; tracebacks with errors"),
    (2, "what each pass changed, as a diff of the script"),
    (3, "the sources that are emitted: LLVM IR of kernels, C of the entry file"),
    (4, "every rewrite rule that fired, and where"),
    (5, "the commands of the tool chain"),
)
PASSES, CHANGES, SOURCES, RULES, COMMANDS = (level for level, _ in LADDER)


def wants(level: int) -> bool:
    """Whether `KILN_DEBUG` is now at least `level`; the environment is read on each call."""
    return read_config().debug >= level


def say(level: int, text: str) -> None:
    """Print `text` on standard error, in one write, if `KILN_DEBUG` is at least `level`."""
    if wants(level):
        sys.stderr.write(f"kiln[{level}] {text.rstrip()}\n")
        sys.stderr.flush()
