"""Programs that are nested deeper than Python's stack is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tensorkiln.base.errors import UnsupportedError


@contextmanager
def nesting_checked(place: Callable[[], str] = str) -> Iterator[None]:
    """Turn a RecursionError into an UnsupportedError: what is compiled is nested too deeply, at the
    `place` that is asked for then. A pass of the caller's that calls itself without end is named by
    the pass runner before."""
    try:
        yield
    except RecursionError:
        raise too_deep(place()) from None


def too_deep(place: str) -> UnsupportedError:
    """The error for what is nested too deeply at `place`, a function and what it is in there."""
    return UnsupportedError(
        "expressions, statements or types are nested too deeply",
        where=place,
        hint="values that are computed in several steps, each with a name, are not nested",
    )


__all__ = ["nesting_checked", "too_deep"]
