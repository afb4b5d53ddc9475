"""Load the file that is at a path now, even if another file was loaded from that path before.

glibc's dlopen() returns the library that was loaded under the same name, even if the path now holds
another file; only for a name it has not seen does it compare device and inode. So a file is opened
twice: by its path, which debuggers show, and by a spelling of the path that is unique to the file,
such as `/tmp//././net.so`, whose `/` and `./` encode device and inode. The second dlopen() always
returns the right library: the same one as the first, unless that was of a former file.

A sealed copy (`base/sealed.py`) is opened by its descriptor alone. Debuggers show `/proc/self/fd/`,
and `/proc/self/maps` shows `/memfd:net.so`.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.artifact import FileContent
from tensorkiln.artifact.metadata import read_dependencies
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.errors import UserError
from tensorkiln.runtime.library_file import LibraryFile
from tensorkiln.runtime.locks import ProcessLock

_HASH = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class _OpenFile:
    """A file's state (`base/mapped.py`) when it was loaded, and how often it is open."""

    state: tuple[int, ...]
    count: int = 0


_open_files: dict[int, _OpenFile] = {}  # by handle
_lock = ProcessLock(threading.RLock)


def load_file(file: LibraryFile) -> ctypes.CDLL:
    """Load the library that `file` was read from; a file that is loaded twice has one handle.

    Raises UserError: `cannot-load` with the system's message; `changed-file` when the path now
    holds another file, or when a loaded file was overwritten in place, which corrupts its mapping.
    """
    path = file.sealed or file.path.resolve()
    with _lock:
        handle = _handle(path, file)
        entry = _open_files.setdefault(handle, _OpenFile(file.state))
        error = _written_into(file.path) if entry.state != file.state else None
        if file.is_replaced():
            error = _replaced(file.path)
        if error is not None:
            _ctypes.dlclose(handle)
            if not entry.count:
                del _open_files[handle]
            raise error
        entry.count += 1
        return ctypes.CDLL(os.fspath(path), handle=handle)


def unload_file(handle: int) -> None:
    """Undo one `load_file`; the last one unloads the library."""
    with _lock:
        entry = _open_files[handle]
        entry.count -= 1
        if not entry.count:
            del _open_files[handle]
        _ctypes.dlclose(handle)


def _replaced(path: Path) -> UserError:
    return UserError(
        f"{str(path)!r} was replaced while it was loaded", code="changed-file", hint="load it again"
    )


def _written_into(path: Path) -> UserError:
    return UserError(
        f"{str(path)!r} is loaded, and was written into since: that destroys what is loaded",
        code="changed-file",
        hint="export_library and `mv` put a new file in its place, `cp` writes into the one there; "
        "load it in a new process",
    )


def _handle(path: Path, file: LibraryFile) -> int:
    """The handle of `file`, with one reference to it."""
    name = os.fspath(path)
    only = respelled(name, *file.state[:2])
    beside = [] if file.sealed is None else _open_beside(file)
    first = []
    try:
        if file.sealed is None:
            first.append(_ctypes.dlopen(name, ctypes.DEFAULT_MODE))
        return int(_ctypes.dlopen(only, ctypes.DEFAULT_MODE))
    except OSError as error:
        raise _not_loaded(file, name, str(error)) from error
    finally:
        for handle in (*first, *beside):
            _ctypes.dlclose(handle)  # what needs it has opened it again


def _open_beside(file: LibraryFile) -> list[int]:
    """Open the libraries that one needs and that lie where `$ORIGIN` says: for a copy in memory,
    the dynamic loader does not know the folder of the original, but knows by its DT_SONAME what is
    loaded. They are found as ever, and are not part of what was copied."""
    binary = binary_of(FileContent(file.source).view, str(file.path))
    origin = str(file.path.resolve().parent)
    folders = [
        Path(text.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin))
        for text in binary.run_paths()
        if "ORIGIN" in text
    ]
    handles = list[int]()
    for needed in binary.needed():
        place = next((f / needed for f in folders if (f / needed).is_file()), None)
        if place is not None:
            with suppress(OSError):  # the library itself is refused for it, with the reason
                handles.append(_ctypes.dlopen(os.fspath(place), ctypes.DEFAULT_MODE))
    return handles


_NOT_FOUND = ": cannot open shared object file: No such file"


def _not_loaded(file: LibraryFile, name: str, reason: str) -> UserError:
    """The error for a file that dlopen() refused with the words `reason`: if it did not find a
    library that the file needs, with the dependency that this comes with. The same sentence in
    `hosts/kiln_dlopen.h`."""
    missing, marker, _ = reason.partition(_NOT_FOUND)
    if not marker or missing == name:
        return UserError(f"cannot load {str(file.path)!r}: {reason}", code="cannot-load")
    message = f"cannot load {str(file.path)!r}: it needs {missing!r}, which is not there"
    last = missing.rpartition("/")[2]
    for d in read_dependencies(file.metadata, str(file.path)):
        if last in d.libraries:
            message += f": dependency {d}"
            break
    return UserError(message, code="cannot-load", hint="`kiln inspect` lists what it needs")


def respelled(name: str, device: int, inode: int) -> str:
    """A spelling of path `name` unique to the file: `./` for each 1 bit of a hash of its device and
    inode, `/` for each 0 bit."""
    number = (inode + device * _HASH) % (1 << 64)
    bits = "".join("./" if number >> i & 1 else "/" for i in range(number.bit_length()))
    folder, _, last = name.rpartition("/")
    return f"{folder}/{bits}{last}"
