"""Carry exceptions of Python callbacks through compiled code to the caller of the library."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable
from typing import Any

from tensorkiln.base.errors import UserError

_COMPARED_BYTES = 900  # bytes of a message that are compared; the library truncates it to 1023
# .error: the exception that is passing through a library; .sentence: the message that C was given
passing = threading.local()
_CALLS_TO_RECORD = 12  # nested Python calls that a callback needs to record an exception


def keep_raised(error: BaseException) -> bytes:
    """Keep an exception for `raised_in_callback`; return its message for C, `b"KeyError: 'x'"`."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # raised by its __str__; the original exception is the one to pass on
        text = type(error).__name__
    sentence = text.encode(errors="replace").replace(b"\0", b"?")  # ends a C string
    passing.error, passing.sentence = error, sentence
    return sentence


def tell_raised(dll: Any, error: BaseException, note: Callable[[], str] | None = None) -> None:
    """Keep an exception, with a note, and give its message to the library `dll`.

    Python counts nested calls of C apart from its own from 3.12 on, so that there may be none left
    where `need_room` found room: then that RecursionError is kept.
    """
    try:
        if note:
            error.add_note(note())
        dll.kiln_set_last_error(keep_raised(error))
    except RecursionError as no_room:
        passing.error, passing.sentence = no_room, b""


def need_room(calls: int = _CALLS_TO_RECORD) -> None:
    """Raise RecursionError if fewer than `calls` nested calls are left before Python's limit.

    A callback checks this first: later there might be no room to call `keep_raised`. It stores this
    RecursionError in `passing` directly, without a call.
    """
    if calls:
        need_room(calls - 1)


def raised_in_callback(sentence: bytes) -> BaseException:
    """The exception to raise for a call that failed in a callback.

    If a Python function of this thread raised it, it is that very object. For a callback in another
    language it is a built-in exception of the type that the message names, such as
    `ValueError: ...`, else a UserError (code `callback`).
    """
    error: BaseException | None = getattr(passing, "error", None)
    passing.error = None
    # The kept one may be stale, if another host of the library handled it: compare the messages.
    if error is not None and sentence.startswith(passing.sentence[:_COMPARED_BYTES]):
        return error
    text = sentence.decode(errors="replace")
    kind, _, message = text.partition(": ")
    named = getattr(builtins, kind, None)
    if isinstance(named, type) and issubclass(named, Exception):
        return named(message)
    return UserError(text, code="callback")
