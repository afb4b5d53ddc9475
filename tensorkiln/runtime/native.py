"""A loaded library: its C interface (kiln.h) through ctypes, and when it is unloaded.

Every object that needs a library holds a reference to its `NativeLibrary`, and no global object
does, so a library is unloaded when the last such object is gone.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorkiln.artifact.c_library import C_LIBRARIES, SystemNeed
from tensorkiln.artifact.metadata import (
    DeviceInfo,
    FunctionInfo,
    read_devices,
    read_functions,
    read_system,
)
from tensorkiln.base.errors import UserError
from tensorkiln.base.machine import architecture, c_library
from tensorkiln.runtime.actual_types import is_a
from tensorkiln.runtime.description import check_functions
from tensorkiln.runtime.device import Device
from tensorkiln.runtime.dlopen import load_file, unload_file
from tensorkiln.runtime.failures import CALLBACK_FAILED, ArgumentTypeError, error_for
from tensorkiln.runtime.fallback import Candidates, open_first
from tensorkiln.runtime.fast_call import FastCalls, python_function
from tensorkiln.runtime.library_file import LibraryFile, read_library_file
from tensorkiln.runtime.raised import raised_in_callback

ABI_VERSION = 2
_POLL_SECONDS = 0.001  # seconds between two checks for calls that are still running
_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_VERSION: dict[str, tuple[Any, tuple[Any, ...]]] = {"kiln_abi_version": (_I, ())}
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "kiln_open": (_I, ()),
    "kiln_last_error": (ctypes.c_char_p, ()),
    "kiln_function_index": (_I, (ctypes.c_char_p,)),
    "kiln_executor_create": (_I, (_P,)),
    "kiln_executor_destroy": (None, (_P,)),
    "kiln_executor_run": (_I, (_P, _I, _P, _I)),
    "kiln_executor_workspace_bytes": (_L, (_P,)),
    "kiln_executor_set_num_threads": (None, (_P, _I)),
    "kiln_python_call": (_P, (_P, _P, _L, _P)),
    "kiln_python_open": (None, (_P,)),
    "kiln_output_shape": (_I, (_I, _P, _I, _I, _P, _P)),
    "kiln_call": (_I, (_I, _P, _I)),
    "kiln_set_num_threads": (None, (_I,)),
    "kiln_get_num_threads": (_I, ()),
    "kiln_use_pool": (None, (_P,)),
}


# Only in libraries with outer functions. A kiln_dtype is passed as one 32-bit integer.
_VALUE_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "kiln_call_value": (_I, (_P, _P, _I, _P)),
    "kiln_executor_invoke": (_I, (_P, _I, _P, _I, _P)),
    "kiln_items_of": (_P, (_P, _P)),
    "kiln_live_objects": (_L, ()),
    "kiln_make_function": (_I, (_P, _P, _P, _P)),
    "kiln_make_string": (_I, (ctypes.c_char_p, _L, _P)),
    "kiln_make_tensor": (_I, (_P, _I, ctypes.c_uint32, _P)),
    "kiln_make_tuple": (_I, (_P, _I, _P)),
    "kiln_register_function": (_I, (ctypes.c_char_p, _P)),
    "kiln_release": (None, (_P,)),
    "kiln_retain": (None, (_P,)),
    "kiln_set_last_error": (None, (ctypes.c_char_p,)),
    "kiln_shape_of": (_P, (_P, _P)),
    "kiln_string_of": (_P, (_P, _P)),
    "kiln_take_dlpack": (_I, (_P, _P)),
}


# Only in libraries that carry artifacts for loaders.
_LOADER_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "kiln_call_import": (_I, (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, _P, _I, _P)),
    "kiln_has_loader": (_I, (ctypes.c_char_p,)),
    "kiln_set_last_error": (None, (ctypes.c_char_p,)),
    "kiln_set_module": (_I, (ctypes.c_char_p, ctypes.c_char_p, _P, _P)),
}

# Only in libraries with devices.
_DEVICE_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "kiln_executor_set_device": (_I, (_P, _I, _I, _P)),
}
_STREAM_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {  # where a kind has streams
    "kiln_executor_graph_count": (_L, (_P, _I)),
    "kiln_executor_run_in_stream": (_I, (_P, _I, _P, _I, _P)),
    "kiln_executor_set_graphs": (_I, (_P, _I)),
    "kiln_executor_set_stream": (_I, (_P, _I, _P)),
}
# What kiln_executor_graph_count counts: enum kiln_graph_count in kiln.h.
GRAPH_COUNTS = ("launched", "made", "updated", "dropped", "captured", "single", "host")

# Functions that run long, call Python, or wait for a thread that does: calls of them release the
# interpreter lock and are counted (`using`). All others keep the lock, so that no other thread can
# close the library during the call.
_LONG = frozenset(
    {
        "kiln_call",
        "kiln_call_import",
        "kiln_call_value",
        "kiln_executor_invoke",
        "kiln_executor_run",
        "kiln_executor_run_in_stream",
        "kiln_executor_set_device",
        "kiln_executor_set_graphs",
        "kiln_open",
        "kiln_set_module",
    }
)


class _PoolApi(ctypes.Structure):
    """`kiln_pool_api` in kiln.h."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("parallel_for", ctypes.c_void_p),
    ]


