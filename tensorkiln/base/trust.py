"""Whose files may become code: those that nobody but this user and root can have written.

What the compiler keeps and links later (the cache), and what it loads from temporary folders, is
code that nobody looks at. Files that a caller names are the caller's choice and not asked about.
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

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40  # as Linux follows
_ACL = "system.posix_acl_access"  # then the bits of the group are those of others too


def distrust(path: Path) -> str:
    """Why another user could have put there what lies at `path`: the owner or the mode of it, of a
    folder or of a link on the way; empty where only this user and root could. A folder with the
    sticky bit may be written to by all, where what comes next is ours. OSError where there is
    nothing."""
    if not hasattr(os, "geteuid"):  # Windows: what belongs to a user is below his folder
        return ""
    left, at, links = [*path.absolute().parts[:0:-1]], Path(path.absolute().anchor), 0
    while True:
        info = at.lstat()
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return f"{str(path)!r} leads through links in a circle"
            if info.st_uid not in _trusted():
                return _belongs(at, info)
            target = at.parent / at.readlink()
            left += target.parts[:0:-1]
            at = Path(target.anchor)
            continue
        if left and not stat.S_ISDIR(info.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(at))
        reason = _writable_by_others(at, info, is_last=not left)
        if reason or not left:
            return reason
        part = left.pop()
        at = at.parent if part == ".." else at / part


def distrust_inside(folder: Path, names: Iterable[str]) -> str:
    """The same for what lies in a folder that is trusted, down `names`, none of them a link."""
    at = os.fspath(folder)
    for name in names:
        at = f"{at}/{name}"
        info = os.lstat(at)
        if stat.S_ISLNK(info.st_mode):
            return f"{at!r} is a link"
        reason = _writable_by_others(at, info, is_last=True)
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
    """In a user namespace without the system's root, its folders (`/`, `/home`) belong to the user
    that stands for whom the namespace does not know."""
    try:
        ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        stand_in = int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return ()
    known = any(int(first) <= stand_in < int(first) + int(count) for first, _, count in ranges)
    return () if known else (stand_in,)


@functools.cache
def _own_groups(user: int) -> tuple[int, ...]:
    """The group of a user's own that many systems give everybody, with umask 0002."""
    import grp
    import pwd

    with suppress(KeyError):
        entry = pwd.getpwuid(user)
        group = grp.getgrgid(entry.pw_gid)
        if group.gr_name == entry.pw_name and set(group.gr_mem) <= {entry.pw_name}:
            return (entry.pw_gid,)
    return ()


def _is_own_group(group: int) -> bool:
    return group in _own_groups(os.geteuid())


def _has_acl(path: str | Path) -> bool:
    with suppress(OSError, AttributeError):
        return _ACL in os.listxattr(path)
    return False


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone."""
    with suppress(FileExistsError):
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:
            make_private(folder.parent)
            folder.mkdir(mode=0o700)


def private_temporary(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for code that is loaded or linked. UserError (code `unsafe-folder`) where
    somebody else could put another one in its place."""
    made = tempfile.TemporaryDirectory(prefix=prefix)
    reason = distrust(Path(made.name))
    if reason:
        made.cleanup()
        raise UserError(
            f"cannot use the temporary folder {str(Path(made.name).parent)!r}: {reason}",
            code="unsafe-folder",
            hint="set TMPDIR to a folder of your own",
        )
    return made
