"""Atomic writes, reads of regular files only, and paths that cannot leave their folder."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tensorkiln.base.errors import UserError
from tensorkiln.base.interrupts import HeldInterrupts, edge
from tensorkiln.base.walk import Walk, identities

Chunk = bytes | bytearray | memoryview

_SENTENCES: dict[int, str] = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOENT: "the folder does not exist",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EFBIG: "the file would be larger than the limit allows",
    errno.ELOOP: "links lead in a circle",
}
_HINTS: dict[int, str] = {
    errno.EROFS: "name a place that can be written to",
    errno.EACCES: "name a place that you may write to",
    errno.EPERM: "name a place that you may write to",
    errno.ENOENT: "make it first, or name another place",
    errno.ENOTDIR: "name another place",
}


def names_beside(path: Path) -> list[str]:
    """The names in the folder of a path, for a hint at one that is meant; none if it cannot be
    read."""
    try:
        return [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []


def plain_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path. Raises UserError (code `bad-path`) for empty text, text with a zero
    byte or that the file system's encoding cannot represent, bytes, and anything but a path."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{path!r} is {type(path).__name__}, expected a path", code="bad-path")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise UserError(f"{path!r} is bytes, expected a path as text", code="bad-path")
    reason = "it is empty" if not text else "it holds a zero byte" if "\0" in text else ""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        reason = "it cannot be encoded as a file name"
    if reason:
        hint = "name a file or a folder"
        raise UserError(f"{text!r} is not a valid path: {reason}", code="bad-path", hint=hint)
    return Path(text)


def _file_target(path: str | Path) -> Path:
    """Return the path of a file to write; UserError if `path` names a folder."""
    target = plain_path(path)
    try:
        is_folder = target.is_dir()
    except OSError as error:
        raise cannot_write(target, error) from error
    if is_folder or target.name in ("", "..") or os.fspath(path).endswith(("/", "/.")):
        message = f"cannot write {os.fspath(path)!r}: it is a folder"
        raise UserError(message, code="cannot-write", hint="name a file in it")
    return target


def cannot_write(path: Path, error: OSError, temporary: Path | None = None) -> Exception:
    """Return the UserError for a failure to write `path`.

    With `temporary`, the place where `path` is prepared, an error about an unrelated file (such as
    a source being read) is returned as it is.
    """
    if error.filename is not None and temporary is not None:
        named = Path(os.fsdecode(error.filename))
        if not named.is_relative_to(temporary) and named not in (path, path.parent):
            return error
    reason = _SENTENCES.get(error.errno or 0, error.strerror or str(error))
    message = f"cannot write {str(path)!r}: {reason}"
    return UserError(message, code="cannot-write", hint=_HINTS.get(error.errno or 0, ""))


def temporary_beside(target: Path) -> Path:
    """Return a random unused name in the folder of `target`: a rename within a file system is
    atomic."""
    return target.with_name(f".{target.name[:80]}.{secrets.token_hex(8)}.tmp")


def made_folder(path: str | Path) -> Path:
    """Make a folder and its missing parents unless it exists; UserError like `atomic_path`."""
    folder = plain_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UserError(
            f"cannot make folder {str(path)!r}: a file has that name", code="cannot-write"
        ) from None
    except OSError as error:
        reason = _SENTENCES.get(error.errno or 0, error.strerror or str(error))
        message = f"cannot make folder {str(path)!r}: {reason}"
        hint = _HINTS.get(error.errno or 0, "")
        raise UserError(message, code="cannot-write", hint=hint) from None
    return folder


@contextmanager
def atomic_path(path: str | Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary file beside `path`; it is renamed to `path` if the block ends without an
    error.

    For tools that write a file by name. The file is created with `mode`, less the umask. After an
    error or an interrupt the temporary file is removed and `path` keeps its former content.
    OSErrors about the file are raised as UserError (code `cannot-write`; `bad-path` for a name that
    no file can have).
    """
    target = _file_target(path)
    temporary = temporary_beside(target)
    with HeldInterrupts() as interrupts:
        try:
            temporary.touch(mode, exist_ok=False)
            interrupts.release()
            yield temporary
            interrupts.hold()
            temporary.replace(target)
        except OSError as error:
            raise cannot_write(target, error, temporary) from error
        finally:
            interrupts.hold()
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def atomic_open(path: str | Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a binary stream whose content becomes `path` if the block ends without an error."""
    with atomic_path(path, mode) as temporary, temporary.open("wb") as stream:
        yield stream


def atomic_write(
    path: str | Path, content: Chunk | str | Iterable[Chunk], mode: int = 0o666
) -> None:
    """Write `content` (bytes, text as UTF-8, or chunks in order) to `path`, whole or not at all."""
    if isinstance(content, str):
        content = content.encode()
    chunks = [content] if isinstance(content, bytes | bytearray | memoryview) else content
    with atomic_open(path, mode) as stream:
        for chunk in chunks:
            stream.write(chunk)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder beside `path`, so that files made in it can be renamed to it.

    Only this user has access; it is always removed in the end. Raises UserError like `atomic_path`
    if it cannot be made.
    """
    temporary = temporary_beside(path)
    with HeldInterrupts() as interrupts:
        try:
            try:
                temporary.mkdir(mode=0o700)
            except OSError as error:
                raise cannot_write(path, error) from error
            interrupts.release()
            yield temporary
        finally:
            interrupts.hold()
            shutil.rmtree(temporary, ignore_errors=True)


for _manager in (atomic_path, folder_beside):
    edge(_manager.__wrapped__.__code__)  # type: ignore[attr-defined]


def write_at(file: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at byte `offset` of an open file descriptor, whose position stays."""
    count = 0
    while count < len(data):
        count += os.pwrite(file, data[count:], offset + count)


# Non-blocking: opening a named pipe that was put in a file's place would wait for a writer.
_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_plain(path: str | Path) -> BinaryIO:
    """Open a regular file for reading. OSError for anything else: reads of pipes, devices and
    sockets could block for ever, or never end."""
    _require_plain(Path(path).stat(), path)  # before opening, which has side effects on devices
    stream = os.fdopen(os.open(path, _READING), "rb")
    try:
        _require_plain(os.fstat(stream.fileno()), path)
    except OSError:
        stream.close()
        raise
    return stream


def _require_plain(info: os.stat_result, path: str | Path) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", os.fspath(path))


def read_plain(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file. OSError for anything else, or if the file has more
    than `limit` bytes."""
    with open_plain(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit} bytes", os.fspath(path))
        return stream.read(size)


def _refuse(relative: str, reason: str, hint: str = "") -> UserError:
    return UserError(f"refused path {relative!r}: {reason}", code="unsafe-path", hint=hint)


def _parts_inside(relative: str) -> list[str]:
    """The components of a relative path. Refused with UserError (code `unsafe-path`): absolute
    names, and `..`."""
    parts = relative.replace("\\", "/").split("/")
    if not relative or "\0" in relative:
        raise _refuse(relative, "it is empty or holds a zero byte")
    if relative.startswith(("/", "\\")) or parts[0].endswith(":"):
        raise _refuse(relative, "it is absolute; only names inside the folder are read")
    if ".." in parts:
        raise _refuse(relative, "it holds '..'; only names inside the folder are read")
    return parts


def _leads_out(relative: str, root: str | Path, real: Path) -> UserError:
    hint = f"grant the folder {str(real.parent)!r} if it is meant"
    return _refuse(relative, f"a link leads out of {str(Path(root).resolve())!r}", hint)


def resolve_inside(root: str | Path, relative: str, granted: Sequence[str | Path] = ()) -> Path:
    """Return the real path of `relative` under `root`, with symbolic links resolved.

    Refused with UserError (code `unsafe-path`): absolute names, `..`, and symbolic links whose
    target lies neither under `root` nor under a folder in `granted`. The file need not exist.
    """
    parts = _parts_inside(relative)
    base = Path(root).resolve()
    try:
        real = base.joinpath(*parts).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a cycle of links, before Python 3.13
        raise _refuse(relative, f"it cannot be followed ({error})") from None
    except UnicodeEncodeError:
        raise _refuse(relative, "it cannot be encoded as a file name") from None
    allowed = [base, *(Path(folder).resolve() for folder in granted)]
    if not any(real.is_relative_to(folder) for folder in allowed):
        raise _leads_out(relative, root, real)
    return real


def open_inside(root: str | Path, relative: str, granted: Sequence[str | Path] = ()) -> BinaryIO:
    """Open a regular file under `root` for reading, with protection against links out of `root`.

    Besides what `resolve_inside` refuses, refuses anything but a regular file, and a file with a
    second hard link, whose other name may lie anywhere; a file inside a `granted` folder may have
    hard links. A missing or unreadable file is a UserError (code `missing-file`). Another process
    that exchanges a component of the path meanwhile changes nothing of this (`base/walk.py`).
    """
    path = Path(root).absolute().joinpath(*_parts_inside(relative))
    trusted, base = identities(granted), identities([root])
    allowed = trusted | base
    walk = Walk(path)
    try:
        with walk:
            if allowed.isdisjoint(walk.passed):
                raise _leads_out(relative, root, walk.path)
            if not walk.name or not stat.S_ISREG(walk.info.st_mode):
                raise _refuse(relative, "it is not a plain file")
            if walk.info.st_nlink > 1 and trusted.isdisjoint(walk.passed):
                hint = f"copy the file, or grant the folder {str(walk.path.parent)!r}"
                raise _refuse(relative, "it has a second hard link, which may lie outside", hint)
            return os.fdopen(walk.open(_READING), "rb")
    except UnicodeEncodeError:
        raise _refuse(relative, "it cannot be encoded as a file name") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refuse(relative, f"it cannot be followed ({error.strerror})") from None
        if base and allowed.isdisjoint(walk.passed):
            raise _leads_out(relative, root, walk.path) from None
        reason = "no such file" if error.errno == errno.ENOENT else error.strerror
        raise UserError(f"cannot read {str(walk.path)!r}: {reason}", code="missing-file") from error
