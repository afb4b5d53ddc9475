"""Names of printed variables: valid Python, distinct, and the same in every run."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager

RESERVED = frozenset({"T", "R", "tk", "range", "float", "True", "False", "None"})
_NOT_WORD = re.compile(r"[^A-Za-z0-9_]")


def identifier(name: str, default: str = "v") -> str:
    """The nearest Python identifier that is neither a keyword nor a word of the script."""
    text = _NOT_WORD.sub("_", name) or default
    if text[0].isdigit():
        text = "_" + text
    return text + "_" if keyword.iskeyword(text) or text in RESERVED else text


def string(text: str) -> str:
    """A double-quoted literal in plain ASCII."""
    return json.dumps(text)


def is_word(text: str) -> bool:
    """Whether it can be written after a dot."""
    return text.isidentifier() and not keyword.iskeyword(text)


class Names:
    """Gives each variable (by identity) a name of its own among those in scope.

    Names depend only on the order of the calls, never on ids or hashes. With `canonical` they do
    not depend on the variables' own names either.
    """

    def __init__(self, *, canonical: bool = False):
        self.of: dict[object, str] = {}
        self.given: dict[object, str] = {}  # also to what has left its scope since
        self._canonical = canonical
        self._live: dict[str, object] = {}
        self._next: dict[str, int] = {}

    def bind(self, var: object, name: str, prefix: str = "v") -> str:
        """Name a variable that enters scope."""
        if self._canonical:
            count = self._next.get(prefix, 0)
            self._next[prefix] = count + 1
            text = f"{prefix}{count}"
        else:
            text = self._distinct(identifier(name, prefix))
            self._live[text] = var
        self.of[var] = self.given[var] = text
        return text

    def reserve(self, text: str) -> None:
        """Keep a name from being given."""
        self._live[text] = None

    def _distinct(self, base: str) -> str:
        """The name itself where it is free: printed names print as themselves."""
        if base not in self._live:
            return base
        count = self._next.get(base, 1)
        while (text := f"{base}_{count}") in self._live:
            count += 1
        self._next[base] = count + 1
        return text

    def release(self, var: object) -> None:
        """The variable left scope: its name may be used again."""
        if self._canonical:
            return
        text = self.of[var]
        if self._live.pop(text, None) is None:
            return
        base, _, digits = text.rpartition("_")
        if digits.isdigit() and self._next.get(base) == int(digits) + 1:
            self._next[base] = int(digits)

    @contextmanager
    def scope(self, kind: type) -> Iterator[None]:
        """Variables of a class that enter scope inside leave it at the end."""
        count = len(self.of)
        yield
        for var in reversed(list(self.of)[count:]):
            if isinstance(var, kind):
                self.release(var)
                del self.of[var]

    def get(self, var: object, name: str, prefix: str = "v") -> str:
        """The variable's name, binding it when it was never seen (a free variable)."""
        return self.of.get(var) or self.bind(var, name, prefix)
