"""What a stream can show: whether it is a terminal, whether to use colour, and its width; what a
terminal must not be shown."""

from __future__ import annotations

import os
import re
from typing import TextIO


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that understands escape sequences (not `TERM=dumb`)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_colour(stream: TextIO, choice: str = "auto") -> bool:
    """Whether to colour what is written to `stream`; `choice` is `always`, `never` or `auto`.

    With `auto`, a non-empty NO_COLOR means no, else a non-empty FORCE_COLOR means yes
    (no-color.org, force-color.org), else a terminal gets colours.
    """
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def width_of(stream: TextIO) -> int:
    """Columns of the terminal, or what COLUMNS says of it; 0 (no limit) if `stream` is not a
    terminal, and 80 if it does not know."""
    if not stream.isatty():
        return 0
    columns = os.environ.get("COLUMNS", "")
    if re.fullmatch("[0-9]{1,6}", columns) and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # a stream that is not a file, or closed
        return 80


# Names come from models and files: they must not move the cursor, set the title of the window, or
# make text read in another order than it is written in.
_CONTROL = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}
_ORDER = {
    n: f"\\u{n:04x}"
    for n in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_ESCAPES = _CONTROL | _ORDER


def escaped(text: str) -> str:
    r"""`text` with control characters but newline and tab, and those that change the direction of
    text, as escapes: `\x1b`, `\u202e`."""
    return text.translate(_ESCAPES)


def write_styled(stream: TextIO, text: str) -> None:
    """Write text of which all escape sequences are ours: colours, and those that redraw a line. A
    stream that escapes what is written to it has the method `write_styled`."""
    write = getattr(stream, "write_styled", stream.write)
    write(text)
