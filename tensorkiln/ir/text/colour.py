"""ANSI colours for script text on a terminal."""

from __future__ import annotations

import io
import keyword
import token
import tokenize
from typing import TextIO

from tensorkiln.base.terminal import wants_colour

_RESET = "\x1b[0m"
_COLOURS = {token.STRING: "\x1b[32m", token.NUMBER: "\x1b[36m", token.COMMENT: "\x1b[90m"}
_KEYWORD, _DIALECT = "\x1b[35m", "\x1b[34m"


def coloured(text: str) -> str:
    """`text` with ANSI colours for keywords, literals, comments, and the names T and R."""
    lines = text.split("\n")
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for i in range(len(tokens) - 1, -1, -1):
        kind, word, (row, start), (last, end), _ = tokens[i]
        colour = _COLOURS.get(kind)
        if kind == token.NAME:
            dialect = word in ("T", "R") and tokens[i + 1].string == "."
            colour = _KEYWORD if keyword.iskeyword(word) else _DIALECT if dialect else None
        if colour is not None and row == last:
            line = lines[row - 1]
            lines[row - 1] = f"{line[:start]}{colour}{line[start:end]}{_RESET}{line[end:]}"
    return "\n".join(lines)


def coloured_for(file: TextIO, text: str) -> str:
    """`text`, in colour when `file` is a terminal that wants it."""
    return coloured(text) if wants_colour(file) else text