class _Payload(ctypes.Union):
    _fields_ = [
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("pointer", ctypes.c_void_p),
    ]


class Value(ctypes.Structure):
    """`kiln_value` in kiln.h."""

    _fields_ = [("kind", ctypes.c_int32), ("small", ctypes.c_uint32), ("payload", _Payload)]


class _Closed:
    """The `dll` of an unloaded library: every attribute raises UserError (code `closed`)."""

    def __init__(self, path: Path):
        self._path = path

    def __getattr__(self, name: str) -> Any:
        """Raise the error of a closed library."""
        raise closed_error(self._path)


def closed_error(path: Path) -> UserError:
    """The error that every use of a closed library raises."""
    message = f"library {str(path)!r} is closed"
    return UserError(message, code="closed", hint="load_module loads it again")


@dataclass(frozen=True, slots=True)
class Image:
    """A library that was linked in memory: the description its file would have, the addresses of
    its exported symbols, and the function that frees it."""

    file: LibraryFile
    addresses: Mapping[str, int]
    unload: Callable[[], None]


class _Addresses:
    """Functions at addresses as attributes, like those of a ctypes.CDLL."""

    def __init__(self, addresses: Mapping[str, int]):
        self._addresses = addresses

    def __getattr__(self, name: str) -> Any:
        """A ctypes function, created on first access."""
        if name not in self._addresses:
            raise AttributeError(name)
        function = _Function(self._addresses[name])
        setattr(self, name, function)
        return function


class _Function(_ctypes.CFuncPtr):
    """A C function at an address."""

    _flags_ = 1  # FUNCFLAG_CDECL
    _restype_ = ctypes.c_int


