"""Calls of functions that users and other packages supply: their exceptions become UserErrors that
name the function.

Every call of an external, a kernel family, an ONNX importer, an inspector, a loader, a pass, an
instrument, a hook of a target kind, `fcompile` or a progress object stands in `with plugin(...)`.
tests/test_plugins.py has a case for each such place.
"""

from __future__ import annotations

from types import TracebackType

from tensorkiln.base.errors import TensorkilnError, UserError


class plugin:
    """`with plugin("external 'npu': supports"):` around the call of a user-supplied function.

    An exception becomes a UserError (code `plugin-failed`) that names the function, with the
    exception as its cause. A TensorkilnError, and what ends a process (KeyboardInterrupt,
    SystemExit, MemoryError), passes through with a note. A class rather than a generator because
    it is entered once per node of a graph, many thousand times.
    """

    __slots__ = ("_subject",)

    def __init__(self, subject: str):
        self._subject = subject

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Turn the exception into a UserError, or add a note to it."""
        if error is None:
            return
        if isinstance(error, TensorkilnError | MemoryError) or not isinstance(error, Exception):
            error.add_note(f"in {self._subject}")
            return
        raise UserError(
            f"{self._subject} raised {type(error).__name__}: {error}",
            code="plugin-failed",
            hint="the exception it raised is shown above, as the cause of this one",
        ) from error


def bad_answer(
    subject: str, answer: object, expected: str, code: str = "plugin-answer"
) -> UserError:
    """Return the error for a user-supplied function `subject` that returned the wrong type."""
    return UserError(f"{subject} returned {type(answer).__name__}, expected {expected}", code=code)
