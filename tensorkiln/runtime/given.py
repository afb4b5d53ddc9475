"""What callers give, without trusting what it says of itself."""

from __future__ import annotations

from typing import Any

from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError


def is_a(value: object, *kinds: type) -> bool:
    """isinstance() by the type that it has: `__class__` of an object may say anything, or raise."""
    return issubclass(type(value), kinds)


def shown(number: Any) -> str:
    """A number of any size for a message: str() of very large ones is an error."""
    large = is_a(number, int) and int.bit_length(number) > 1024
    return "an integer of more digits" if large else f"{number!s:.80}"


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
            f"{what} must be text that UTF-8 can say, received {_short(text)}: "
            f"character {error.start} is half of a pair",
            code="bad-text",
        ) from None


def name_bytes(name: object, what: str) -> bytes:
    """As `text_bytes`; C ends names with a zero byte, so that one with such a byte in it is an
    ArgumentValueError."""
    data = text_bytes(name, what)
    if b"\0" in data:
        message = f"{what} must be a name without zero bytes, received {_short(name)}"
        raise ArgumentValueError(message, code="bad-text")
    return data


def _short(text: Any) -> str:
    found = str.__repr__(text)
    return found if len(found) <= 80 else f"{found[:76]}..."
