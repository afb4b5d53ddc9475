"""A file system that is really full: tmpfs of some bytes, mounted where nobody else sees it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_NEWNS, _NEWUSER, _REMOUNT = 0x20000, 0x10000000, 0x20
REFUSED = 77  # the status of a child where the system lends none


def on_small_disk(folder: Path, size: int, work: Callable[[], int]) -> int:
    """Run `work` in a child of fork(), where `folder` is an empty disk of `size` bytes (whole
    pages); its status, or REFUSED. Needs no rights but namespaces of the user's."""
    child = os.fork()
    if child == 0:
        status = REFUSED
        try:
            if _mount(folder, size):
                status = work()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status >= 0, f"ended by signal {-status}"
    return status


def _mount(folder: Path, size: int) -> bool:
    libc = ctypes.CDLL(None)
    user, group = os.getuid(), os.getgid()
    if not hasattr(libc, "unshare") or libc.unshare(_NEWUSER | _NEWNS) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError:
        return False
    options = f"size={size}".encode()
    return bool(libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, options) == 0)


def grow(folder: Path, size: int) -> None:
    """Give the disk of `on_small_disk` more room, from inside of it."""
    options = f"size={size}".encode()
    status = ctypes.CDLL(None).mount(b"none", os.fsencode(folder), b"tmpfs", _REMOUNT, options)
    assert status == 0
