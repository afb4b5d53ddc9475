"""Colours for terminals: of our own tables, and by Pygments, where it is installed, of sources."""

from __future__ import annotations

import argparse
import re
import sys

_MOST = 1 << 21  # letters; lexers take seconds for more
_BOLD, _CYAN, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[33m", "\x1b[0m"
_HEADING = re.compile(r"^(?=\S)(.+)$", re.M)
_FIRST = re.compile(r"^(  )(\S+(?: \S+)*)(?=  |$)", re.M)
_PICTURE = re.compile(r"[▁▂▃▄▅▆▇█][ ▁▂▃▄▅▆▇█]*")


def add_colour(parser: argparse.ArgumentParser) -> None:
    """`--color`."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colours in the output; auto (default): on a terminal",
    )


def wants_colour(choice: str) -> bool:
    """Whether standard output gets colours."""
    return choice == "always" or (choice == "auto" and sys.stdout.isatty())


def paint_report(text: str) -> str:
    """Headings bold, the first column in a colour, pictures too."""
    text = _HEADING.sub(rf"{_BOLD}\1{_PLAIN}", text)
    text = _FIRST.sub(rf"\1{_CYAN}\2{_PLAIN}", text)
    return _PICTURE.sub(lambda m: f"{_YELLOW}{m[0]}{_PLAIN}", text)


def paint_source(text: str, language: str) -> str:
    """`text` in the colours of its language; as it is where Pygments is missing or has no such
    language."""
    if len(text) > _MOST:
        return text
    try:
        from pygments import highlight
        from pygments.formatters import TerminalFormatter
        from pygments.lexers import get_lexer_by_name
        from pygments.util import ClassNotFound
    except ImportError:
        return text
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return text
    painted: str = highlight(text, lexer, TerminalFormatter())
    return painted


def paint_table(text: str, *, head: bool) -> str:
    """A piece of a table; its head is bold."""
    if not head:
        return _PICTURE.sub(lambda m: f"{_YELLOW}{m[0]}{_PLAIN}", text)
    first, end, rest = text.partition("\n")
    return f"{_BOLD}{first}{_PLAIN}{end}{paint_table(rest, head=False)}"
