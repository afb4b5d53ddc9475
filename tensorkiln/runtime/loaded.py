"""Loading the file that lies at a path now.

glibc takes a name for the library that was loaded by it, whatever lies there by now; only by a name
that it has not met does it compare files. So a file is asked for by two names: its own, which is
what debuggers show, and one with `/` and `./` in it that say which file it is. They give two
libraries where the first was another file's, and one where it was not, also if the file was loaded
before.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.runtime.library_file import LibraryFile
from tensorkiln.runtime.locks import ProcessLock

_HASH = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class _Open:
    """What a file was when it was loaded, and how often it is open."""

    state: tuple[int, ...]
    count: int = 0


_loaded: dict[int, _Open] = {}  # by handle
_lock = ProcessLock(threading.RLock)


def load_file(file: LibraryFile) -> ctypes.CDLL:
    """The library that `file` was read from. One file is one library, however often it is loaded.

    Raises UserError: `cannot-load` in the system's words, `changed-file` when another file lies
    there by now, or when the very file that is loaded was written into, which destroys what is
    loaded.
    """
    path = file.path.resolve()
    with _lock:
        handle = _handle(path, file)
        known = _loaded.setdefault(handle, _Open(file.state))
        error = _written_into(file.path) if known.state != file.state else None
        if file.is_replaced():
            error = _replaced(file.path)
        if error is not None:
            _ctypes.dlclose(handle)
            if not known.count:
                del _loaded[handle]
            raise error
        known.count += 1
        return ctypes.CDLL(os.fspath(path), handle=handle)


def unload_file(handle: int) -> None:
    """Close it once."""
    with _lock:
        known = _loaded[handle]
        known.count -= 1
        if not known.count:
            del _loaded[handle]
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
    """Of the file that is `file`, open."""
    name = os.fspath(path)
    try:
        found = _ctypes.dlopen(name, ctypes.DEFAULT_MODE)
        try:
            return int(_ctypes.dlopen(respelled(name, *file.state[:2]), ctypes.DEFAULT_MODE))
        finally:
            _ctypes.dlclose(found)
    except OSError as error:
        raise UserError(f"cannot load {str(file.path)!r}: {error}", code="cannot-load") from error


def respelled(name: str, device: int, inode: int) -> str:
    """Another name of the file, which no other file had: a bit of its number is `/` or `./`."""
    number = (inode + device * _HASH) % (1 << 64)
    bits = "".join("./" if number >> i & 1 else "/" for i in range(number.bit_length()))
    folder, _, last = name.rpartition("/")
    return f"{folder}/{bits}{last}"
