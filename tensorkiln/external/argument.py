"""The argument `externals=` of `compile`: code generators, and names of installed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorkiln.base.errors import UserError, require
from tensorkiln.external.external import External

Externals = Sequence[External | str]


def require_externals(externals: object) -> None:
    """Raise UserError (code `wrong-type`) unless externals are several of something."""
    require(externals, Iterable, "externals")
    if isinstance(externals, str):
        message = f"externals are a list, not a text ({externals!r})"
        raise UserError(message, code="wrong-type", hint=f"externals=[{externals!r}]")


def named_externals(externals: Externals) -> tuple[External, ...]:
    """The externals, text being the name of an installed one."""
    return tuple(_named(e) for e in externals)


def _named(external: External | str) -> External:
    if not isinstance(external, str):
        return external
    from tensorkiln.external.plugins import external_called  # importlib.metadata takes 30 ms

    return external_called(external)
