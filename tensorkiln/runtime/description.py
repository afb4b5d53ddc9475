"""Whether a library's metadata describes its code: compared when it is loaded, before a call relies
on a count or a name."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from tensorkiln.artifact.metadata import FunctionInfo
from tensorkiln.base.errors import UserError
from tensorkiln.runtime.fast_call import python_function

_KINDS = {"graph": 0, "tensor": 1, "outer": 2}  # enum kiln_function_kind in kiln.h
_MAX_PARAMETERS = 256  # KILN_MAX_PARAMS in crt.h
_COUNT = 1  # KILN_ERROR_COUNT in kiln.h
_P, _I = ctypes.c_void_p, ctypes.c_int
_OUTPUT_SHAPE = (_I, _P, _I, _I, _P, _P)


def check_functions(dll: Any, functions: Iterable[FunctionInfo], path: str) -> None:
    """Raise UserError (code `not-a-library`) unless the code of a loaded library has each function
    with these inputs and outputs."""
    compare = _comparison(dll)
    for f in functions:
        reason = _unusable(f) or compare(f)
        if reason:
            raise UserError(
                f"{path!r} is not a Tensorkiln library: its metadata is damaged: {reason}",
                code="not-a-library",
            )


def _unusable(f: FunctionInfo) -> str:
    """Why a function cannot be used, if its description is invalid: an unknown kind, or a size
    below 0; else empty."""
    if f.kind not in _KINDS:
        return f"{f.name} is of kind {f.kind!r}"
    for p in (*f.inputs, *f.outputs):
        if any(isinstance(size, int) and size < 0 for size in p.shape or ()):
            return f"{f.name}: {p.name!r} has shape {p.shape_text}"
    return ""


def _comparison(dll: Any) -> Any:
    """A function of a FunctionInfo that returns what is wrong with it, or the empty string."""
    kind, number, text = ctypes.c_int, ctypes.c_int, ctypes.c_char_p
    arguments = (text, kind, ctypes.POINTER(text), number, number)
    try:
        check = python_function(dll, "kiln_check_function", number, arguments)
    except AttributeError:
        return lambda f: _compare_older(dll, f)

    def compare(f: FunctionInfo) -> str:
        names = [p.name.encode() for p in (*f.inputs, *f.outputs)]
        rows = (text * max(1, len(names)))(*names)
        if check(f.name.encode(), _KINDS[f.kind], rows, len(f.inputs), len(f.outputs)):
            return str(dll.kiln_last_error().decode(errors="replace"))
        return ""

    return compare


def _compare_older(dll: Any, f: FunctionInfo) -> str:
    """The same for a library of an earlier version, which says only whether it has a function, and
    which outputs this has."""
    index, outputs = dll.kiln_function_index(f.name.encode()), len(f.outputs)
    if index < 0:
        return str(dll.kiln_last_error().decode(errors="replace"))
    if len(f.inputs) + outputs > _MAX_PARAMETERS:
        return f"{f.name}: more than {_MAX_PARAMETERS} inputs and outputs"
    if f.kind != "graph":
        return ""
    shape, ndim = (ctypes.c_int64 * 16)(), ctypes.c_int()
    ask = python_function(dll, "kiln_output_shape", ctypes.c_int, _OUTPUT_SHAPE)
    # It fails without tensors, for this reason only if there is no such output.
    code = ask(index, shape, 0, outputs - 1, shape, ctypes.byref(ndim)) if outputs else 0
    sentence = dll.kiln_last_error() if code == _COUNT else b""
    return sentence.decode(errors="replace") if b"there is no number" in sentence else ""
