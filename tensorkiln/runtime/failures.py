"""Errors of calls at run time: UserErrors that are also built-in exceptions, such as TypeError."""

from __future__ import annotations

from tensorkiln.base.errors import TensorkilnError, UserError


class ArgumentTypeError(UserError, TypeError):
    """Wrong number or kind of arguments, or wrong element type."""


class ArgumentValueError(UserError, ValueError):
    """Wrong rank, shape, device or address of a tensor, sizes that the model cannot take, or a
    number out of its type's range."""


class FunctionLookupError(UserError, LookupError):
    """No function or loader of that name, or a function that needs an Executor."""


class CpuFeatureError(UserError, RuntimeError):
    """This processor lacks a feature that the library was compiled for."""


class WorkspaceMemoryError(UserError, MemoryError):
    """Out of memory for intermediate or final results."""


class CallDepthError(UserError, RecursionError):
    """Nested calls, too many or too deep for the thread's stack."""


class ProgramAssertionError(UserError, AssertionError):
    """An assertion of a tensor program does not hold; the message is the program's."""


class IndexOutsideError(UserError, IndexError):
    """Data has an index that is outside of the dimension that it indexes."""


class DeviceError(UserError, RuntimeError):
    """A device or its driver is missing, lacks a capability, or failed."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device is out of memory."""


CALLBACK_FAILED = 13  # KILN_ERROR_CALLBACK: `raised_in_callback` gives the exception
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
    21: (DeviceError, "no-driver"),
    22: (DeviceError, "no-device"),
    23: (DeviceError, "device-capability"),
    24: (DeviceMemoryError, "device-memory"),
    25: (DeviceError, "device-build"),
    26: (DeviceError, "device-launch"),
    27: (DeviceError, "device-failed"),
    28: (DeviceError, "device-lost"),
    29: (IndexOutsideError, "index"),
}


def error_for(code: int, sentence: bytes) -> TensorkilnError:
    """The exception for an error code of the C runtime and its message."""
    kind, name = _CODES.get(code, (UserError, "runtime"))
    return kind(sentence.decode(errors="replace"), code=name)