class ExecutorMemory:
    """Owns a C executor, which owns the memory for intermediate results. It is destroyed when the
    Executor and its functions are garbage, or when its library is closed."""

    def __init__(self, library: NativeLibrary, devices: Candidates | None = None):
        """`devices` are those with memory of their own; errors are those of `open_first`."""
        self.library = library
        self.handle = ctypes.c_void_p()
        self._asked, self.devices = devices or {}, dict[int, Device]()
        self.streams = dict[int, int]()  # of the host, by number of the device; none: its own
        self._graphs = False
        with library.using:
            self.create()
            library.executors.add(self)

    def create(self) -> None:
        """Create the C executor in `handle`: functions refer to that object, so it is kept."""
        dll = self.library.dll
        self.library.check(dll.kiln_executor_create(ctypes.byref(self.handle)))
        self._free = weakref.finalize(self, dll.kiln_executor_destroy, self.handle)
        self.library.unloading.keep_free(self._free)
        self.devices = open_first(self.library, self.handle, self._asked)
        for number, stream in self.streams.items():
            self.set_stream(number, stream)
        self.set_graphs(self._graphs)

    def set_stream(self, number: int, stream: int) -> None:
        """Let calls queue what they do on a CUDA device in a stream; 0: wait for it, as without."""
        choose = self.library.dll.kiln_executor_set_stream
        self.library.check(choose(self.handle, number, stream))
        self.streams[number] = stream

    def set_graphs(self, on: bool) -> None:
        """Let runs be graphs of CUDA, or let them not."""
        if on or self._graphs:
            self.library.check(self.library.dll.kiln_executor_set_graphs(self.handle, on))
        self._graphs = on

    def graph_counts(self) -> dict[str, int]:
        """The counts of GRAPH_COUNTS; zeros in a library without devices that have graphs."""
        if not any(row.kind == "cuda" for row in self.library.devices):
            return dict.fromkeys(GRAPH_COUNTS, 0)
        count = self.library.dll.kiln_executor_graph_count
        return {name: count(self.handle, i) for i, name in enumerate(GRAPH_COUNTS)}

    def destroy(self) -> None:
        """Destroy the C executor now rather than when this object is garbage."""
        self._free()


# (handle of the library, thread) for each running Python callback. Appending to a list and removing
# from it are atomic under the interpreter lock.
calling_back: list[tuple[int, int]] = []


class Using:
    """`with library.using:` counts a call into the library; required around every call except those
    of builtin functions, which crt/python.c counts. Entering raises UserError if the library is
    closed or being closed."""

    def __init__(self, path: Path):
        self._path = path
        self._threads: list[int] = []  # one entry per running call
        self._closers: list[int] = []
        _counted.add(self)

    def __enter__(self) -> None:
        self._threads.append(threading.get_ident())
        # Count first, then check; `close` claims first, then counts. So one sees the other.
        if self._closers:
            self._threads.remove(threading.get_ident())
            raise closed_error(self._path)

    def __exit__(self, *raised: object) -> None:
        self._threads.remove(threading.get_ident())

    def count(self, *, this_thread: bool) -> int:
        """How many calls are running: in this thread if `this_thread`, else in all threads."""
        return self._threads.count(threading.get_ident()) if this_thread else len(self._threads)

    def claim(self) -> bool:
        """Refuse new calls until `give_up`; return whether this is the only claim."""
        self._closers.append(threading.get_ident())
        return len(self._closers) == 1

    def give_up(self) -> None:
        """Undo `claim`."""
        self._closers.remove(threading.get_ident())

    def is_closing(self) -> bool:
        """Whether this thread is closing the library."""
        return threading.get_ident() in self._closers

    def only_this_thread(self) -> None:
        """Forget the other threads, in a child of fork(), where they do not exist."""
        this_thread = threading.get_ident()
        for entries in (self._threads, self._closers):
            entries[:] = [thread for thread in entries if thread == this_thread]


_counted: weakref.WeakSet[Using] = weakref.WeakSet()


def _only_this_thread() -> None:
    this_thread = threading.get_ident()
    calling_back[:] = [entry for entry in calling_back if entry[1] == this_thread]
    for using in _counted:
        using.only_this_thread()


os.register_at_fork(after_in_child=_only_this_thread)


@dataclass(slots=True, eq=False)
class _Unloading:
    """The state that unloading a library needs. It does not refer to the NativeLibrary, so that the
    finalizer of that object can hold it."""

    dll: Any
    unload: Callable[[], object]
    has_values: bool
    before: list[Callable[[Any], object]] = field(default_factory=list)  # called with `dll`
    after: list[Callable[[], object]] = field(default_factory=list)  # called once unloaded
    _frees: list[weakref.finalize[..., Any]] = field(default_factory=list)

    def keep_free(self, free: weakref.finalize[..., Any]) -> None:
        """Have an executor's finalizer run before the library is unloaded, even if the garbage
        collector finds both at once: it runs code of the library."""
        self._frees = [f for f in self._frees if f.alive] + [free]

    def run(self) -> None:
        """Unload the library, or defer that while values of it are alive elsewhere."""
        for free in self._frees:
            free()
        for function in self.before:
            function(self.dll)
        self.before.clear()
        lingering.append(self)
        unload_lingering()


