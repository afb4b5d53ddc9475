"""Load artifacts as modules; artifacts in memory and libraries on disk go through the same steps.

    1  partition   group the artifacts by loader and target key
    2  metadata    read the list of functions from the library's file, before any code of it runs
    3  native      link and open the host code; artifacts without host code use the library that
                   carries them, or the one that the caller passes
    4  others      in the order of loaders' names, pass each group to its loader: it makes a module
    5  imports     give each module the modules that it imports, and the library all others
    6  context     the library is the root: a function of any module may look up functions there

A loader is a Python function (`register_loader`), or C in the library itself or its host
(`kiln_register_loader`, kiln.h). A loader that is not registered in Python is not an error until a
function of its group is called, except when artifacts are added to a loaded library.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact, LoaderGroup
from tensorkiln.artifact.artifact_set import RESERVED_LOADER
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import open_plain, plain_path
from tensorkiln.base.plugin import plugin
from tensorkiln.base.trust import private_temporary
from tensorkiln.runtime.actual_types import name_bytes, text_bytes
from tensorkiln.runtime.callbacks import add_library
from tensorkiln.runtime.device import Device, Devices
from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError, FunctionLookupError
from tensorkiln.runtime.imported import ImportedModule, NativeModule, PythonModule
from tensorkiln.runtime.library_file import LibraryFile, read_library_file, unreadable
from tensorkiln.runtime.module import Module
from tensorkiln.runtime.native import Image, NativeLibrary
from tensorkiln.runtime.python_modules import set_modules

# Makes a module of all artifacts of one loader and target key, for devices: a mapping from names to
# functions, any other object with `[name]`, or one function, which is named after the first file.
Loader = Callable[[tuple[Artifact, ...], tuple[Device, ...]], Any]
Link = Callable[[ArtifactSet, Path], Path | Image]

_NOT_LOADED = ("native", "llvmjit", "header", "text")
_ATTEMPTS = 8
_loaders: dict[str, Loader] = {}


def register_loader(name: str, function: Loader | None = None) -> Any:
    """Let `function(artifacts, devices)` make modules of the artifacts that name this loader.
    `devices` has the one of their target key, or all that the library's code runs on.

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
    devices: Devices = None,
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
    devices: Devices = None,
    *,
    fallback: Devices = None,
    verify: bool = False,
    sha256: str | None = None,
) -> Module:
    """Load a compiled library and the artifacts that it carries. `devices` are those that Executors
    of it use where they choose none, and that its loaders get; none is opened here. `fallback` are
    devices in the place of those that cannot be had (`Executor`); by default there are none.

    Raises UserError if the file does not exist, is not a library of Tensorkiln, is for another
    machine, has damaged artifacts (all this before any code of it runs), or needs a CPU feature
    that this processor lacks. The file that is at the path now is loaded, even if another one was
    loaded from there before. With `verify`, all weights are read and compared with their hash
    (codes `bad-weights`, `no-hash`). `sha256`, the SHA-256 of the file as 64 hexadecimal digits, is
    compared before any code of the file runs (code `bad-hash`), and weights beside it with their
    hash in the library. Then what runs is a copy of both in memory, which nobody can change
    (`base/sealed.py`); libraries that it needs are found as ever, and are not part of the hash.
    """
    if sha256 is not None:
        library, artifacts = _load_sealed(plain_path(path), _hash_bytes(sha256))
    else:
        library, artifacts = _load_named(path, verify)
    module = _attach_new(Module(library), artifacts, devices)
    module.fallback = fallback
    if fallback is not None:
        try:
            module.by_number(module.assigned(None), None)
        except UserError:
            module.close()
            raise
    return module


def _hash_bytes(text: object) -> bytes:
    """A SHA-256 of hexadecimal digits. Raises ArgumentTypeError, ArgumentValueError for others."""
    data = text_bytes(text, "sha256")
    try:
        digest = bytes.fromhex(data.decode())
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ArgumentValueError(
            f"sha256={text!r:.80}: expected 64 hexadecimal digits",
            code="bad-text",
            hint="sha256sum prints them",
        )
    return digest


