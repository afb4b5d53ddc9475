"""Load the file that was read, whatever its path leads to by now.

A library is opened by the descriptor through which it was read and compared with its digest, as
`/proc/<process>/fd/<number>`: were it opened by its path again, another process could put another
file there in between, whose constructors would run. The descriptor stays open as long as the
library is loaded, so that debuggers can read the file of that name, which is the one they show;
`/proc/self/maps` shows the path.

glibc's dlopen() returns the library that was loaded under the same name, even if that now stands
for another file; only for a name it has not seen does it compare device and inode. So the name is
spelled in a way that is unique to the file, such as `/proc/7/fd/././3`, whose `/` and `./` encode
device and inode.

A library that needs others which lie beside it (`$ORIGIN` in its run path) must be opened by its
path, from which the dynamic loader takes their folder, and so must any without `/proc`. Then the
file is opened twice, by its path, which debuggers show, and by a unique spelling of it. The second
dlopen() always returns the library that is there: the same as the first, unless that was of a
former file. That it is the file that was read is known only when it is open.

A sealed copy (`base/sealed.py`) has a descriptor of its own. `/proc/self/maps` shows
`/memfd:net.so`.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.artifact import FileContent
from tensorkiln.artifact.metadata import read_dependencies
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.errors import UserError
from tensorkiln.base.mapped import file_state
from tensorkiln.runtime.library_file import LibraryFile
from tensorkiln.runtime.locks import ProcessLock

_HASH = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class _OpenFile:
    """A file's state (`base/mapped.py`) when it was loaded, how often it is open, and the
    descriptor that its name refers to, if it has such a name."""

    state: tuple[int, ...]
    descriptor: int | None = None
    count: int = 0


_open_files: dict[int, _OpenFile] = {}  # by handle
_lock = ProcessLock(threading.RLock)


def load_file(file: LibraryFile) -> ctypes.CDLL:
    """Load the library that `file` was read from; a file that is loaded twice has one handle.

    Raises UserError: `cannot-load` with the system's message; `changed-file` when the path now
    holds another file, and the one that was read is not open, or when a loaded file was
    overwritten in place, which corrupts its mapping.
    """
    with _lock, ExitStack() as failed:
        descriptor, name = _descriptor(file)
        if descriptor is not None:
            failed.callback(os.close, descriptor)
        handle = _handle(name, file, descriptor is not None)
        failed.callback(_ctypes.dlclose, handle)
        entry = _open_files.get(handle)
        if entry is not None and entry.state != file.state:
            raise _written_into(file.path)
        if file.is_replaced() if descriptor is None else _is_changed(descriptor, file):
            raise _replaced(file.path)
        failed.pop_all()
        entry = entry or _OpenFile(file.state)
        # Up to here the garbage collector may have run, and closed what it found to be the last
        # load of this file: then the entry is no longer there.
        entry.count += 1
        _open_files[handle] = entry
        if entry.descriptor is None:
            entry.descriptor = descriptor
        elif descriptor is not None:
            os.close(descriptor)  # the library has its name from another one
        return ctypes.CDLL(str(file.path), handle=handle)


def unload_file(handle: int) -> None:
    """Undo one `load_file`; the last one unloads the library."""
    with _lock:
        entry = _open_files[handle]
        entry.count -= 1
        if not entry.count:
            del _open_files[handle]
        _ctypes.dlclose(handle)
        if not entry.count and entry.descriptor is not None:
            os.close(entry.descriptor)
            entry.descriptor = None


def _descriptor(file: LibraryFile) -> tuple[int | None, str]:
    """A descriptor of the file that was read, for its library to keep, and what to open; None for
    one that is opened by its path."""
    if file.sealed is not None:
        return None, os.fspath(file.sealed)
    if file.descriptor is not None and not file.needs_name:
        descriptor = os.dup(file.descriptor)
        name = f"/proc/{os.getpid()}/fd/{descriptor}"
        with suppress(OSError):
            # Another container's `/proc` would lead to another file.
            if file_state(Path(name).stat()) == file.state:
                return descriptor, name
        os.close(descriptor)
    return None, os.fspath(file.path.resolve())


def _is_changed(descriptor: int, file: LibraryFile) -> bool:
    return file_state(os.fstat(descriptor)) != file.state


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


def _handle(name: str, file: LibraryFile, by_descriptor: bool) -> int:
    """The handle of `file`, with one reference to it."""
    only = respelled(name, *file.state[:2])
    beside = [] if file.sealed is None else _open_beside(file)
    first = []
    try:
        if file.sealed is None and not by_descriptor:
            first.append(_ctypes.dlopen(name, ctypes.DEFAULT_MODE))
        return int(_ctypes.dlopen(only, ctypes.DEFAULT_MODE))
    except OSError as error:
        reason = str(error).replace(only, os.fspath(file.path)) if by_descriptor else str(error)
        raise _not_loaded(file, name, reason) from error
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
