"""Writing output folders without destroying files of the user.

A file may be replaced only if a former run wrote it and nobody has changed it since: a list in the
folder (`.kiln-files.json`) holds the names of the files written and their hashes. Any other file is
named in an error and left as it is.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import (
    Chunk,
    atomic_path,
    atomic_write,
    cannot_write,
    folder_beside,
    made_folder,
    open_plain,
    plain_path,
    read_plain,
)
from tensorkiln.base.interrupts import HeldInterrupts, edge
from tensorkiln.base.json_text import MAX_BYTES, parse_json

LIST = ".kiln-files.json"
_VERSION = 1
_CHUNK = 1 << 20
LOCK_SECONDS = 30.0  # the list of a folder is read and written, and names are exchanged
_LOCK_POLL = 0.02

# Relative names of files with the hashes (SHA-256, hex) that they may have; None allows any content
# (the list itself, a manifest).
Listed = Mapping[str, Iterable[str] | None]


def listed_files(folder: Path) -> Listed:
    """Return what the list in `folder` says was written there; empty if there is no valid list."""
    try:
        parsed = parse_json(read_plain(folder / LIST, MAX_BYTES), unique=True)
    except (OSError, ValueError):
        return {}
    if not isinstance(parsed, dict) or parsed.get("version") != _VERSION:
        return {}
    files = parsed.get("files")
    if not isinstance(files, dict) or not all(isinstance(h, list) for h in files.values()):
        return {}
    return {**files, LIST: None}


def write_list(folder: Path, without: Iterable[str] = ()) -> None:
    """Write the list of all files now below `folder`, except those named in `without`."""
    excluded = set(without)
    names = [name for name in files_below(folder) if name not in excluded]
    _write_list(folder, {name: [file_hash(folder / name)] for name in names})


def _write_list(folder: Path, files: Mapping[str, Iterable[str]]) -> None:
    rows = {name: list(hashes) for name, hashes in files.items()}
    text = json.dumps({"version": _VERSION, "files": rows}, indent=1) + "\n"
    atomic_write(folder / LIST, text)


def file_hash(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's content."""
    digest = hashlib.sha256()
    with open_plain(path) as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def files_below(folder: Path) -> list[str]:
    """Return the relative names of all files below a folder, sorted."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())


# -- folders as a whole --------------------------------------------------------------------------


@contextmanager
def atomic_dir(path: str | Path, listed: Callable[[Path], Listed] = listed_files) -> Iterator[Path]:
    """Yield an empty temporary folder that is renamed to `path` if the block ends without an error.

    An existing folder is replaced as a whole, and only if it is empty or `listed` names all that is
    in it; several threads and processes may do so at once. After an error or an interrupt the
    former folder is unchanged. Raises UserError like `atomic_path`.
    """
    target = _folder_target(path)
    try:
        with _locked(target.parent):  # another process may be replacing it
            state = _require_ours(target, listed)
    except OSError as error:
        raise cannot_write(target, error) from error
    with folder_beside(target) as room, HeldInterrupts() as interrupts:
        temporary = room / "made"
        try:
            temporary.mkdir()
            interrupts.release()
            yield temporary
            interrupts.hold()
            with _locked(target.parent):
                _require_ours(target, listed, state)
                _swap_in(temporary, target, room / "former")
        except OSError as error:
            raise cannot_write(target, error, room) from error
        finally:
            interrupts.hold()


edge(atomic_dir.__wrapped__.__code__)  # type: ignore[attr-defined]


def _folder_target(path: str | Path) -> Path:
    """Return `path` checked: UserError if it cannot be replaced as a whole, such as a mount point
    or a symbolic link."""
    target = plain_path(path)
    try:
        is_fixed = target.name in ("", "..") or target.is_mount()
        link = target.readlink() if target.is_symlink() else None
    except OSError as error:
        raise cannot_write(target, error) from error
    if is_fixed:
        raise UserError(
            f"cannot write {os.fspath(path)!r}: it cannot be replaced as a whole",
            code="cannot-write",
            hint="name a new folder in it",
        )
    if link is not None:
        raise UserError(
            f"cannot write {os.fspath(path)!r}: it is a link to {str(link)!r}",
            code="cannot-write",
            hint="name that folder, or remove the link",
        )
    return target


_State = dict[str, tuple[int, ...]]


def _require_ours(
    folder: Path, listed: Callable[[Path], Listed], former_state: _State | None = None
) -> _State:
    """Raise UserError unless everything in `folder` may be replaced; return the state of its
    entries. Files are not read again if all entries are as in `former_state`, an earlier result."""
    try:
        if not os.path.lexists(folder):
            return {}
        if not folder.is_dir():
            raise UserError(
                f"cannot write {str(folder)!r}: a file has that name", code="cannot-write"
            )
        contents = _contents(folder)
        if contents == former_state:
            return contents
        listing = listed(folder) if contents else {}
        for name, state in contents.items():
            if name not in listing and not _leads_to(name, state, listing):
                raise _foreign(folder, name, "was not written by a former run")
            hashes = listing.get(name)
            if hashes is not None and (
                not stat.S_ISREG(state[0]) or file_hash(folder / name) not in hashes
            ):
                raise _foreign(folder, name, "was changed since")
    except OSError as error:
        raise cannot_write(folder, error) from error
    return contents


def _leads_to(name: str, state: tuple[int, ...], listing: Listed) -> bool:
    return stat.S_ISDIR(state[0]) and any(entry.startswith(f"{name}/") for entry in listing)


def _foreign(folder: Path, name: str, reason: str) -> UserError:
    return UserError(
        f"cannot write {str(folder)!r}: {name!r} in it {reason}",
        code="cannot-write",
        hint="move or remove it, or name a folder that is new",
    )


def _contents(folder: Path, prefix: str = "") -> _State:
    """Return the state of every entry below a folder (mode, inode; of files also size and ctime),
    which differs after a change."""
    state: _State = {}
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            info = entry.stat(follow_symlinks=False)
            name = prefix + entry.name
            if stat.S_ISDIR(info.st_mode):
                state[name] = (info.st_mode, info.st_ino)
                state.update(_contents(folder / entry.name, f"{name}/"))
            else:
                state[name] = (info.st_mode, info.st_ino, info.st_size, info.st_ctime_ns)
    return state


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, against other threads and processes; no lock on file
    systems without `flock`. Everybody who may read a folder may lock it, so it is not waited for
    without end: UserError (code `cannot-write`) when it is locked for longer than any write takes.
    """
    with HeldInterrupts() as interrupts:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            interrupts.release()
            with suppress(OSError):
                _lock(handle, folder)
            yield
        finally:
            interrupts.hold()
            os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    import fcntl  # here, since Windows has none; nothing is compiled there

    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise UserError(
                    f"cannot write to {str(folder)!r}: another process has locked it for "
                    f"{LOCK_SECONDS} seconds",
                    code="cannot-write",
                    hint="end that process, or name a folder that only you can read",
                ) from None
            time.sleep(_LOCK_POLL)


