"""Standard output: with colours and folded to the terminal's width for people, or as one document.

Tables, reports and listings are coloured here, source text by Pygments if it is installed. Output
that does not go to a terminal is not folded, and has no colours unless they are asked for.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from json import dumps as json_text
from typing import Any, TextIO, cast

from tensorkiln.base.errors import InternalError, TensorkilnError, UnsupportedError, UserError
from tensorkiln.base.record import plain
from tensorkiln.base.terminal import escaped, wants_colour, width_of, write_styled
from tensorkiln.base.version import VERSION
from tensorkiln.cli.fold import fold

_MOST = 1 << 21  # characters that are coloured by Pygments, which takes seconds for more
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


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--color`, which every command has."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of text"
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        metavar="WHEN",
        help="auto (default: on a terminal, where NO_COLOR is not set), always, never",
    )


class Screen:
    """What a command answers, on standard output.

    For people: reports and listings, in colours as `choice` (auto, always, never) and the terminal
    allow. For programs (`json`): the document that the command has given, which `write_document`
    writes when the command has ended, so that an error afterwards takes its place.

    `names`: path -> the name by which people know that file.
    """

    def __init__(self, choice: str = "auto", *, json: bool = False, command: str = ""):
        self.json, self.command = json, command
        self.width = width_of(sys.stdout)
        self.names: dict[str, str] = {}
        self._document: dict[str, object] | None = None
        self.configure(choice)

    def configure(self, choice: str) -> None:
        """Have colours as `choice` says from here on."""
        self.choice, self.painted = choice, wants_colour(sys.stdout, choice)

    @contextmanager
    def only_documents(self) -> Iterator[None]:
        """If the answer is a document, what plugins print meanwhile goes to standard error."""
        before = sys.stdout
        try:
            sys.stdout = sys.stderr if self.json else before
            yield
        finally:
            sys.stdout = before

    @property
    def answered(self) -> bool:
        """Whether the command has given a document."""
        return self._document is not None

    def answer(self, data: Callable[[], Mapping[str, object]], text: Callable[[], str]) -> None:
        """Answer with `data` as a document, or with `text` as a report."""
        if self.json:
            self.document(data())
        else:
            self.report(text())

    def document(self, data: Mapping[str, object]) -> None:
        """Answer with `data`; nothing where the answer is for people."""
        if self.json:
            self._document = dict(data)

    def fail(self, error: Exception) -> None:
        """Answer with an error, which is already told on standard error."""
        if not isinstance(error, TensorkilnError):
            error = InternalError(f"{type(error).__name__}: {error}")
        fields = ("code", "message", "where", "hint")
        document: dict[str, object] = {name: getattr(error, name) for name in fields}
        if isinstance(error, UnsupportedError):
            document["issues"] = error.issues
        self._document = {"error": document}

    def write_document(self) -> None:
        """Write the document, if JSON was asked for."""
        if self.json and self._document is not None:
            whole = {"command": self.command, "version": VERSION, **self._document}
            print(json_text(self.named(plain(whole)), indent=1, allow_nan=False))

    def named(self, value: Any) -> Any:
        """`value`, or a copy of it in which files have the names by which people know them."""
        if isinstance(value, str):
            for path, name in self.names.items():
                value = value.replace(path, name)
            return value
        if self.names and isinstance(value, Mapping):
            return {self.named(k): self.named(v) for k, v in value.items()}
        if self.names and isinstance(value, list | tuple):
            return [self.named(v) for v in value]
        return value

    def report(self, text: str) -> None:
        """Print a report: headings, and tables that are indented."""
        text = self._fitted(escaped(self.named(text)))
        write_styled(sys.stdout, f"{paint_report(text) if self.painted else text}\n")

    def shown(self, pieces: Iterable[str], language: str = "") -> None:
        """Print the text of an inspector in the colours of its language. Without a language, the
        text is a table."""
        is_table = language in ("", "report")
        if is_table and self.width:  # how a column is folded depends on all of its rows
            pieces = ["".join(pieces)]
        for i, piece in enumerate(pieces):
            text = self.named(piece)
            text = escaped(text) if self.width or language == "report" else text
            if is_table:
                text = self._fitted(text, table=not language)
            if self.painted:
                text = paint_source(text, language) if language else paint_table(text, head=i == 0)
            write_styled(sys.stdout, text)

    def raw(self, content: Iterable[bytes | memoryview]) -> None:
        """Write bytes as they are. UserError (code `terminal`) if standard output is a terminal,
        whose cursor and title they could move and set."""
        if sys.stdout.isatty():
            raise UserError(
                "bytes are not written to a terminal", code="terminal", hint="add > FILE, or | less"
            )
        sys.stdout.flush()
        for piece in content:
            cast(_Watched, sys.stdout).write_bytes(piece)

    def _fitted(self, text: str, *, table: bool = False) -> str:
        if not self.width:
            return text
        return fold(text, max(20, self.width), table=table)


def print_error(sentence: str, choice: str) -> None:
    """Print `kiln: error: ...` to standard error, in red up to and including `error:`."""
    sentence = escaped(sentence)
    head, colon, tail = sentence.partition("error:")
    if colon and wants_colour(sys.stderr, choice):
        sentence = f"{_RED}{head}{colon}{_PLAIN}{tail}"
    write_styled(sys.stderr, f"{sentence}\n")


class ReaderGone(Exception):
    """Standard output cannot be written to; the argument is the OSError that says why."""


class _Watched:
    """A standard stream whose reader may close it. The first failing write redirects it to
    /dev/null, so that nothing fails later, as at exit. It raises ReaderGone if `needed`; else it
    is ignored, and the command goes on. Control characters are written as escapes, whoever prints
    them: in messages always, in answers on a terminal, since a file gets what was asked for."""

    def __init__(self, stream: TextIO, needed: bool):
        self._stream, self._needed = stream, needed
        self._escapes = not needed or stream.isatty()

    def write(self, text: str) -> int:
        """Write `text`; characters that the encoding lacks are written as escapes."""
        self.write_styled(escaped(text) if self._escapes else text)
        return len(text)

    def write_styled(self, text: str) -> int:
        """The same of text of which all escape sequences are ours."""
        try:
            return self._write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def _write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:  # from names of files, and arguments of the command line
            encoded = text.encode(self._stream.encoding, "backslashreplace")
            return self._stream.write(encoded.decode(self._stream.encoding))

    def write_bytes(self, content: bytes | memoryview) -> None:
        """Write bytes to the stream's buffer; errors are treated as in `write`."""
        try:
            self._stream.buffer.write(content)
        except OSError as error:
            self._drop(error)

    def flush(self) -> None:
        """Flush the stream; errors are treated as in `write`."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if self._needed:
            raise ReaderGone(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Set the standard streams up for a command. Closed ones are opened on /dev/null, so that no
    other file gets their descriptors; standard output read-only, so that writing to it still fails.
    Failing writes raise ReaderGone on standard output, and are ignored on standard error."""
    for number, name, flags, mode in (
        (0, "stdin", os.O_RDONLY, "r"),
        (1, "stdout", os.O_RDONLY, "w"),
        (2, "stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have characters its encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _Watched(sys.stdout, needed=True))
    sys.stderr = cast(TextIO, _Watched(sys.stderr, needed=False))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


# -- paint -------------------------------------------------------------------------------------


def _in(colour: str) -> Callable[[re.Match[str]], str]:
    return lambda m: f"{colour}{m[0]}{_PLAIN}"


def paint_report(text: str) -> str:
    """Colour a report: headings bold, first columns cyan, bars yellow."""
    text = _HEADING.sub(_in(_BOLD), text)
    text = _FIRST.sub(rf"\1{_CYAN}\2{_PLAIN}", text)
    return _PICTURE.sub(_in(_YELLOW), text)


def paint_table(text: str, *, head: bool) -> str:
    """Colour a piece of a table: bars yellow, and with `head` the first line bold."""
    if not head:
        return _PICTURE.sub(_in(_YELLOW), text)
    first, end, body = text.partition("\n")
    return f"{_BOLD}{first}{_PLAIN}{end}{paint_table(body, head=False)}"


def paint_code(text: str) -> str:
    """Colour a listing of `disassemble`: function names bold, addresses and notes grey, mnemonics
    cyan."""
    text = _CODE_HEAD.sub(rf"{_BOLD}\1{_PLAIN}:", text)
    text = _INSTRUCTION.sub(rf"{_GREY}\1{_PLAIN}  {_CYAN}\2{_PLAIN}", text)
    return _NOTE.sub(_in(_GREY), text)


def paint_bytes(text: str) -> str:
    """Colour a hexdump: offsets cyan, zero bytes grey, text yellow."""

    def line(m: re.Match[str]) -> str:
        data = _ZEROS.sub(_in(_GREY), m[2])
        letters = f"{_YELLOW}{m[3]}{_PLAIN}" if m[3] else ""
        return f"{_CYAN}{m[1]}{_PLAIN}{data}{letters}"

    return _DUMP.sub(line, text)


_OWN = {"code": paint_code, "hexdump": paint_bytes, "report": paint_report}


def paint_source(text: str, language: str) -> str:
    """`text` in the colours of its language; unchanged if it is longer than _MOST, Pygments is not
    installed, or Pygments does not know the language."""
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
