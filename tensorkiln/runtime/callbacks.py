"""Names of Python functions for `call_packed`."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.given import name_bytes
from tensorkiln.runtime.locks import ProcessLock
from tensorkiln.runtime.native import NativeLibrary, Value
from tensorkiln.runtime.values import make_function

_names: dict[str, Callable[..., Any]] = {}
_libraries: weakref.WeakSet[NativeLibrary] = weakref.WeakSet()
_lock = ProcessLock(threading.RLock)


def register_function(name: str, function: Callable[..., Any] | None = None) -> Any:
    """Give `call_packed(name)` of every library in this process a Python function.

    With the name only it is a decorator. The last registration of a name counts. Arguments come
    as Tensors, numbers, strings, tuples and functions; an exception goes through the compiled
    code to whoever called it.
    """
    if function is None:
        return lambda f: register_function(name, f)
    name_bytes(name, "the name of a function")
    if not callable(function):
        raise ArgumentTypeError(
            f"{name!r} is registered with {type(function).__name__}, expected a function",
            code="argument-kind",
        )
    with _lock:
        _names[name] = function
        for library in _libraries:
            _tell(library, name, function)
    return function


def unregister_function(name: str) -> None:
    """Take a name away again; unknown ones are no error."""
    data = name_bytes(name, "the name of a function")
    with _lock:
        _names.pop(name, None)
        for library in _libraries:
            library.check(library.dll.kiln_register_function(data, None))


def add_library(library: NativeLibrary) -> None:
    """Tell a library that calls functions by name which there are, and will be."""
    handle = library.handle
    library.loaded.before.append(lambda dll: _take_names(dll, handle))
    with _lock:
        _libraries.add(library)
        for name, function in _names.items():
            _tell(library, name, function)


def remove_library(library: NativeLibrary) -> int:
    """Take all names back, so that nothing of ours is left in a library. How many were left for
    those who have loaded the same file."""
    with _lock:
        _libraries.discard(library)
        return _take_names(library.dll, library.handle)


def _take_names(dll: Any, handle: int) -> int:
    """The same for a library that nobody has any more: in C, all of one handle are one."""
    others = [library for library in _libraries if library.handle == handle]
    for name, function in list(_names.items()):
        if others:
            _tell(others[0], name, function)
        else:
            dll.kiln_register_function(name_bytes(name, "a name"), None)
    return len(_names) if others else 0


def _tell(library: NativeLibrary, name: str, function: Callable[..., Any]) -> None:
    value = Value()
    make_function(library, function, value)
    try:
        library.check(
            library.dll.kiln_register_function(name_bytes(name, "a name"), ctypes.byref(value))
        )
    finally:
        library.dll.kiln_release(ctypes.byref(value))
