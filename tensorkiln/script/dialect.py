"""`T` and `R` as Python objects: what annotations and decorators of a script evaluate to.

Scripts are parsed, never run. The words exist so that a decorated Python function, whose
annotations Python itself evaluates, can be defined at all; and for captured functions, which run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Word:
    """Stands for `T.Buffer`, `R.Tensor((4,), "float32")`, ... wherever Python evaluates one."""

    __slots__ = ("_function", "_name")

    def __init__(self, name: str, function: Callable[..., Any] | None = None):
        self._name, self._function = name, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Itself, as in annotations; an expression where the word is a function of some."""
        return self if self._function is None else self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Word:
        if name.startswith("__"):
            raise AttributeError(name)
        return Word(f"{self._name}.{name}")

    def __repr__(self) -> str:
        return self._name


class Dialect:
    """The namespace `T` (tensor programs) or `R` (graphs).

    `decorators` are real functions; `functions` make expressions of expressions.
    """

    __slots__ = ("_decorators", "_functions", "letter")

    def __init__(
        self,
        letter: str,
        decorators: Mapping[str, Any],
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ):
        self.letter, self._decorators = letter, decorators
        self._functions = functions or {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._decorators.get(name)
        return Word(f"{self.letter}.{name}", self._functions.get(name)) if found is None else found

    def __repr__(self) -> str:
        return self.letter
