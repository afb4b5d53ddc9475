"""Stub libraries that stand in for the C library at link time.

A linker needs a libc.so.6 only to learn which library defines a symbol, and in which version. A
stub of a few kilobytes says that for the symbols that the runtime uses and for those that tensor
programs may call. The output then depends on the right libraries and on nothing newer than glibc
2.17, no C library has to be built or installed, and a symbol that is not in the table is an error
of the link, not of the program that later loads the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tensorkiln.artifact.c_library import LOADERS, STUB_LIBRARIES
from tensorkiln.base.cache import Cache, key_of

_X86_VERSIONS: Mapping[str, str] = {
    "__register_atfork": "GLIBC_2.3.2",
    "__tls_get_addr": "GLIBC_2.3",
    "clock_gettime": "GLIBC_2.17",
    "getauxval": "GLIBC_2.16",
    "realpath": "GLIBC_2.3",
    "sched_getaffinity": "GLIBC_2.3.4",
}

# (assembler file, soname, version script, folder): writes a file named soname into the folder.
AssembleAndLink = Callable[[str, str, str, Path], None]


def symbol_version(arch: str, name: str) -> str:
    """The glibc version of a symbol in the table."""
    return _X86_VERSIONS.get(name, "GLIBC_2.2.5") if arch == "x86_64" else "GLIBC_2.17"


def _assembler(names: Iterable[str]) -> str:
    lines = [".text"]
    for name in names:
        lines += [f".globl {name}", f".type {name},%function", f"{name}:"]
    return "\n".join([*lines, ".byte 0", '.section .note.GNU-stack,"",%progbits', ""])


def _version_script(arch: str, names: Iterable[str]) -> str:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(symbol_version(arch, name), []).append(name)
    return (
        "\n".join(
            f"{version} {{ {' '.join(f'{n};' for n in members)} }};"
            for version, members in sorted(groups.items())
        )
        + "\n"
    )


def make_stubs(
    arch: str, cache: Cache, identity: str, build: AssembleAndLink, folder: Path
) -> list[str]:
    """Write the stubs to `folder` and return their file names. Those that are not in the cache are
    built with `build`; `identity` is that of its tools."""
    loader, loader_names = LOADERS[arch]
    tables = {**STUB_LIBRARIES, **({loader: loader_names} if loader_names else {})}
    for soname, text in tables.items():
        names = text.split()
        source, script = _assembler(names), _version_script(arch, names)
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
