"""Calls of somebody else's code: what it raises names it, and is the caller's to mend."""

from __future__ import annotations

from types import TracebackType

from tensorkiln.base.errors import TensorkilnError, UserError


class plugin:
    """`with plugin("external 'npu': supports"):` around a call of a function that a user brought.

    What it raises becomes a UserError (code `plugin-failed`) that names it, with the exception as
    its cause; our own errors, and those that end a process (KeyboardInterrupt, SystemExit,
    MemoryError), pass with a note. A class, since it stands around calls of many thousand nodes.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str):
        self._what = what

    def __enter__(self) -> None:
        """Nothing happens."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Say whose error it is."""
        if error is None:
            return
        if isinstance(error, TensorkilnError | MemoryError) or not isinstance(error, Exception):
            error.add_note(f"in {self._what}")
            return
        raise UserError(
            f"{self._what} raised {type(error).__name__}: {error}",
            code="plugin-failed",
            hint="the exception it raised is shown above, as the cause of this one",
        ) from error


def bad_answer(what: str, answer: object, expected: str, code: str = "plugin-answer") -> UserError:
    """The error for a user's function that gives something else than it should."""
    return UserError(f"{what} returned {type(answer).__name__}, expected {expected}", code=code)
