"""Typed access to untrusted parsed JSON: a value of the wrong type or range is a UserError that
says where it is, such as `metadata.functions[2].name`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TypeVar, cast

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.json_text import parse_json

Dim = int | str
_T = TypeVar("_T")
MOST = (1 << 63) - 1


class Reader:
    """One JSON object. `path` is its place for error messages, and `code` that of the UserErrors
    which all methods raise for a bad value."""

    def __init__(self, value: object, path: str, code: str):
        self._path, self._code = path, code
        if not isinstance(value, dict):
            raise self.wrong(f"expected an object, got {type(value).__name__}")
        self._value = cast("dict[str, object]", value)

    @staticmethod
    def of_text(data: bytes | memoryview, path: str, code: str) -> Reader:
        """The object that a text is, whose names differ. UserError for any other text."""
        return Reader(parsed_text(data, path, code), path, code)

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def wrong(self, message: str, key: str = "", hint: str = "") -> UserError:
        """Return the error for the value of `key`, or for the whole object without a key."""
        path = f"{self._path}.{key}" if key else self._path
        return UserError(message, code=self._code, where=path, hint=hint)

    def unknown(self, value: str, choices: Collection[str], key: str) -> UserError:
        """Return the error for text that is not one of `choices`."""
        message = f"{value!r:.200} is not one of {', '.join(choices)}"
        return self.wrong(message, key, nearest(value, choices))

    def get(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        """Return the value of `key`, or `default` if it is missing (an error without a default).

        It must be a `kind` and not a bool; an integer must fit 64 bits, and text be encodable as
        UTF-8.
        """
        value = self._value.get(key, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(f"expected {kind.__name__}, got {type(value).__name__}", key)
        if isinstance(value, int) and not -MOST <= value <= MOST:
            raise self.wrong("the number is too large", key)
        if isinstance(value, str):
            self._text(value, key)
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """Return a count or a size, which is at least 0."""
        value = self.get(key, int, default)
        if value < 0:
            raise self.wrong(f"expected a size, got {value}", key)
        return value

    def real(self, key: str) -> float:
        """Return a number of a measurement: finite, and at least 0."""
        value = self._value.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(f"expected a number, got {type(value).__name__}", key)
        if not 0 <= value <= MOST:  # also where it is NaN
            raise self.wrong(f"expected a finite number, got {value}", key)
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false, or `default` if the key is missing (an error without a default)."""
        value = self._value.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(f"expected true or false, got {type(value).__name__}", key)
        return value

    def word(
        self, key: str, form: re.Pattern[str], form_name: str, default: str | None = None
    ) -> str:
        """Return text that matches `form` entirely; an error calls the form `form_name`."""
        return self._word(self.get(key, str, default), key, form, form_name)

    def words(self, key: str, form: re.Pattern[str], form_name: str) -> tuple[str, ...]:
        """Return a list of text, each matching `form` entirely."""
        return tuple(self._word(text, key, form, form_name) for text in self.texts(key))

    def _word(self, text: str, key: str, form: re.Pattern[str], form_name: str) -> str:
        if not form.fullmatch(text):
            raise self.wrong(f"{text!r:.200} is not {form_name}", key)
        return text

    def only(self, keys: Collection[str]) -> None:
        """Refuse an object that has another key than `keys`."""
        for name in self._value:
            if name not in keys:
                raise self.wrong(f"unknown key {name!r:.200}", hint=nearest(name, keys))

    def require(self, key: str) -> None:
        """Refuse an object that lacks the key."""
        if key not in self._value:
            raise self.wrong("it is missing", key)

    def is_null(self, key: str) -> bool:
        """Whether the value of the key is null; also where the key is missing."""
        return self._value.get(key) is None

    def table(self, key: str) -> Iterator[tuple[str, Reader]]:
        """Yield names and objects of the object of `key`, whose names are arbitrary."""
        for name, value in self.items(key):
            yield name, Reader(value, f"{self._path}.{key}.{name:.200}", self._code)

    def child(self, key: str) -> Reader:
        """Return the object of `key`; an empty one if the key is missing."""
        return Reader(self._value.get(key, {}), f"{self._path}.{key}", self._code)

    def rows(self, key: str) -> list[Reader]:
        """Return the list of objects of `key`; an empty list if the key is missing."""
        rows = self.get(key, list, [])
        place = f"{self._path}.{key}"
        return [Reader(row, f"{place}[{i}]", self._code) for i, row in enumerate(rows)]

    def items(self, key: str) -> Iterator[tuple[str, object]]:
        """Yield names and unchecked values of the object of `key`, whose names are arbitrary."""
        for name, value in self.get(key, dict, {}).items():
            self._text(name, key)
            yield name, value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a list of text, or `default` if the key is missing."""
        texts = self.get(key, list, None if default is None else list(default))
        if not all(isinstance(text, str) for text in texts):
            raise self.wrong("expected a list of text", key)
        for text in texts:
            self._text(text, key)
        return tuple(texts)

    def size(self, key: str) -> Dim:
        """Return a size: a number, or the text of an expression; 0 if the key is missing."""
        size = self._value.get(key, 0)
        if isinstance(size, bool) or not isinstance(size, int | str):
            raise self.wrong("expected a number or an expression", key)
        return self.get(key, type(size), 0 if isinstance(size, int) else "")

    def dims(self, key: str) -> tuple[Dim, ...] | None:
        """Return a shape, a list of numbers and names; None if the key is missing or null."""
        if self._value.get(key) is None:
            return None
        dims = self.get(key, list)
        if not all(isinstance(dim, int | str) and not isinstance(dim, bool) for dim in dims):
            raise self.wrong("expected a list of numbers and names", key)
        if any(isinstance(dim, int) and not -MOST <= dim <= MOST for dim in dims):
            raise self.wrong("a number is too large", key)
        return tuple(dims)

    def _text(self, text: str, key: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.wrong("the text holds an unpaired surrogate", key) from None


def parsed_text(data: bytes | memoryview, path: str, code: str) -> object:
    """The JSON of an untrusted text, in which no object has a name twice. UserError for any other
    text."""
    try:
        return parse_json(data, unique=True)
    except ValueError as error:
        raise UserError(f"not valid JSON: {error}", code=code, where=path) from None
