"""Exceptions of Python functions on their way through compiled code."""

from __future__ import annotations

import builtins
import threading

from tensorkiln.base.errors import UserError

_SHOWN = 900  # the library keeps about so many bytes of a sentence
# .error: the exception that is passing through a library; .sentence: how what C was told begins
passing = threading.local()
_ROOM = 12  # calls below a function that C calls: enough to say what was raised there


def keep_raised(error: BaseException) -> bytes:
    """Remember an exception until the outermost call returns; the sentence for C."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # of its own __str__: this one is the error that passes
        text = type(error).__name__
    sentence = text.encode(errors="replace").replace(b"\0", b"?")  # which would end it
    passing.error, passing.sentence = error, sentence
    return sentence


def need_room(calls: int = _ROOM) -> None:
    """RecursionError where so few calls are left that an exception could not be kept later. What
    C calls asks this first, and keeps it by `passing` without any call."""
    if calls:
        need_room(calls - 1)


def raised_in_callback(sentence: bytes) -> BaseException:
    """The exception that made a call fail: the very one that a Python function raised here, or,
    for a function of another language, one of the kind that its error names."""
    error: BaseException | None = getattr(passing, "error", None)
    passing.error = None
    # Another host of the library may have dealt with an earlier one: the sentence tells.
    if error is not None and sentence.startswith(passing.sentence[:_SHOWN]):
        return error
    text = sentence.decode(errors="replace")
    kind, _, message = text.partition(": ")
    named = getattr(builtins, kind, None)
    if isinstance(named, type) and issubclass(named, Exception):
        return named(message)
    return UserError(text, code="callback")
