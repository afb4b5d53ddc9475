"""Functions of a library as builtin functions of CPython, which take DLPack capsules."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_FASTCALL = 0x80  # METH_FASTCALL
_NEEDED = ("PyCapsule_GetPointer", "PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_FromLong")


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Target(ctypes.Structure):
    """kiln_python_target."""

    _fields_ = [("executor", ctypes.c_void_p), ("function", ctypes.c_int)]


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype = ctypes.py_object
_new_function.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# CPython reads them when a function object dies, whatever dies before it.
_KEPT: list[_MethodDef] = []


def open_python(dll: Any) -> _MethodDef:
    """Give a library the functions of Python that it calls; its method for `fast_call`."""
    found = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _NEEDED]
    dll.kiln_python_open((ctypes.c_void_p * len(found))(*found))
    address = ctypes.cast(dll.kiln_python_call, ctypes.c_void_p)
    _KEPT.append(_MethodDef(b"kiln_function", address, _FASTCALL, None))
    return _KEPT[-1]


def fast_call(
    method: _MethodDef, index: int, executor: ctypes.c_void_p | None = None
) -> tuple[Callable[..., int], object]:
    """A builtin function that runs function `index` on capsules and returns a result code, and what
    must live as long as it. It must not be called once the library is closed.

    `executor` is read at each call; without one the call runs in borrowed memory. The function
    raises what PyCapsule_GetPointer raises, ValueError for what is no capsule of a tensor.
    """
    target = _Target(ctypes.addressof(executor) if executor is not None else None, index)
    capsule = _new_capsule(ctypes.addressof(target), None, None)
    return _new_function(ctypes.addressof(method), capsule, None), (target, executor)
