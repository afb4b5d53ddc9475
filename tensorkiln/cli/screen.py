"""Standard output as a person sees it: the colours and the width that a terminal has.

Our own tables are painted here, sources by Pygments where it is installed. What is no terminal gets
every letter and no escape sequence.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Iterable

from tensorkiln.base.terminal import wants_colour, width_of

_MOST = 1 << 21  # letters; lexers take seconds for more
_BOLD, _RED, _CYAN, _YELLOW, _GREY, _PLAIN = (
    f"\x1b[{n}m" for n in ("1", "1;31", "36", "33", "90", "0")
)
_HEADING = re.compile(r"^(?=\S)(.+)$", re.M)
_FIRST = re.compile(r"^(  )(\S+(?: \S+)*)(?=  |$)", re.M)
_PICTURE = re.compile(r"[▏▎▍▌▋▊▉▁▂▃▄▅▆▇█][ ▁▂▃▄▅▆▇█▏▎▍▌▋▊▉]*")
_NOTE = re.compile(r"^# .*$|  # .*$", re.M)
_CODE_HEAD = re.compile(r"^(\S[^\n]*):(?=  # )", re.M)
_INSTRUCTION = re.compile(r"^( *[0-9a-f]+)  (\S+)", re.M)
_DUMP = re.compile(r"^([0-9a-f]{8,})((?:  .*?)?)(  \|.*\|)?$", re.M)
_ZEROS = re.compile(r"(?<![0-9a-f])00(?:  ?00)*(?![0-9a-f])")
# A file that is shown must not move the cursor, or change the title of the window.
_CONTROL = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}


def add_colour(parser: argparse.ArgumentParser) -> None:
    """`--color`, of every command."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        metavar="WHEN",
        help="auto (default: on a terminal, where NO_COLOR is not set), always, never",
    )


class Screen:
    """Where a command's words go."""

    def __init__(self, choice: str = "auto"):
        if isinstance(sys.stdout, io.TextIOWrapper):  # names may be what its encoding lacks
            sys.stdout.reconfigure(errors="backslashreplace")
        self.painted = wants_colour(sys.stdout, choice)
        self.width = width_of(sys.stdout)

    def report(self, text: str, *, cut: bool = False) -> None:
        """A report: headings, and tables that are indented. With `cut` lines end where the
        terminal does, with `…`."""
        text = self._fitted(text) if cut else text
        print(paint_report(text) if self.painted else text)

    def shown(self, pieces: Iterable[str], language: str = "") -> None:
        """What an inspector says, in the colours of its language; without one it is a table, whose
        lines end where the terminal does."""
        for i, piece in enumerate(pieces):
            text = piece.translate(_CONTROL) if self.width else piece
            if language in ("", "report"):
                text = self._fitted(text)
            if self.painted:
                text = paint_source(text, language) if language else paint_table(text, head=i == 0)
            sys.stdout.write(text)

    def _fitted(self, text: str) -> str:
        if not self.width:
            return text
        most = max(20, self.width)
        lines = text.translate(_CONTROL).split("\n")
        return "\n".join(x if len(x) <= most else f"{x[: most - 1]}…" for x in lines)


def print_error(sentence: str, choice: str) -> None:
    """`kiln: error: ...` on standard error; what is before the last `:` of that in red."""
    head, colon, rest = sentence.partition("error:")
    if colon and wants_colour(sys.stderr, choice):
        sentence = f"{_RED}{head}{colon}{_PLAIN}{rest}"
    print(sentence, file=sys.stderr)


def leave_quietly() -> None:
    """The reader of our output (`| head`) has gone: what is left of it goes nowhere, and nobody
    complains of that at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


# -- paint -------------------------------------------------------------------------------------


def _in(colour: str) -> Callable[[re.Match[str]], str]:
    return lambda m: f"{colour}{m[0]}{_PLAIN}"


def paint_report(text: str) -> str:
    """Headings bold, the first column in a colour, pictures too."""
    text = _HEADING.sub(_in(_BOLD), text)
    text = _FIRST.sub(rf"\1{_CYAN}\2{_PLAIN}", text)
    return _PICTURE.sub(_in(_YELLOW), text)


def paint_table(text: str, *, head: bool) -> str:
    """A piece of a table; its head is bold."""
    if not head:
        return _PICTURE.sub(_in(_YELLOW), text)
    first, end, rest = text.partition("\n")
    return f"{_BOLD}{first}{_PLAIN}{end}{paint_table(rest, head=False)}"


def paint_code(text: str) -> str:
    """Instructions as `disassemble` lists them: names of functions bold, places and notes grey."""
    text = _CODE_HEAD.sub(rf"{_BOLD}\1{_PLAIN}:", text)
    text = _INSTRUCTION.sub(rf"{_GREY}\1{_PLAIN}  {_CYAN}\2{_PLAIN}", text)
    return _NOTE.sub(_in(_GREY), text)


def paint_bytes(text: str) -> str:
    """A hexdump: places in a colour, zeros and letters grey."""

    def line(m: re.Match[str]) -> str:
        data = _ZEROS.sub(_in(_GREY), m[2])
        letters = f"{_YELLOW}{m[3]}{_PLAIN}" if m[3] else ""
        return f"{_CYAN}{m[1]}{_PLAIN}{data}{letters}"

    return _DUMP.sub(line, text)


_OWN = {"code": paint_code, "hexdump": paint_bytes, "report": paint_report}


def paint_source(text: str, language: str) -> str:
    """`text` in the colours of its language; as it is where Pygments is missing or has no such
    language."""
    if language in _OWN:
        return _OWN[language](text)
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
