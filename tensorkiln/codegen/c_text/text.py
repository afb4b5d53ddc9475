"""Pieces of C's text: literals of strings, comments, lines that are broken after commas."""

from __future__ import annotations

from collections.abc import Sequence


def comment(text: str) -> str:
    """`text` for use inside a C comment: one line of ASCII that does not end the comment."""
    text = text.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
    return text.replace("\n", " ").encode("ascii", "backslashreplace").decode()


def quote(text: str) -> str:
    """A C string literal. Bytes outside ASCII become octal escapes, which, unlike hexadecimal ones,
    have a fixed length and cannot absorb a digit that follows."""
    out = []
    for byte in text.encode():
        char = chr(byte)
        if char in '"\\':
            out.append(f"\\{char}")
        elif 32 <= byte < 127 and char != "?":  # "??" would start a trigraph
            out.append(char)
        else:
            out.append(f"\\{byte:03o}")
    return f'"{"".join(out)}"'


def wrap(head: str, items: Sequence[str], tail: str, width: int = 100) -> str:
    """`head` + items joined by commas + `tail`, continued under the first item."""
    indent = " " * min(len(head), 24)
    lines, line = [], head
    for i, item in enumerate(items):
        piece = item + (", " if i + 1 < len(items) else tail)
        if len(line) + len(piece.rstrip()) > width and line.strip() and line != head:
            lines.append(line.rstrip())
            line = indent
        line += piece
    if not items:
        line += tail
    return "\n".join([*lines, line.rstrip()])


def heading(title: str, width: int = 94, minimum: int = 4) -> str:
    """The comment above a part of a file; `width` is where its dashes end, `minimum` how many there
    are behind a long title."""
    head = f"/* ---- {comment(title)} "
    return f"{head}{'-' * max(minimum, width - len(head))} */\n"
