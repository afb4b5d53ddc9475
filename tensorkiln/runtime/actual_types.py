"""Check arguments of callers by their actual type, ignoring what their class overrides."""

from __future__ import annotations

from typing import Any

from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError


def is_a(value: object, *kinds: type) -> bool:
    """isinstance() by type(value): the attribute `__class__` may lie, or raise."""
    return issubclass(type(value), kinds)


def shown(number: Any) -> str:
    """Text of a number for a message, at most 80 characters, that of a string in quotes; str()
    raises for huge integers."""
    if is_a(number, int) and int.bit_length(number) > 1024:
        return "an integer of more digits"
    return f"{number!r:.80}" if is_a(number, str) else f"{number!s:.80}"


def text_bytes(text: object, label: str) -> bytes:
    """A string as UTF-8. Bytes that a library returned and that are not UTF-8 are restored
    (`surrogateescape`).

    Raises ArgumentTypeError for anything but a string, ArgumentValueError for any other lone
    surrogate.
    """
    if not is_a(text, str):
        raise ArgumentTypeError(
            f"{label} must be a string, received {type(text).__name__}", code="argument-kind"
        )
    try:
        return str.encode(text, errors="surrogateescape")  # type: ignore[arg-type]
    except UnicodeEncodeError as error:
        raise ArgumentValueError(
            f"{label} must be text that UTF-8 can encode, received {_short(text)}: "
            f"character {error.start} is an unpaired surrogate",
            code="bad-text",
        ) from None


def name_bytes(name: object, label: str) -> bytes:
    """As `text_bytes`; also raises ArgumentValueError for a name with a zero byte, which would end
    it in C."""
    data = text_bytes(name, label)
    if b"\0" in data:
        message = f"{label} must be a name without zero bytes, received {_short(name)}"
        raise ArgumentValueError(message, code="bad-text")
    return data


def _short(text: Any) -> str:
    quoted = str.__repr__(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:76]}..."
