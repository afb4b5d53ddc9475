"""The exceptions of a run: UserErrors that are also the built-in kind a caller would expect."""

from __future__ import annotations

from tensorkiln.base.errors import TensorkilnError, UserError


class ArgumentTypeError(UserError, TypeError):
    """Wrong number or kind of arguments, or wrong element type."""


class ArgumentValueError(UserError, ValueError):
    """Wrong rank, shape, device or address of a tensor, or sizes that the model cannot take."""


class FunctionLookupError(UserError, LookupError):
    """No function of that name, or one that has to be asked for elsewhere."""


class CpuFeatureError(UserError, RuntimeError):
    """This processor lacks what the library was compiled for."""


class WorkspaceMemoryError(UserError, MemoryError):
    """Out of memory for intermediate results."""


class CallDepthError(UserError, RecursionError):
    """Calls within calls, too many or too deep for the thread's stack."""


class ProgramAssertionError(UserError, AssertionError):
    """An assertion of a tensor program does not hold; the message is the program's."""


CALLBACK_FAILED = 13  # the exception that a Python function raised is the one to raise
# enum kiln_code of kiln.h: exception and stable code
_CODES: dict[int, tuple[type[TensorkilnError], str]] = {
    1: (ArgumentTypeError, "argument-count"),
    2: (ArgumentValueError, "rank-mismatch"),
    3: (ArgumentValueError, "shape-mismatch"),
    4: (ArgumentTypeError, "dtype-mismatch"),
    5: (ArgumentValueError, "device-mismatch"),
    6: (ArgumentValueError, "null-pointer"),
    7: (ArgumentTypeError, "argument-kind"),
    8: (WorkspaceMemoryError, "out-of-memory"),
    9: (CpuFeatureError, "cpu-feature"),
    10: (FunctionLookupError, "no-function"),
    11: (UserError, "host"),
    12: (ArgumentValueError, "unmet-condition"),
    14: (CallDepthError, "call-depth"),
    15: (ProgramAssertionError, "assertion"),
    16: (UserError, "bad-container"),
    17: (FunctionLookupError, "unknown-loader"),
    18: (UserError, "bad-weights"),
    19: (ArgumentValueError, "out-of-range"),
    20: (UserError, "bad-knob"),
}


def error_for(code: int, sentence: bytes) -> TensorkilnError:
    """The exception for a code of the C runtime and its sentence."""
    kind, name = _CODES.get(code, (UserError, "runtime"))
    return kind(sentence.decode(errors="replace"), code=name)