_libraries: weakref.WeakSet[NativeLibrary] = weakref.WeakSet()

# No NativeLibrary is left for these, but values of theirs are alive: in other libraries, or from
# another load of the same file.
lingering: list[_Unloading] = []


def unload_lingering() -> None:
    """Unload the lingering libraries whose values have all been released."""
    for loaded in list(lingering):
        if (loaded.has_values and loaded.dll.kiln_live_objects()) or loaded not in lingering:
            continue
        lingering.remove(loaded)
        loaded.unload()
        for callback in loaded.after:
            callback()


class NativeLibrary:
    """A library in this process. It is unloaded by `close`, or when this object is garbage;
    executors, functions and values of the library refer to it."""

    def __init__(self, source: str | Path | LibraryFile | Image, weights: int | None = None):
        """`weights` is an open file from which weights that lie beside the library are mapped,
        rather than from the file of their name."""
        file = source.file if isinstance(source, Image) else source
        file = file if isinstance(file, LibraryFile) else read_library_file(file)
        _check_machine(file)
        self.path = file.path
        self.metadata = file.metadata
        self.functions = functions_of(file)
        self.devices = devices_of(file, self.functions)
        # Whether it exports the functions of _VALUE_PROTOTYPES.
        self.has_values = any(f.kind == "outer" for f in self.functions.values())
        self.closed = False
        self.using = Using(self.path)
        self.executors: weakref.WeakSet[ExecutorMemory] = weakref.WeakSet()
        extra_prototypes = dict(_VALUE_PROTOTYPES) if self.has_values else {}
        if any(row.number for row in self.devices):
            extra_prototypes |= _DEVICE_PROTOTYPES
        if any(row.kind == "cuda" for row in self.devices):
            extra_prototypes |= _STREAM_PROTOTYPES
        self.dll: Any
        if isinstance(source, Image):
            self.dll, unload = _Addresses(source.addresses), source.unload
            self.handle = id(self.dll)
        else:
            self.dll = load_file(file)
            self.handle = int(self.dll._handle)  # equal for loads of the same file
            unload = functools.partial(unload_file, self.handle)
        self.unloading = _Unloading(self.dll, unload, self.has_values)
        try:
            self._open(
                file, extra_prototypes | (_LOADER_PROTOTYPES if file.carries else {}), weights
            )
        except BaseException:
            unload()  # the caller never gets this object
            raise
        _libraries.add(self)
        self._drop = weakref.finalize(self, self.unloading.run)
        self._drop.atexit = False  # other threads may be in the code; the process ends anyway
        self.calls = FastCalls(self.dll, self.check)
        self._pools: list[tuple[_PoolApi | None, object]] = []

    def _open(
        self,
        file: LibraryFile,
        extra_prototypes: Mapping[str, tuple[Any, tuple[Any, ...]]],
        weights: int | None,
    ) -> None:
        """Declare the C functions, and raise unless this processor can run the library and its
        code has the functions that its metadata describes."""
        _declare(self.dll, file.path, _VERSION)
        self._check_version()  # first: another version may lack functions
        _declare(self.dll, file.path, {**_PROTOTYPES, **extra_prototypes})
        check_functions(self.dll, self.functions.values(), str(file.path))
        if weights is not None:
            self._use_weights(weights)
        self.check(self.dll.kiln_open())

    def _use_weights(self, file: int) -> None:
        try:
            use = python_function(self.dll, "kiln_use_weights", _I, (_I,))
        except AttributeError:
            raise UserError(
                f"{str(self.path)!r} opens its weights by name, so they cannot be checked before",
                code="library-version",
                hint="it was exported by an older version: export it again",
            ) from None
        self.check(use(file))

    def on_close(self, function: Callable[[], object]) -> None:
        """Call `function` after the library is unloaded."""
        self.unloading.after.append(function)

    def use_pool(self, parallel_for: Any) -> None:
        """See `Module.use_pool`."""
        address: int | None
        if parallel_for is None:
            address = None
        elif isinstance(parallel_for, _ctypes.CFuncPtr):
            address = ctypes.cast(parallel_for, ctypes.c_void_p).value
        elif is_a(parallel_for, int) and not is_a(parallel_for, bool) and parallel_for > 0:
            address = int(parallel_for)
        else:
            raise ArgumentTypeError(
                "a pool is a C function, of a ctypes library or by its address, or None; received "
                f"{type(parallel_for).__name__}",
                code="argument-kind",
                hint="parallel_for of kiln_pool_api in kiln.h says what it does",
            )
        pool = None
        if address is not None:
            pool = _PoolApi(1, ctypes.sizeof(_PoolApi), address)
        self.dll.kiln_use_pool(None if pool is None else ctypes.byref(pool))
        # C keeps the address of the struct; a call that began before may use the former one still.
        self._pools.append((pool, parallel_for))

    def _check_version(self) -> None:
        version = self.dll.kiln_abi_version()
        if version != ABI_VERSION:
            raise UserError(
                f"{str(self.path)!r} has library interface {version}, this Tensorkiln knows "
                f"{ABI_VERSION}",
                code="library-version",
            )

    def close(
        self,
        *,
        wait: bool = False,
        forget: Callable[[], int] = lambda: 0,
        recall: Callable[[], object] = lambda: None,
    ) -> None:
        """Unload the library; every later use raises UserError (code `closed`).

        Raises UserError (code `in-use`) while values of it are alive or a call is running; with
        `wait`, waits for calls of other threads and refuses new ones. `forget` releases values that
        Python itself stored in the library, and returns how many remain for other loads of the
        same file; `recall` restores them if closing fails.
        """
        while not self.closed and not self.using.is_closing():
            self._refuse_calls(this_thread=wait)
            try:
                if self.using.claim():
                    self._close(wait, forget, recall)
                elif not wait:
                    raise self._in_use("another thread is closing it")
            finally:
                self.using.give_up()
            if not self.closed:
                time.sleep(_POLL_SECONDS)

    def _close(self, wait: bool, forget: Callable[[], int], recall: Callable[[], object]) -> None:
        self.calls.close()
        try:
            while self._count_calls(this_thread=False):
                self._refuse_calls(this_thread=wait)
                time.sleep(_POLL_SECONDS)
            self._unload(forget, recall)
        except BaseException:
            self.calls.open()
            raise

    def _count_calls(self, *, this_thread: bool) -> int:
        """How many calls and callbacks are running, in this thread if `this_thread`, else in all.

        A callback does not tell which load of a file was called. Where another load is open, it
        keeps the file mapped, and those that this one was called for are among its calls.
        """
        thread = threading.get_ident()
        here_only = this_thread or any(
            library.handle == self.handle and library is not self and not library.closed
            for library in list(_libraries)
        )
        back = sum(h == self.handle and (t == thread or not here_only) for h, t in calling_back)
        return (
            back
            + self.using.count(this_thread=this_thread)
            + self.calls.count(this_thread=this_thread)
        )

    def _refuse_calls(self, *, this_thread: bool) -> None:
        """Raise UserError (code `in-use`) if calls run, in any thread unless `this_thread`."""
        thread = threading.get_ident()
        if (self.handle, thread) in calling_back:
            raise self._in_use("it has called a Python function that has not returned")
        if self._count_calls(this_thread=True):
            raise self._in_use("this thread is in a call of it")
        if not this_thread and (count := self._count_calls(this_thread=False)):
            calls = "a call of it is" if count == 1 else f"{count} calls of it are"
            raise self._in_use(
                f"{calls} under way", "close(wait=True) waits for the calls of others"
            )

    def _in_use(self, reason: str, hint: str = "close it when the call is over") -> UserError:
        message = f"library {str(self.path)!r} cannot be closed: {reason}"
        return UserError(message, code="in-use", hint=hint)

    def _unload(self, forget: Callable[[], int], recall: Callable[[], object]) -> None:
        """Unload while no call is running or can begin. If values are alive, undo and raise."""
        executors = list(self.executors)
        for executor in executors:
            executor.destroy()
        try:
            dormant = forget()
            live = self.dll.kiln_live_objects() - dormant if self.has_values else 0
            if live > 0:
                hint = "drop the tensors and functions that it returned"
                raise self._in_use(f"{live} of its values are in use", hint)
        except BaseException:
            for executor in executors:
                executor.create()
            recall()
            raise
        self.dll, self.closed = _Closed(self.path), True
        self._drop.detach()
        self.unloading.run()

    def check(self, code: int) -> None:
        """Raise the exception for a result code (enum kiln_code) other than 0."""
        if code == CALLBACK_FAILED:
            raise raised_in_callback(self.dll.kiln_last_error())
        if code:
            raise error_for(code, self.dll.kiln_last_error())

    def index(self, name: str | bytes) -> int:
        """A function's number, by which C calls it; -1 for an unknown name."""
        data = name.encode() if isinstance(name, str) else name
        return int(self.dll.kiln_function_index(data))


