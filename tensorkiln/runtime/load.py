"""Load artifacts as modules; artifacts in memory and libraries on disk go through the same steps.

    1  partition   group the artifacts by loader and target key
    2  metadata    read the list of functions from the library's file, before any code of it runs
    3  native      link and open the host code; artifacts without host code use the library that
                   carries them, or the one that the caller passes
    4  others      in the order of loaders' names, pass each group to its loader: it makes a module
    5  imports     give each module the modules that it imports, and the library all others
    6  context     the library is the root: a function of any module may look up functions there

A loader is a Python function (`register_loader`), or C in the library itself or its host
(`kiln_register_loader`, kiln.h). A loader that is not registered in Python is no error until a
function of its group is called, except when artifacts are added to a loaded library.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact, LoaderGroup
from tensorkiln.artifact.artifact_set import RESERVED_LOADER
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.base.trust import private_temporary
from tensorkiln.runtime.actual_types import name_bytes
from tensorkiln.runtime.callbacks import add_library
from tensorkiln.runtime.device import Device, device_list
from tensorkiln.runtime.failures import CALLBACK_FAILED, ArgumentTypeError, FunctionLookupError
from tensorkiln.runtime.library_file import read_library_file
from tensorkiln.runtime.locks import ProcessLock
from tensorkiln.runtime.module import Module
from tensorkiln.runtime.native import Image, NativeLibrary, Value, calling_back
from tensorkiln.runtime.numbers import TENSOR, UINT, out_of_range, put_number
from tensorkiln.runtime.raised import keep_raised, need_room, passing
from tensorkiln.runtime.tensor import view_of
from tensorkiln.runtime.values import from_value, lent_value, to_value

# Makes a module of all artifacts of one loader and target key, for devices: a mapping from names to
# functions, any other object with `[name]`, or one function, which is named after the first file.
Loader = Callable[[tuple[Artifact, ...], tuple[Device, ...]], Any]
Link = Callable[[ArtifactSet, Path], Path | Image]

_NOT_LOADED = ("native", "llvmjit", "header", "text")
_NAME_ERROR = 10  # KILN_ERROR_NAME
_ATTEMPTS = 8
_loaders: dict[str, Loader] = {}


def register_loader(name: str, function: Loader | None = None) -> Any:
    """Let `function(artifacts, devices)` make modules of the artifacts that name this loader.

    Without `function`, returns a decorator. Registering a name again replaces the loader, for
    libraries that are loaded from then on. Functions of the module are called as kernels are, with
    Tensors and numbers: they write their results into the last Tensors. `R.call_packed` calls them
    with values of all kinds, and its result is what they return. Raises ArgumentTypeError if
    `function` is not callable, UserError (code `bad-loader`) for a reserved name.
    """
    if function is None:
        return lambda f: register_loader(name, f)
    name_bytes(name, "the name of a loader")
    if not callable(function):
        raise ArgumentTypeError(
            f"loader {name!r} is {type(function).__name__}, expected a function",
            code="argument-kind",
        )
    if name in (*_NOT_LOADED, RESERVED_LOADER) or not name or name.startswith("_"):
        raise UserError(
            f"loader {name!r} cannot be registered: the name is reserved",
            code="bad-loader",
        )
    _loaders[name] = function
    return function


def unregister_loader(name: str) -> None:
    """Remove a loader; unknown names are ignored."""
    _loaders.pop(name, None)


def load_artifacts(
    artifacts: ArtifactSet,
    devices: Device | Sequence[Device] | None = None,
    *,
    link: Link,
    library: Module | None = None,
) -> Module:
    """Load artifacts; `link(artifacts, folder)` links the native ones as a library, in the folder
    or in memory.

    Artifacts without native code are attached to `library`, replacing its modules of the same
    groups, and `library` is returned. Raises UserError (code `no-library`) if there is neither
    native code nor `library`, or both; FunctionLookupError (code `unknown-loader`) for artifacts
    for `library` whose loader is not registered in Python; and what `link`, a loader or
    `load_module` raises.
    """
    has_native = any(a.loader in ("native", "llvmjit") for a in artifacts)
    if has_native == (library is not None):
        raise UserError(
            "artifacts with native code cannot be added to a library"
            if has_native
            else "no artifact is native code: expected the library that they belong to",
            code="no-library",
            hint="load_artifacts(artifacts)"
            if has_native
            else "name one: library=load_module(...)",
        )
    if library is not None:
        return _attach(library, artifacts, devices, replacing=True)
    folder = private_temporary("kiln-jit-")
    root = Module(NativeLibrary(link(artifacts, Path(folder.name))))
    root.keep = folder
    return _attach_new(root, artifacts, devices)


def load_module(
    path: str | Path,
    devices: Device | Sequence[Device] | None = None,
    *,
    verify: bool = False,
) -> Module:
    """Load a compiled library and the artifacts that it carries.

    Raises UserError if the file does not exist, is not a library of Tensorkiln, is for another
    machine, has damaged artifacts (all this before any code of it runs), or needs a CPU feature
    that this processor lacks. The file that is at the path now is loaded, even if another one was
    loaded from there before. With `verify`, all weights are read and compared with their hash
    (codes `bad-weights`, `no-hash`).
    """
    for attempt in itertools.count(1):
        file = read_library_file(path)
        artifacts = file.artifacts()
        try:
            if verify:
                from tensorkiln.artifact.weights_check import verify_library

                verify_library(path)
            library = NativeLibrary(file)
            break
        except UserError:  # if an export replaced the file meanwhile, try again
            if attempt == _ATTEMPTS or not file.is_replaced():
                raise
    return _attach_new(Module(library), artifacts, devices)


def _attach_new(
    root: Module, artifacts: ArtifactSet, devices: Device | Sequence[Device] | None
) -> Module:
    """As `_attach`, but unload the library if that fails: the traceback would keep it loaded."""
    try:
        return _attach(root, artifacts, devices)
    except BaseException:
        with contextlib.suppress(UserError):
            root.close()
        raise


def _attach(
    root: Module,
    artifacts: ArtifactSet,
    devices: Device | Sequence[Device] | None,
    *,
    replacing: bool = False,
) -> Module:
    """Steps 4 to 6 of the module docstring: load each group and attach the modules to the library.

    With `replacing`, the library's modules of other groups stay.
    """
    artifacts.require_loaders()
    library = root.library
    if library.has_values:
        add_library(library)
    found = device_list(devices)
    groups = {g: a for g, a in artifacts.groups().items() if g.loader not in _NOT_LOADED}
    if replacing:
        _require_loaders(groups)
    made = {group: _module_of(library, group, files, found) for group, files in groups.items()}
    for above, below in artifacts.imports:
        made[above].imports.append(made[below])
    imported = {below for _, below in artifacts.imports}
    for module in made.values():
        module.root = weakref.ref(root)
    _set_modules(library, [m for m in made.values() if isinstance(m, PythonModule)])
    stays = [m for m in root.imports if m.group not in made]
    root.imports[:] = stays + [module for group, module in made.items() if group not in imported]
    return root


def _require_loaders(groups: Mapping[LoaderGroup, Sequence[Artifact | InMemoryArtifact]]) -> None:
    """Raise FunctionLookupError for a group without a loader in Python: a loader in C can read only
    the artifacts that its library carries."""
    for group, files in groups.items():
        if group.loader not in _loaders and not isinstance(files[0], InMemoryArtifact):
            names = ", ".join(a.file_name for a in files)
            raise FunctionLookupError(
                f"loader {group} is not registered in Python, so nothing can be made of {names}",
                code="unknown-loader",
                hint=nearest(group.loader, _loaders) or f"known: {', '.join(_loaders) or 'none'}",
            )


def _module_of(
    library: NativeLibrary,
    group: LoaderGroup,
    files: Sequence[Artifact | InMemoryArtifact],
    devices: tuple[Device, ...],
) -> ImportedModule:
    """The module of a group; a NativeModule if its loader is not registered in Python."""
    first = files[0]
    if isinstance(first, InMemoryArtifact):
        with plugin(f"load of {first.name}"):
            made = first.load()
        return PythonModule(group, made, first.file_name)
    function = _loaders.get(group.loader)
    if function is None:
        return NativeModule(group, library)
    plain = tuple(a for a in files if isinstance(a, Artifact))
    with plugin(f"loader {group}"):
        made = function(plain, devices)
    return PythonModule(group, made, first.file_name)


class ImportedModule(ABC):
    """A module that a loader made from a group of artifacts: functions by name."""

    def __init__(self, group: LoaderGroup):
        self.group = group
        self.imports: list[ImportedModule] = []
        # The root library; weak, so that a module does not keep it loaded.
        self.root: Callable[[], Module | None] = lambda: None

    @property
    def kind(self) -> str:
        """The loader's name."""
        return self.group.loader

    @property
    def type_key(self) -> str:
        """The same as `kind`."""
        return self.group.loader

    @property
    def imported_modules(self) -> list[ImportedModule]:
        """The same as `imports`."""
        return self.imports

    @abstractmethod
    def own(self, name: str) -> Callable[..., Any] | None:
        """This module's function of that name, if it has it; imports are not searched."""

    def names(self) -> tuple[str, ...]:
        """Names of its own functions; empty if they are unknown."""
        return ()

    def below(self) -> Iterator[ImportedModule]:
        """This module and its direct and indirect imports, breadth-first, each once."""
        queue, seen = [self], {id(self)}
        for module in queue:
            yield module
            new = [m for m in module.imports if id(m) not in seen]
            seen.update(map(id, new))
            queue.extend(new)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """A function of this module, else of its imports; FunctionLookupError if there is none."""
        name_bytes(name, "the name of a function")
        for module in self.below():
            found = module.own(name)
            if found is not None:
                return found
        names = [n for module in self.below() for n in module.names()]
        raise FunctionLookupError(
            f"no function {name!r} in the module of loader {self.group}",
            code="no-function",
            hint=nearest(name, names) or ", ".join(names[:8]),
        )

    def __repr__(self) -> str:
        """The loader and target key."""
        return f"<module of loader {self.group}>"


