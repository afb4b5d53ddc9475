"""Programs that are nested deeper than Python's stack is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorkiln.base.errors import UnsupportedError


@contextmanager
def nesting_checked() -> Iterator[None]:
    """Turn a RecursionError into an UnsupportedError: what is compiled is nested too deeply. A pass
    of the caller's that calls itself without end is named by the pass runner before."""
    try:
        yield
    except RecursionError:
        raise UnsupportedError(
            "expressions, statements or types are nested too deeply",
            hint="values that are computed in several steps, each with a name, are not nested",
        ) from None


__all__ = ["nesting_checked"]
