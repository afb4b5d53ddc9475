"""The architecture, system and C library of this machine, also where a sandbox refuses the system
calls for it.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

_SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}


def architecture() -> str:
    """`x86_64`, `aarch64`: the kind of processor; of the one that Python was built for, where the
    system does not tell."""
    try:
        return platform.machine()
    except OSError:
        return str(sysconfig.get_config_var("HOST_GNU_TYPE") or "").partition("-")[0]


def system_name() -> str:
    """`Linux`, `Darwin`, `Windows`."""
    try:
        return platform.system()
    except OSError:
        return _SYSTEMS.get(sys.platform, sys.platform)


@functools.cache
def c_library() -> tuple[str, str] | None:
    """The C library of this process and its version, as far as they are known: `("glibc", "2.36")`,
    `("musl", "")`, and on Android `("bionic", "30")`, the level of its API. None where it is
    neither."""
    level = getattr(sys, "getandroidapilevel", None)
    if level is not None:
        return "bionic", str(level())
    with suppress(AttributeError, OSError, ValueError):
        name, _, version = str(os.confstr("CS_GNU_LIBC_VERSION")).partition(" ")
        if name == "glibc":
            return name, version
    with suppress(OSError):
        if re.search(r"/(ld-musl-|libc\.musl-)[^/\n]*$", Path("/proc/self/maps").read_text(), re.M):
            return "musl", ""
    return None


def memory_bytes() -> int:
    """Bytes of memory; 0 where the system does not tell."""
    try:
        # Not from sysconf() first: without the call sysinfo() glibc makes up a number.
        total = re.search(r"^MemTotal: *([0-9]+) kB$", Path("/proc/meminfo").read_text(), re.M)
        if total:
            return int(total[1]) << 10
    except OSError:
        pass
    try:
        return max(0, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return 0


__all__ = ["architecture", "c_library", "memory_bytes", "system_name"]
