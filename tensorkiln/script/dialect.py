"""`T` and `R` as Python objects: what annotations and decorators of a script evaluate to.

The words have no behaviour: scripts are parsed, never run. They exist so that a decorated Python
function, whose annotations Python itself evaluates, can be defined at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Word:
    """Stands for `T.Buffer`, `R.Tensor((4,), "float32")`, ... wherever Python evaluates one."""

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> Word:  # noqa: D102
        return self

    def __getattr__(self, name: str) -> Word:
        if name.startswith("__"):
            raise AttributeError(name)
        return Word(f"{self._name}.{name}")

    def __repr__(self) -> str:
        return self._name


class Dialect:
    """The namespace `T` (tensor programs) or `R` (graphs); `decorators` are its real functions."""

    __slots__ = ("_decorators", "letter")

    def __init__(self, letter: str, decorators: dict[str, Callable[..., Any]]):
        self.letter, self._decorators = letter, decorators

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._decorators.get(name) or Word(f"{self.letter}.{name}")

    def __repr__(self) -> str:
        return self.letter
