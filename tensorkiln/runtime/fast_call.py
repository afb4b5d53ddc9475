"""Functions of a library as builtin functions of CPython, implemented in crt/python.c.

A builtin avoids the overhead of ctypes and of Python code. Calls that it cannot handle, such as
those with arrays that NumPy does not export, it passes to a slow path in Python.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorkiln.runtime.tensor import LARGE, Array, Tensor, output_maker

_FLAGS = 0x80 | 0x02  # METH_FASTCALL | METH_KEYWORDS
# Functions of CPython that C calls, in the order of kiln_python in crt.h.
_NEEDED = (
    "PyLong_AsVoidPtr",
    "PyCapsule_GetPointer",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyLong_FromLongLong",
    "PyTuple_New",
    "PyTuple_Size",
    "PyTuple_GetItem",
    "PyTuple_SetItem",
    "PyObject_Vectorcall",
    "PyObject_VectorcallMethod",
    "PyObject_Type",
    "PyObject_GetAttr",
    "PyErr_ExceptionMatches",
    "PyErr_Clear",
    "Py_IncRef",
    "Py_DecRef",
)
# Exceptions after which C takes the slow path: from exporting read-only arrays, unsupported dtypes
# and objects without `__dlpack__`, and from allocating results that are too large.
NO_EXPORT = (AttributeError, BufferError, MemoryError, TypeError, ValueError, RuntimeError)
_OBJECTS = (sys.intern("__dlpack__"), NO_EXPORT, Tensor, sys.intern("_array"), None)


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Result(ctypes.Structure):
    """kiln_python_result."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("make", "make_large", "shape", "dtype")]


class _Target(ctypes.Structure):
    """kiln_python_target."""

    _fields_ = [
        ("executor", ctypes.c_void_p),
        ("names", ctypes.POINTER(ctypes.c_void_p)),
        ("results", ctypes.POINTER(_Result)),
        ("failed", ctypes.c_void_p),
        ("function", ctypes.c_int),
        ("n_inputs", ctypes.c_int),
        ("n_results", ctypes.c_int),
        ("library", ctypes.c_int),
    ]


@dataclass(frozen=True, slots=True)
class NewResult:
    """Shape and dtype of a result to allocate; `shape` is None if it depends on the inputs."""

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]

    def array(self, shape: tuple[int, ...]) -> Array:
        """An uninitialised array for the result."""
        return output_maker(self._bytes(shape))(shape, self.dtype)

    def row(self) -> _Result:
        """The C struct; it borrows references, so this object must outlive it."""
        make, large = output_maker(0), output_maker(LARGE)
        if self.shape is not None:
            make = output_maker(self._bytes(self.shape))
        shape = None if self.shape is None else id(self.shape)
        return _Result(id(make), id(large), shape, id(self.dtype))

    def _bytes(self, shape: tuple[int, ...]) -> int:
        return self.dtype.itemsize * math.prod(shape)


@dataclass(frozen=True, slots=True)
class CallSignature:
    """Inputs and results of a builtin. With `names`, inputs may be passed by name. Without
    `results` it returns None, and outputs are among the inputs."""

    n_inputs: int
    names: Sequence[str] | None = None
    results: Sequence[NewResult] | None = None


