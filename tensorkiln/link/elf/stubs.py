"""Stub libraries that stand in for the C library at link time.

A linker needs a libc.so.6 only to learn which library defines a symbol, and in which version. A
stub of a few kilobytes says that for the symbols that the runtime uses and for those that tensor
programs may call (`artifact/c_library.py`). The output then depends on the right libraries and on
nothing newer than the oldest version in the table, no C library has to be built or installed, and a
symbol that is not in the table is an error of the link, not of the program that later loads the
library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tensorkiln.artifact.c_library import CLibrary
from tensorkiln.base.cache import Cache, key_of

# (assembler file, soname, version script, folder): writes a file named soname into the folder.
AssembleAndLink = Callable[[str, str, str, Path], None]


def _assembler(names: Iterable[str]) -> str:
    lines = [".text"]
    for name in names:
        lines += [f".globl {name}", f".type {name},%function", f"{name}:"]
    return "\n".join([*lines, ".byte 0", '.section .note.GNU-stack,"",%progbits', ""])


def _version_script(library: CLibrary, arch: str, names: Iterable[str]) -> str:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(library.version_of(arch, name), []).append(name)
    return (
        "\n".join(
            f"{version} {{ {' '.join(f'{n};' for n in members)} }};".lstrip()
            for version, members in sorted(groups.items())
        )
        + "\n"
    )


def make_stubs(
    library: CLibrary, arch: str, cache: Cache, identity: str, build: AssembleAndLink, folder: Path
) -> list[str]:
    """Write the stubs of a C library to `folder` and return their file names. Those that are not in
    the cache are built with `build`; `identity` is that of its tools."""
    tables = library.stubs(arch)
    for soname, text in tables.items():
        names = text.split()
        source, script = _assembler(names), _version_script(library, arch, names)
        parts = {"kind": "libc stub", "tool": identity, "source": source, "script": script}
        key = key_of({**parts, "soname": soname})
        stub = cache.get(key)
        if stub is None:
            (folder / "stub.s").write_text(source)
            (folder / "stub.map").write_text(script)
            build("stub.s", soname, "stub.map", folder)
            cache.put(key, (folder / soname).read_bytes(), parts)
        else:
            (folder / soname).write_bytes(stub)
    return list(tables)
