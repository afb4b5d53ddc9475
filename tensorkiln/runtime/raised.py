"""Exceptions of Python functions on their way through compiled code."""

from __future__ import annotations

import builtins
import threading

from tensorkiln.base.errors import UserError

_SHOWN = 900  # the library keeps about so many bytes of a sentence
_passing = threading.local()  # .error: the exception that is passing through a library


def keep_raised(error: BaseException) -> bytes:
    """Remember an exception until the outermost call returns; the sentence for C."""
    sentence = f"{type(error).__name__}: {error}".encode(errors="replace")
    _passing.error, _passing.sentence = error, sentence
    return sentence


def raised_in_callback(sentence: bytes) -> BaseException:
    """The exception that made a call fail: the very one that a Python function raised here, or,
    for a function of another language, one of the kind that its error names."""
    error: BaseException | None = getattr(_passing, "error", None)
    _passing.error = None
    # Another host of the library may have dealt with an earlier one: the sentence tells.
    if error is not None and sentence.startswith(_passing.sentence[:_SHOWN]):
        return error
    text = sentence.decode(errors="replace")
    kind, _, message = text.partition(": ")
    named = getattr(builtins, kind, None)
    if isinstance(named, type) and issubclass(named, Exception):
        return named(message)
    return UserError(text, code="callback")
