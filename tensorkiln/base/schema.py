"""Typed reading of JSON that somebody else may have written: whatever is not as it must be is an
error that says where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar, cast

from tensorkiln.base.errors import UserError

Dim = int | str
_T = TypeVar("_T")
MOST = (1 << 63) - 1


class Reader:
    """One JSON object; `where` is its place and `code` that of its errors (UserError)."""

    def __init__(self, value: object, where: str, code: str):
        self._where, self._code = where, code
        if not isinstance(value, dict):
            raise self.wrong(f"expected an object, got {type(value).__name__}")
        self._value = cast("dict[str, object]", value)

    def wrong(self, message: str, key: str = "") -> UserError:
        """The error for what is wrong with a value, or with all."""
        where = f"{self._where}.{key}" if key else self._where
        return UserError(message, code=self._code, where=where)

    def get(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        """A value of that type; a number is none too large for 64 bits, a text can be encoded."""
        value = self._value.get(key, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(f"expected {kind.__name__}, got {type(value).__name__}", key)
        if isinstance(value, int) and not -MOST <= value <= MOST:
            raise self.wrong("the number is too large", key)
        if isinstance(value, str):
            self._text(value, key)
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A count or a size: at least 0."""
        value = self.get(key, int, default)
        if value < 0:
            raise self.wrong(f"expected a size, got {value}", key)
        return value

    def word(self, key: str, form: re.Pattern[str], what: str, default: str | None = None) -> str:
        """A text of a form, which an error calls `what`."""
        return self._word(self.get(key, str, default), key, form, what)

    def words(self, key: str, form: re.Pattern[str], what: str) -> tuple[str, ...]:
        """A list of such texts."""
        return tuple(self._word(text, key, form, what) for text in self.texts(key))

    def _word(self, text: str, key: str, form: re.Pattern[str], what: str) -> str:
        if not form.fullmatch(text):
            raise self.wrong(f"{text!r:.200} is not {what}", key)
        return text

    def child(self, key: str) -> Reader:
        """An object; an empty one where there is none."""
        return Reader(self._value.get(key, {}), f"{self._where}.{key}", self._code)

    def rows(self, key: str) -> list[Reader]:
        """A list of objects; an empty one where there is none."""
        found = self.get(key, list, [])
        place = f"{self._where}.{key}"
        return [Reader(row, f"{place}[{i}]", self._code) for i, row in enumerate(found)]

    def items(self, key: str) -> Iterator[tuple[str, object]]:
        """Names and values of an object whose names are not known before."""
        for name, value in self.get(key, dict, {}).items():
            self._text(name, key)
            yield name, value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of text."""
        found = self.get(key, list, None if default is None else list(default))
        if not all(isinstance(text, str) for text in found):
            raise self.wrong("expected a list of text", key)
        for text in found:
            self._text(text, key)
        return tuple(found)

    def size(self, key: str) -> Dim:
        """A number, or an expression."""
        found = self._value.get(key, 0)
        if isinstance(found, bool) or not isinstance(found, int | str):
            raise self.wrong("expected a number or an expression", key)
        return self.get(key, type(found), 0 if isinstance(found, int) else "")

    def dims(self, key: str) -> tuple[Dim, ...] | None:
        """A list of numbers and names; None where there is none."""
        if self._value.get(key) is None:
            return None
        found = self.get(key, list)
        if not all(isinstance(dim, int | str) and not isinstance(dim, bool) for dim in found):
            raise self.wrong("expected a list of numbers and names", key)
        if any(isinstance(dim, int) and not -MOST <= dim <= MOST for dim in found):
            raise self.wrong("a number is too large", key)
        return tuple(found)

    def _text(self, text: str, key: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.wrong("the text holds half a character", key) from None