edge(_locked.__wrapped__.__code__)  # type: ignore[attr-defined]


def _swap_in(new: Path, target: Path, former: Path) -> None:
    """Rename `new` to `target` and an existing `target` to `former`, atomically if the system has
    a call that exchanges two names."""
    if not target.exists():
        new.rename(target)
    elif _exchange(new, target):
        new.rename(former)
    else:
        target.rename(former)
        try:
            new.rename(target)
        except OSError:
            former.rename(target)
            raise


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders atomically (Linux `renameat2`); False if that fails."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    at_cwd, exchange = -100, 2
    return bool(rename(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), exchange) == 0)


# -- files among others --------------------------------------------------------------------------


def write_files(folder: str | Path, files: Mapping[str, Chunk | str | Path]) -> list[Path]:
    """Write files into a folder that may hold others, and return their paths.

    A content is bytes, text, or the path of a file to copy; a name may be of a file in a folder of
    the folder, `rust/Cargo.toml`. Missing folders are made. Raises
    UserError (code `cannot-write`), before anything is written, if one of the names is taken by a
    file that no former run wrote or that was changed since.
    """
    target = made_folder(folder)
    if not os.access(target, os.W_OK | os.X_OK):
        raise cannot_write(target, PermissionError(errno.EACCES, ""))
    contents = {name: c.encode() if isinstance(c, str) else c for name, c in files.items()}
    try:
        with _locked(target):
            listing = dict(listed_files(target))
            for name in contents:
                _require_own(target, name, listing.get(name))
            listing.pop(LIST, None)
            new = {name: [_hash_of(content)] for name, content in contents.items()}
            # Listed before they are written, so that an interrupted run can be repeated: a file
            # may then have its former or its new content.
            former = {name: list(hashes or ()) for name, hashes in listing.items()}
            _write_list(target, {**former, **{n: former.get(n, []) + h for n, h in new.items()}})
            for name, content in contents.items():
                made_folder((target / name).parent)
                _write_one(target / name, content)
            _write_list(target, {**former, **new})
    except OSError as error:
        raise cannot_write(target, error, target) from error
    return [target / name for name in contents]


def _require_own(folder: Path, name: str, hashes: Iterable[str] | None) -> None:
    try:
        mode = os.lstat(folder / name).st_mode
    except FileNotFoundError:
        return
    if hashes is None:
        raise _foreign(folder, name, "was not written by a former run")
    if not stat.S_ISREG(mode) or file_hash(folder / name) not in hashes:
        raise _foreign(folder, name, "was changed since")


def _hash_of(content: Chunk | Path) -> str:
    return file_hash(content) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()


def _write_one(path: Path, content: Chunk | Path) -> None:
    if not isinstance(content, Path):
        atomic_write(path, content)
        return
    with atomic_path(path) as temporary:
        shutil.copyfile(content, temporary)
