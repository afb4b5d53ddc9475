"""What a stream is to a person: a terminal, in colours, so many letters wide."""

from __future__ import annotations

import os
import shutil
from typing import TextIO


def is_terminal(stream: TextIO) -> bool:
    """Whether it shows lines to somebody and knows escape sequences (`TERM=dumb` knows none)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_colour(stream: TextIO, choice: str = "auto") -> bool:
    """`choice` is `always`, `never`, or `auto`: then NO_COLOR and FORCE_COLOR decide where they are
    set to anything (no-color.org, force-color.org), else terminals get colours."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def width_of(stream: TextIO) -> int:
    """Letters in a line; 0 where there is no end to them."""
    return shutil.get_terminal_size().columns if stream.isatty() else 0
