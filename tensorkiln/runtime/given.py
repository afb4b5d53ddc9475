"""What callers give, without trusting what it says of itself."""

from __future__ import annotations

from typing import Any

from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError


def is_a(value: object, *kinds: type) -> bool:
    """isinstance() by the type that it has: `__class__` of an object may say anything, or raise."""
    return issubclass(type(value), kinds)


def text_bytes(text: object, what: str) -> bytes:
    """A string as a library takes it: UTF-8, and bytes that a library gave as they were.

    Raises ArgumentTypeError for what is no string, ArgumentValueError for half of a pair.
    """
    if not is_a(text, str):
        raise ArgumentTypeError(
            f"{what} must be a string, received {type(text).__name__}", code="argument-kind"
        )
    try:
        return str.encode(text, errors="surrogateescape")  # type: ignore[arg-type]
    except UnicodeEncodeError as error:
        raise ArgumentValueError(
            f"{what} must be text that UTF-8 can say, received {_shown(text)}: "
            f"character {error.start} is half of a pair",
            code="bad-text",
        ) from None


def name_bytes(name: object, what: str) -> bytes:
    """As `text_bytes`; C ends names with a zero byte, so that one with such a byte in it is an
    ArgumentValueError."""
    data = text_bytes(name, what)
    if b"\0" in data:
        message = f"{what} must be a name without zero bytes, received {_shown(name)}"
        raise ArgumentValueError(message, code="bad-text")
    return data


def _shown(text: Any) -> str:
    shown = str.__repr__(text)
    return shown if len(shown) <= 80 else f"{shown[:76]}..."