class PythonModule(ImportedModule):
    """A module made by a Python loader."""

    def __init__(self, group: LoaderGroup, made: Any, file_name: str):
        super().__init__(group)
        self._made = made
        if callable(made) and not hasattr(made, "__getitem__"):
            self._made = {Path(file_name).stem: made}
        no_names = isinstance(made, str | bytes | list | tuple)
        if no_names or not hasattr(self._made, "__getitem__"):
            expected = "functions by name, as a dict, or one function"
            raise bad_answer(f"loader {group}", made, expected, "bad-loader")

    def own(self, name: str) -> Callable[..., Any] | None:
        """The function of that name, or None; UserError if it is not callable."""
        with plugin(f"module of loader {self.group}: looking for {name!r}"):
            try:
                found = self._made[name]
            except LookupError:
                return None
        if not callable(found):
            raise UserError(f"{name!r} of loader {self.group} is not callable", code="bad-loader")
        return found  # type: ignore[no-any-return]

    def names(self) -> tuple[str, ...]:
        """The keys of a mapping; empty for other objects."""
        return tuple(map(str, self._made)) if isinstance(self._made, Mapping) else ()


class NativeModule(ImportedModule):
    """A module of a loader in C. Functions are looked up when they are called, so `own` returns one
    for any name, and a call may raise FunctionLookupError."""

    def __init__(self, group: LoaderGroup, library: NativeLibrary):
        super().__init__(group)
        self._library = library

    def own(self, name: str) -> Callable[..., Any]:
        """A function that looks up and calls the loader's function `name`."""
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: Sequence[object]) -> None:
        values, kept = (Value * max(1, len(arguments)))(), []
        for i, argument in enumerate(arguments):
            what = f"{name}: argument {i}"
            if put_number(values[i], argument, what):
                if values[i].kind == UINT:
                    raise out_of_range(what, "int64", argument)
            else:
                address, owner = view_of(argument, what, writable=False)
                values[i].kind, values[i].payload.pointer = TENSOR, address
                kept.append(owner)
        result, library = Value(), self._library
        loader, key = self.group.loader.encode(), self.group.target_key.encode()
        with library.using:
            call = library.dll.kiln_call_import
            library.check(
                call(loader, key, name.encode(), values, len(arguments), ctypes.byref(result))
            )


