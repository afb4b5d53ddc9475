"""Which files are trusted as code: those that only this user and root can have written.

This protects object code that is reused without inspection: what the compiler caches and links
later, and what it loads from temporary folders. Files that a caller names are not checked.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import cannot_write

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40  # symbolic links in a path, as in Linux
_ACL = "system.posix_acl_access"  # with an ACL the group bits are its mask, for other users too


def distrust(path: Path) -> str:
    """Return why another user could have written or replaced the file or folder `path`, as a
    sentence; empty if only this user and root could.

    Checks owner and mode of `path`, and of every folder and symbolic link on the way to it. A
    folder on the way that others may write to is accepted if it has the sticky bit (such as
    `/tmp`), since others cannot rename this user's entries in it. Raises OSError if `path` does
    not exist.
    """
    if not hasattr(os, "geteuid"):  # Windows: a user's files lie in the user's own folder
        return ""
    parts, current, links = [*path.absolute().parts[:0:-1]], Path(path.absolute().anchor), 0
    while True:
        info = current.lstat()
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return f"{str(path)!r} leads through links in a circle"
            if info.st_uid not in _trusted():
                return _belongs(current, info)
            target = current.parent / current.readlink()
            parts += target.parts[:0:-1]
            current = Path(target.anchor)
            continue
        if parts and not stat.S_ISDIR(info.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(current))
        reason = _writable_by_others(current, info, is_last=not parts)
        if reason or not parts:
            return reason
        part = parts.pop()
        current = current.parent if part == ".." else current / part


def distrust_inside(folder: Path, names: Iterable[str]) -> str:
    """Like `distrust`, for the path `names` below a trusted `folder`; a symbolic link on the way is
    a reason too."""
    path = os.fspath(folder)
    for name in names:
        path = f"{path}/{name}"
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            return f"{path!r} is a link"
        reason = _writable_by_others(path, info, is_last=True)
        if reason:
            return reason
    return ""


def _writable_by_others(path: str | Path, info: os.stat_result, is_last: bool) -> str:
    if info.st_uid not in _trusted():
        return _belongs(path, info)
    is_shared = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX and not is_last
    if not info.st_mode & _OTHERS or is_shared:
        return ""
    if not info.st_mode & stat.S_IWOTH and _is_own_group(info.st_gid) and not _has_acl(path):
        return ""
    return f"{str(path)!r} can be written to by others (mode {stat.S_IMODE(info.st_mode):04o})"


def _belongs(path: str | Path, info: os.stat_result) -> str:
    return f"{str(path)!r} belongs to user {info.st_uid}"


def _trusted() -> tuple[int, ...]:
    return (0, os.geteuid(), *_unmapped_root())


@functools.cache
def _unmapped_root() -> tuple[int, ...]:
    """Return the overflow user (65534) in a user namespace that maps no user to it, else nothing.

    Files of users that the namespace does not map appear to belong to it. They include the folders
    of the system's root, such as `/` and `/home`.
    """
    try:
        ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        stand_in = int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return ()
    is_mapped = any(int(first) <= stand_in < int(first) + int(count) for first, _, count in ranges)
    return () if is_mapped else (stand_in,)


@functools.cache
def _own_groups(user: int) -> tuple[int, ...]:
    """Return the user's private group: many systems give each user a group of the same name with no
    other members, and a umask of 0002 that makes files writable to it. The members of a group are
    those that it lists, and all users whose primary group it is."""
    import grp
    import pwd

    with suppress(KeyError):
        entry = pwd.getpwuid(user)
        group = grp.getgrgid(entry.pw_gid)
        users = {u.pw_uid for u in pwd.getpwall() if u.pw_gid == entry.pw_gid}
        is_named = group.gr_name == entry.pw_name and set(group.gr_mem) <= {entry.pw_name}
        if is_named and users <= {user}:
            return (entry.pw_gid,)
    return ()


def _is_own_group(group: int) -> bool:
    return group in _own_groups(os.geteuid())


def _has_acl(path: str | Path) -> bool:
    with suppress(OSError, AttributeError):
        return _ACL in os.listxattr(path)
    return False


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, accessible to this user alone (mode 0700)."""
    with suppress(FileExistsError):
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:
            make_private(folder.parent)
            folder.mkdir(mode=0o700)


def private_temporary(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new temporary folder for code that is loaded or linked. UserError: code
    `unsafe-folder` if another user could replace it, `cannot-write` if it cannot be made."""
    try:
        # What a tool leaves there that cannot be removed is no reason to fail.
        folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise cannot_write(Path(error.filename or "a temporary folder"), error) from error
    reason = distrust(Path(folder.name))
    if reason:
        folder.cleanup()
        raise UserError(
            f"cannot use the temporary folder {str(Path(folder.name).parent)!r}: {reason}",
            code="unsafe-folder",
            hint="set TMPDIR to a folder of your own",
        )
    return folder
