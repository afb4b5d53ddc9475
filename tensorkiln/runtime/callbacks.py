"""Register Python functions that compiled code calls by name (`call_packed`)."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tensorkiln.runtime.actual_types import name_bytes
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.locks import ProcessLock
from tensorkiln.runtime.native import NativeLibrary, Value
from tensorkiln.runtime.values import make_function

_names: dict[str, Callable[..., Any]] = {}
_libraries: weakref.WeakSet[NativeLibrary] = weakref.WeakSet()
_lock = ProcessLock(threading.RLock)


def register_function(name: str, function: Callable[..., Any] | None = None) -> Any:
    """Make `call_packed(name)` call `function`, in every library of this process.

    Applies to libraries loaded later as well. Without `function`, returns a decorator. Registering
    a name again replaces its function. Arguments arrive as Tensors, numbers, strings, tuples and
    functions; an exception propagates through the compiled code to the caller of the library.
    Raises ArgumentTypeError if `function` is not callable.
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
            _set_function(library, name, function)
    return function


def unregister_function(name: str) -> None:
    """Remove a name from all libraries; unknown names are ignored."""
    data = name_bytes(name, "the name of a function")
    with _lock:
        _names.pop(name, None)
        for library in _libraries:
            library.check(library.dll.kiln_register_function(data, None))


def add_library(library: NativeLibrary) -> None:
    """Register all functions in a library, and have later registrations include it."""
    handle = library.handle
    library.unloading.before.append(lambda dll: _take_names(dll, handle))
    with _lock:
        _libraries.add(library)
        for name, function in _names.items():
            _set_function(library, name, function)


def remove_library(library: NativeLibrary) -> int:
    """Unregister all functions in a library, so that it holds none of Python's values.

    If another load of the same file is open, which shares the C library, its functions stay
    registered; returns how many they are, else 0.
    """
    with _lock:
        _libraries.discard(library)
        return _take_names(library.dll, library.handle)


def _take_names(dll: Any, handle: int) -> int:
    """As `remove_library`, by handle: loads with the same handle share one C library."""
    loads = [library for library in _libraries if library.handle == handle]
    for name, function in list(_names.items()):
        if loads:
            _set_function(loads[0], name, function)
        else:
            dll.kiln_register_function(name_bytes(name, "a name"), None)
    return len(_names) if loads else 0


def _set_function(library: NativeLibrary, name: str, function: Callable[..., Any]) -> None:
    value = Value()
    make_function(library, function, value)
    try:
        library.check(
            library.dll.kiln_register_function(name_bytes(name, "a name"), ctypes.byref(value))
        )
    finally:
        library.dll.kiln_release(ctypes.byref(value))