# ---- what C calls ---------------------------------------------------------------------------

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
    found = _modules.get(number)
    if found is None:  # closed while it was called
        return _NAME_ERROR
    library, module = _open_library(found[0]), found[1]
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
            given = [from_value(library, value) for value in values]
            to_value(library, function(*given), result[0], f"the result of {name.decode()!r}")
        return 0
    except BaseException as error:
        error.add_note(f"in function {name.decode()!r} of loader {module.group}")
        dll.kiln_set_last_error(keep_raised(error))
        return CALLBACK_FAILED
    finally:
        calling_back.remove(entry)


def _open_library(handle: int) -> NativeLibrary | None:
    """An open NativeLibrary of the handle, None if all are closed. C does not tell which load of
    the file makes the call; all share one C library, so any will do."""
    found = (load() for load in tuple(_loads.get(handle, ())))
    return next((library for library in found if library is not None and not library.closed), None)


_call_module_c = _CallType(_call_module)
_C_LOADER = _CLoader(ctypes.sizeof(_CLoader), None, _LoadType(), _call_module_c, None)


def _set_modules(library: NativeLibrary, made: Sequence[PythonModule]) -> None:
    """Set the modules of Python loaders in the C library, so that compiled code can call them."""
    if not made:
        return
    dll, handle = library.dll, library.handle
    with _lock:
        _in_use.setdefault(handle, []).append(0)
        _loads.setdefault(handle, []).append(weakref.ref(library))
    library.on_close(lambda: _forget(handle))
    for module in made:
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