class _Bound(int):
    """`self` of a builtin: the address of its target, callable as the slow path.

    `owners` keeps alive what the target points to.
    """

    slow: Callable[..., Any]
    owners: object

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Make the call by the slow path."""
        return self.slow(*arguments, **named)


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype = ctypes.py_object
_new_function.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)

_numbers = itertools.count(1)


@functools.cache
def _needed() -> tuple[int | None, ...]:
    return tuple(map(_address_of, _NEEDED))


def _address_of(name: str) -> int | None:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value


class FastCalls:
    """The builtin functions of one library."""

    def __init__(self, dll: Any, failed: Callable[[int], None]):
        """`failed(code)` raises the exception for a result code."""
        table = [*_needed(), *map(id, _OBJECTS), LARGE]
        dll.kiln_python_open((ctypes.c_void_p * len(table))(*table))
        # The address, not the ctypes object: functions that outlive the library keep `_method`, and
        # through that object they would keep `dll`.
        address = ctypes.cast(dll.kiln_python_call, ctypes.c_void_p).value
        self._method = _MethodDef(b"kiln_function", address, _FLAGS, None)
        self._failed = weakref.WeakMethod(failed)  # weak: the library owns this object
        self._address = address
        self._number = next(_numbers)  # identifies the library when C counts calls
        self._count = _counter(dll)

    def close(self) -> None:
        """Redirect all calls to `slow`, so that no call enters the library.

        PyObject_Vectorcall has the signature of a method with these flags, and calls `self`.
        """
        self._method.function = _address_of("PyObject_Vectorcall")

    def open(self) -> None:
        """Undo `close`."""
        self._method.function = self._address

    def count(self, *, this_thread: bool) -> int:
        """How many calls are running: in this thread if `this_thread`, else in all threads."""
        return int(self._count(self._number, this_thread))

    def bind(
        self,
        index: int,
        signature: CallSignature,
        slow: Callable[..., Any],
        memory: Any = None,
    ) -> Callable[..., Any]:
        """A builtin function that runs function `index` on tensors and returns its results.

        `slow` is called with the same arguments when the builtin cannot handle them. It must not
        refer to the returned function: a cycle would keep both alive until the garbage collector
        runs. `memory` is an ExecutorMemory, whose `handle` is read at each call; without it, as for
        tensor functions, each call borrows workspace from the library.
        """
        names, results, failed = _names(signature.names), signature.results, self._failed()
        rows = None
        if results is not None:
            rows = (_Result * max(1, len(results)))(*[r.row() for r in results])
        target = _Target(
            None if memory is None else ctypes.addressof(memory.handle),
            names and names[0],
            rows,
            id(failed),
            index,
            signature.n_inputs,
            len(results or ()),
            self._number,
        )
        binding = _Bound(ctypes.addressof(target))
        binding.slow = slow
        # A function object reads its PyMethodDef for the last time before it lets go of `binding`.
        binding.owners = (self._method, target, names, rows, results, failed, memory)
        function: Callable[..., Any] = _new_function(ctypes.addressof(self._method), binding, None)
        return function


# One class for all functions: one for each would double the time of loading.
_PythonFunction = ctypes.PYFUNCTYPE(ctypes.c_int)


def python_function(
    dll: Any, name: str, result: Any, arguments: tuple[Any, ...]
) -> Callable[..., Any]:
    """A C function that is called without releasing the interpreter lock; AttributeError if `dll`
    has no such function."""
    if isinstance(dll, ctypes.CDLL):
        function = _PythonFunction((name, dll))
    else:
        function = _PythonFunction(ctypes.cast(getattr(dll, name), ctypes.c_void_p).value or 0)
    function.restype, function.argtypes = result, arguments
    return function


def _counter(dll: Any) -> Callable[[int, bool], int]:
    """`kiln_python_calls(number, here)`; always 0 for older libraries, which do not export it."""
    try:
        return python_function(dll, "kiln_python_calls", ctypes.c_int, (ctypes.c_int, ctypes.c_int))
    except AttributeError:
        return lambda number, this_thread: 0


def _names(names: Sequence[str] | None) -> tuple[Any, list[str]] | None:
    """A C array of pointers to the interned names of the inputs and "out", and those strings.

    An input that is called `out` gets a null pointer: it can be passed by position only.
    """
    if names is None:
        return None
    strings = [sys.intern(name) for name in (*names, "out")]
    addresses = [None if name == "out" else id(name) for name in strings[:-1]]
    return (ctypes.c_void_p * len(strings))(*addresses, id(strings[-1])), strings
