"""Modules of loaders in Python as compiled code sees them: `kiln_loader` of kiln.h, whose `call`
looks a module up by its number."""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from tensorkiln.runtime.failures import CALLBACK_FAILED
from tensorkiln.runtime.imported import PythonModule
from tensorkiln.runtime.locks import ProcessLock
from tensorkiln.runtime.native import NativeLibrary, Value, calling_back
from tensorkiln.runtime.numbers import TENSOR
from tensorkiln.runtime.raised import need_room, passing, tell_raised
from tensorkiln.runtime.values import from_value, lent_value, to_value

_NAME_ERROR = 10  # KILN_ERROR_NAME

_CallType = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(Value),
    ctypes.c_int32,
    ctypes.POINTER(Value),
)
_LoadType = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
)


class _CLoader(ctypes.Structure):
    """`kiln_loader` in kiln.h."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("load", _LoadType),
        ("call", _CallType),
        ("unload", ctypes.c_void_p),
    ]


# Two loads of a file share one C library, which refers to the modules set last, by either load. So
# all modules stay until the last load of their handle is closed.
_modules: dict[int, tuple[int, PythonModule]] = {}  # by number: the library's handle, the module
_numbers = itertools.count(1)
_in_use: dict[int, list[int]] = {}  # handle -> numbers of its modules, 0 for each open library
_loads: dict[int, list[weakref.ref[NativeLibrary]]] = {}  # handle -> its loads
_closed: list[int] = []  # handles of closed libraries that `_forget` has not processed
_lock = ProcessLock(threading.Lock)


def _call_module(number: int, name: bytes, arguments: Any, count: int, result: Any) -> int:
    """`call` of kiln_loader: call function `name` of a Python module for compiled code."""
    try:
        need_room()
    except RecursionError as error:
        passing.error, passing.sentence = error, b""
        return CALLBACK_FAILED
    registration = _modules.get(number)
    if registration is None:  # closed while it was called
        return _NAME_ERROR
    library, module = _open_library(registration[0]), registration[1]
    if library is None:
        return _NAME_ERROR
    dll, entry = library.dll, (library.handle, threading.get_ident())
    calling_back.append(entry)
    try:
        function = module.own(name.decode())
        if function is None:
            return _NAME_ERROR
        values = [arguments[i] for i in range(count)]
        if any(value.kind == TENSOR for value in values):  # a kernel: it writes its results
            function(*[lent_value(value) for value in values])
        else:
            call_arguments = [from_value(library, value) for value in values]
            to_value(
                library, function(*call_arguments), result[0], f"the result of {name.decode()!r}"
            )
        return 0
    except BaseException as error:
        tell_raised(dll, error, lambda: f"in function {name.decode()!r} of loader {module.group}")
        return CALLBACK_FAILED
    finally:
        calling_back.remove(entry)


def _open_library(handle: int) -> NativeLibrary | None:
    """An open NativeLibrary of the handle, None if all are closed. C does not tell which load of
    the file makes the call; all share one C library, so any will do."""
    libraries = (load() for load in tuple(_loads.get(handle, ())))
    return next(
        (library for library in libraries if library is not None and not library.closed), None
    )


_call_module_c = _CallType(_call_module)
_C_LOADER = _CLoader(ctypes.sizeof(_CLoader), None, _LoadType(), _call_module_c, None)


def set_modules(library: NativeLibrary, modules: Sequence[PythonModule]) -> None:
    """Set the modules of Python loaders in the C library, so that compiled code can call them."""
    if not modules:
        return
    dll, handle = library.dll, library.handle
    with _lock:
        _in_use.setdefault(handle, []).append(0)
        _loads.setdefault(handle, []).append(weakref.ref(library))
    library.on_close(lambda: _forget(handle))
    for module in modules:
        number = next(_numbers)
        _modules[number] = handle, module
        with _lock:
            _in_use[handle].append(number)
        loader, key = module.group.loader.encode(), module.group.target_key.encode()
        library.check(
            dll.kiln_set_module(loader, key, ctypes.byref(_C_LOADER), ctypes.c_void_p(number))
        )


def _forget(handle: int) -> None:
    """Drop the modules of a closed library if it was the last load of its handle.

    The garbage collector may close a library while `_lock` is held; then the handle stays in
    `_closed` until the next library is closed.
    """
    _closed.append(handle)
    if not _lock.acquire(blocking=False):
        return
    try:
        while _closed:
            numbers = _in_use[_closed[0]]
            numbers.remove(0)
            if 0 not in numbers:
                del _loads[_closed[0]]
                for number in _in_use.pop(_closed[0]):
                    del _modules[number]
            del _closed[0]
    finally:
        _lock.release()