def _load_named(path: str | Path, verify: bool) -> tuple[NativeLibrary, ArtifactSet]:
    """Load the file that is at the path now; again if an export replaces it meanwhile."""
    attempt = 1
    while True:
        with ExitStack() as stack:
            file = read_library_file(path, keep=stack)
            artifacts = file.artifacts()
            try:
                weights = _verified(file, stack) if verify else None
                return NativeLibrary(file, weights), artifacts
            except UserError:
                if attempt == _ATTEMPTS or not file.is_replaced():
                    raise
                attempt += 1


def _verified(file: LibraryFile, stack: ExitStack) -> int | None:
    """Verify the weights of a library; of those beside it, the open file from which it is to map
    them, which `stack` closes."""
    from tensorkiln.artifact.weights_check import weights_beside, weights_place

    place = weights_place(file.path)
    if not place.size:
        return None
    if not place.is_beside:
        place.verify()
        return None
    beside = weights_beside(file.path.resolve())
    with unreadable(beside):
        stream = stack.enter_context(open_plain(beside))
    descriptor_path = Path(f"/proc/self/fd/{stream.fileno()}")
    place.verify_beside(descriptor_path if descriptor_path.exists() else beside, str(beside))
    return stream.fileno()


def _load_sealed(path: Path, expected: bytes) -> tuple[NativeLibrary, ArtifactSet]:
    """Load a copy of a file that nobody can change once it is hashed, and of the weights beside
    it. UserError (code `bad-hash`) unless the file has this SHA-256."""
    from tensorkiln.artifact.weights_check import weights_beside, weights_place
    from tensorkiln.base.sealed import SealedCopy

    def sealed_copy(original: Path, stack: ExitStack) -> SealedCopy:
        with unreadable(original):
            copy = SealedCopy(original)
        stack.callback(copy.close)
        return copy

    with ExitStack() as lifetime, ExitStack() as preparation:
        copy = sealed_copy(path, lifetime)
        if copy.sha256 != expected.hex():
            raise UserError(
                f"{str(path)!r} has the SHA-256 {copy.sha256}, expected {expected.hex()}",
                code="bad-hash",
            )
        file = read_library_file(path, copy.path)
        artifacts = file.artifacts()
        place, weights = weights_place(copy.path, str(path)), None
        if place.is_beside:  # those inside are part of the hash
            beside = weights_beside(path.resolve())
            weights = sealed_copy(beside, preparation)
            place.verify_beside(weights.path, str(beside))
        library = NativeLibrary(file, None if weights is None else weights.file)
        library.on_close(lifetime.pop_all().close)
    return library, artifacts


def _attach_new(root: Module, artifacts: ArtifactSet, devices: Devices) -> Module:
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
    devices: Devices,
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
    row_devices = root.assigned(devices)
    if devices is not None:
        root.devices = row_devices
    groups = {g: a for g, a in artifacts.groups().items() if g.loader not in _NOT_LOADED}
    if replacing:
        _require_loaders(groups)
    modules = {
        group: _module_of(library, group, files, _of_key(root, group.target_key, row_devices))
        for group, files in groups.items()
    }
    for above, below in artifacts.imports:
        modules[above].imports.append(modules[below])
    imported = {below for _, below in artifacts.imports}
    for module in modules.values():
        module.root = weakref.ref(root)
    set_modules(library, [m for m in modules.values() if isinstance(m, PythonModule)])
    stays = [m for m in root.imports if m.group not in modules]
    root.imports[:] = stays + [module for group, module in modules.items() if group not in imported]
    return root


def _of_key(root: Module, key: str, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The device that a loader's group of this target key is for; all that the library's code runs
    on for one without a device of its own."""
    rows = zip(root.library.devices, devices, strict=False)
    return tuple(d for row, d in rows if key and row.target_key == key) or devices


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
            answer = first.load()
        return PythonModule(group, answer, first.file_name)
    function = _loaders.get(group.loader)
    if function is None:
        return NativeModule(group, library)
    plain = tuple(a for a in files if isinstance(a, Artifact))
    with plugin(f"loader {group}"):
        answer = function(plain, devices)
    return PythonModule(group, answer, first.file_name)
