"""`T` and `R` as Python objects: the values of annotations and decorators in scripts.

Scripts are parsed, never executed. But Python itself evaluates the annotations of a decorated
function when it is defined, so `T.Buffer((4,), "float32")` must have a value. And Python functions
that a script calls while it is parsed do run: for them `T.max(x, 0.0)` makes an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorkiln.base.errors import UserError


class Word:
    """The value of a name after `T.` or `R.`, such as `T.Buffer`, where Python evaluates it."""

    __slots__ = ("_function", "_name")

    def __init__(self, name: str, function: Callable[..., Any] | None = None):
        self._name, self._function = name, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return an expression if the word is a function, as `T.max`; else the word itself, as for
        the annotation `T.Buffer((4,), "float32")`."""
        return self if self._function is None else self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Word:
        if name.startswith("__"):
            raise AttributeError(name)
        return Word(f"{self._name}.{name}")

    def __getitem__(self, index: Any) -> Any:
        """Raise UserError: types are calls."""
        example = '((4,), "float32")' if self._name.endswith(("Buffer", "Tensor")) else "(...)"
        raise UserError(
            f"{self._name}[...] is not in the script language",
            code="script",
            where=self._name,
            hint=f"types are calls: {self._name}{example}",
        )

    def _no_value(self, *_: Any) -> Any:
        """Raise UserError: only the parser of a script knows what a word means in an expression."""
        raise UserError(
            f"{self._name} has no value outside of a script",
            code="script",
            where=self._name,
            hint="decorate the function with @T.prim_func, @R.function or @T.macro",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_value
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _no_value
    __or__ = __ror__ = __and__ = __rand__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = _no_value
    __iter__ = _no_value

    def __repr__(self) -> str:
        return self._name


class ScriptNamespace:
    """The namespace `T` (tensor programs) or `R` (graphs).

    `decorators` are returned as they are; `functions` map expressions to expressions. Any other
    name is a `Word` without a function.
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
        decorator = self._decorators.get(name)
        return (
            Word(f"{self.letter}.{name}", self._functions.get(name))
            if decorator is None
            else decorator
        )

    def __repr__(self) -> str:
        return self.letter
