"""Names of Python functions for `call_packed`."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.native import NativeLibrary, Value
from tensorkiln.runtime.values import make_function

_names: dict[str, Callable[..., Any]] = {}
_libraries: weakref.WeakSet[NativeLibrary] = weakref.WeakSet()
_lock = threading.Lock()


def register_function(name: str, function: Callable[..., Any] | None = None) -> Any:
    """Give `call_packed(name)` of every library in this process a Python function.

    With the name only it is a decorator. The last registration of a name counts. Arguments come
    as Tensors, numbers, strings, tuples and functions; an exception goes through the compiled
    code to whoever called it.
    """
    if function is None:
        return lambda f: register_function(name, f)
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
    with _lock:
        _names.pop(name, None)
        for library in _libraries:
            library.check(library.dll.kiln_register_function(name.encode(), None))


def add_library(library: NativeLibrary) -> None:
    """Tell a library that calls functions by name which there are, and will be."""
    library.loaded.before.append(_take_names)
    with _lock:
        _libraries.add(library)
        for name, function in _names.items():
            _tell(library, name, function)


def remove_library(library: NativeLibrary) -> None:
    """Take all names back, so that nothing of ours is left in a library."""
    with _lock:
        _libraries.discard(library)
        for name in _names:
            library.check(library.dll.kiln_register_function(name.encode(), None))


def _take_names(dll: Any) -> None:
    """The same for a library that nobody has any more."""
    for name in list(_names):
        dll.kiln_register_function(name.encode(), None)


def _tell(library: NativeLibrary, name: str, function: Callable[..., Any]) -> None:
    value = Value()
    make_function(library, function, value)
    try:
        library.check(library.dll.kiln_register_function(name.encode(), ctypes.byref(value)))
    finally:
        library.dll.kiln_release(ctypes.byref(value))
