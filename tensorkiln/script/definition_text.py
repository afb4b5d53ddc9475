"""The text around a decorated definition: of its file, or of what Python was given to run instead.

`linecache` knows files, and what notebooks and Python from 3.13 on keep of what is typed. A program
of `python -c` is in the arguments of the process. One of standard input is in that file or, if it
is a pipe, in the buffer from which the C library has handed it out. Lines that were typed are in
the history of readline. Text that is not of a file counts only if it compiles to the very code that
runs.
"""

from __future__ import annotations
import __future__

import ctypes
import linecache
import os
import re
import stat
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import CodeType, FrameType

from tensorkiln.base.errors import UserError
from tensorkiln.script.source import Source

_COMMAND, _INPUT = "<string>", "<stdin>"
_MOST_LINES = 1024  # that were typed and are searched
_MOST_STARTS = 8  # lines that are not indented, in one statement
_MOST_BYTES = 1 << 16  # of a buffer of standard input
_BUFFER_FIELDS = (7, 8)  # _IO_buf_base and _IO_buf_end of glibc's public struct _IO_FILE, in words


def text_around(frame: FrameType) -> Source:
    """The text of the code that a frame runs. Raises UserError (code `script`) where there is none,
    saying why."""
    file, code = frame.f_code.co_filename, frame.f_code
    lines = linecache.getlines(file, frame.f_globals)
    if not lines:
        of_code = getattr(linecache, "_getlines_from_code", None)  # Python 3.13
        lines = of_code(code) if of_code is not None else []
    if lines:
        return Source("".join(lines), file)
    for text, mode in _texts(file):
        if _compiles_to(text, file, mode, code):
            return Source(text, file)
    raise UserError(
        f"the source text is not available{_reason(file)}",
        code="script",
        where=file,
        hint="write it to a file that Python runs, or use from_source(text)",
    )


def _texts(file: str) -> Iterator[tuple[str, str]]:
    """What may be the text of code without a file, and how Python compiles it."""
    if file == _COMMAND:
        text = command_of(sys.orig_argv)
        if text is not None:
            yield text, "exec"
            yield textwrap.dedent(text), "exec"  # as Python 3.14 does
    elif file == _INPUT and _is_typed():
        yield from ((text, "single") for text in _typed_texts())
    elif file == _INPUT:
        yield from ((text, "exec") for text in _input_texts())


def _reason(file: str) -> str:
    if file == _INPUT and _is_typed():
        return ": this Python does not keep what is typed (3.13 does, and so does IPython)"
    if file == _INPUT:
        return ": what came from standard input, which is no file, cannot be read again"
    return ""


def _compiles_to(text: str, file: str, mode: str, code: CodeType) -> bool:
    """Whether the text is that of a piece of code. Annotations may be a future feature of what was
    typed before."""
    for flags in (0, __future__.annotations.compiler_flag):
        with suppress(SyntaxError, ValueError):
            compiled = compile(text, file, mode, flags, dont_inherit=True)
            if any(c == code for c in _codes(compiled)):
                return True
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and all code within it: of functions, classes and comprehensions."""
    yield code
    for c in code.co_consts:
        if isinstance(c, CodeType):
            yield from _codes(c)


def command_of(arguments: Sequence[str]) -> str | None:
    """The program of `python -c`, of the arguments of Python itself; None for another command."""
    words = iter(arguments[1:])
    for word in words:
        if word == "--check-hash-based-pycs":
            next(words, None)
        elif not word.startswith("-") or word == "-":
            return None
        elif not word.startswith("--"):
            for i, letter in enumerate(word[1:], 2):
                if letter == "c":
                    return word[i:] or next(words, None)
                if letter == "m":
                    return None
                if letter in "WX":  # with a value, in this word or the next
                    if not word[i:]:
                        next(words, None)
                    break
    return None


def _is_typed() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _input_texts() -> Iterator[str]:
    """What standard input may have held, which Python has read to its end: all of a regular file;
    of a pipe what is left in the C library's buffer, up to the end of each line, the last first."""
    with suppress(OSError, UnicodeDecodeError):
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            yield os.pread(0, status.st_size, 0).decode("utf-8-sig")
            return
    buffer = _input_buffer().partition(b"\0")[0]
    ends = [len(buffer), *(m.end() for m in re.finditer(rb"\n", buffer))]
    for end in sorted(set(ends), reverse=True):
        yield buffer[:end].decode("utf-8-sig", "replace")


def _input_buffer() -> bytes:
    """The memory of glibc's buffer of standard input; empty for another C library. A read at the
    end of a pipe leaves in it what the read before has brought."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return b""
    stream = ctypes.c_void_p.in_dll(library, "stdin")
    words = ctypes.cast(stream, ctypes.POINTER(ctypes.c_void_p))
    start, end = (words[i] or 0 for i in _BUFFER_FIELDS)
    return ctypes.string_at(start, end - start) if 0 < end - start <= _MOST_BYTES else b""


def _typed_texts() -> Iterator[str]:
    """Texts that may be a statement as it was typed, the last first: from each unindented line to
    one of the next, because decorators, `else` and brackets do not end a statement."""
    history = sys.modules.get("readline")
    count = history.get_current_history_length() if history is not None else 0
    first = max(0, count - _MOST_LINES)
    lines = [history.get_history_item(i + 1) or "" for i in range(first, count)]  # type: ignore[union-attr]
    starts = [i for i, line in enumerate(lines) if line[:1].strip()]
    for k in range(len(starts) - 1, -1, -1):
        for end in [*starts[k + 1 :], len(lines)][:_MOST_STARTS]:
            yield "\n".join([*lines[starts[k] : end], ""])


__all__ = ["command_of", "text_around"]
