"""Names of printed variables: valid identifiers, distinct in a scope, the same in every run."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager

RESERVED = frozenset({"T", "R", "tk", "range", "float", "True", "False", "None"})
_NOT_WORD = re.compile(r"[^A-Za-z0-9_]")


def identifier(name: str, default: str = "v") -> str:
    """`name` as a Python identifier that is neither a keyword nor reserved in scripts.

    "input.1" becomes input_1, "0" becomes _0 and "lambda" lambda_; `default` replaces "".
    """
    text = _NOT_WORD.sub("_", name) or default
    if text[0].isdigit():
        text = "_" + text
    return text + "_" if keyword.iskeyword(text) or text in RESERVED else text


def string(text: str) -> str:
    """A double-quoted Python string literal in ASCII."""
    return json.dumps(text)


def is_word(text: str) -> bool:
    """Whether `text` can be an attribute name in Python: an identifier, and no keyword."""
    return text.isidentifier() and not keyword.iskeyword(text)


def reference(module: str, name: str) -> str:
    """The text of a function of a module, as `Module.f`."""
    return f"{module}.{name}" if is_word(name) else f"{module}[{string(name)}]"


class VariableNames:
    """Assigns each variable (by identity) a name that is unique among the variables in scope.

    A second `i` in scope becomes `i_1`. Names depend only on the order of the calls, never on ids
    or hashes; with `canonical` not on the variables' names either (`v0`, `v1`, ...).
    """

    def __init__(self, *, canonical: bool = False):
        self.of: dict[object, str] = {}
        self.all_names: dict[object, str] = {}  # like `of`, and never loses variables out of scope
        self._canonical = canonical
        self._live: dict[str, object] = {}
        self._next: dict[str, int] = {}

    def bind(self, var: object, name: str, prefix: str = "v") -> str:
        """Assign a name to a variable that enters scope, and return it."""
        if self._canonical:
            count = self._next.get(prefix, 0)
            self._next[prefix] = count + 1
            text = f"{prefix}{count}"
        else:
            text = self._distinct(identifier(name, prefix))
            self._live[text] = var
        self.of[var] = self.all_names[var] = text
        return text

    def reserve(self, text: str) -> None:
        """Prevent `text` from being assigned."""
        self._live[text] = None

    def _distinct(self, base: str) -> str:
        """`base` if it is free, else the first free `base_1`, `base_2`, ..."""
        if base not in self._live:
            return base
        count = self._next.get(base, 1)
        while (text := f"{base}_{count}") in self._live:
            count += 1
        self._next[base] = count + 1
        return text

    def release(self, var: object) -> None:
        """Make the name of a variable that leaves scope available again."""
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
        """A scope at whose end variables of class `kind` that were bound inside are released."""
        count = len(self.of)
        yield
        for var in reversed(list(self.of)[count:]):
            if isinstance(var, kind):
                self.release(var)
                del self.of[var]

    def get(self, var: object, name: str, prefix: str = "v") -> str:
        """The name of a variable; one seen for the first time (a free variable) is bound."""
        return self.of.get(var) or self.bind(var, name, prefix)