def functions_of(file: LibraryFile) -> dict[str, FunctionInfo]:
    """The functions in a library's metadata, by name; UserError if the metadata is damaged."""
    try:
        return read_functions(file.metadata, str(file.path))
    except UserError as error:
        raise _damaged(file) from error


def devices_of(file: LibraryFile, functions: Mapping[str, FunctionInfo]) -> tuple[DeviceInfo, ...]:
    """The devices in a library's metadata; UserError if it is damaged, or if a parameter of one of
    the functions is on a device that it does not list."""
    try:
        devices = read_devices(file.metadata, str(file.path))
    except UserError as error:
        raise _damaged(file) from error
    numbers = {0, *(row.number for row in devices)}
    if any(p.device not in numbers for f in functions.values() for p in (*f.inputs, *f.outputs)):
        raise _damaged(file)
    return devices


def _damaged(file: LibraryFile) -> UserError:
    message = f"{str(file.path)!r} is not a Tensorkiln library: its metadata is damaged"
    return UserError(message, code="not-a-library")


def _check_machine(file: LibraryFile) -> None:
    machine = architecture()
    if file.machine != machine:
        raise UserError(
            f"{str(file.path)!r} is compiled for {file.machine}, this machine is {machine}",
            code="wrong-machine",
        )
    process, need = c_library(), read_system(file.metadata, str(file.path))
    if process is None:
        return
    name, version = process
    is_older = version and need.name == name and SystemNeed(name, version).order < need.order
    if need.name != name or is_older:
        raise UserError(
            f"{str(file.path)!r} needs {need}, this process has {' '.join(process).rstrip()}",
            code="wrong-machine",
            hint="" if is_older else f"mtriple {machine}-linux-{C_LIBRARIES[name].environment}",
        )


def _declare(dll: Any, path: Path, prototypes: dict[str, tuple[Any, tuple[Any, ...]]]) -> None:
    """Declare types of results and arguments; UserError for a function that `dll` lacks."""
    for name, (result, arguments) in prototypes.items():
        try:
            if name in _LONG:
                function = getattr(dll, name)
                function.restype, function.argtypes = result, arguments
            else:
                setattr(dll, name, python_function(dll, name, result, arguments))
        except AttributeError:
            raise UserError(
                f"{str(path)!r} is not a Tensorkiln library: it has no {name}", code="not-a-library"
            ) from None
