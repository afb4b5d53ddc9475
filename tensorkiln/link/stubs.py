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

from tensorkiln.base.cache import Cache, key_of

# Functions of double that T.call_extern may call; with suffix f, such as `sinf`, those of float.
_MATHEMATICS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 "
    "fabs fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma log log10 log1p log2 logb "
    "lrint lround modf nearbyint nextafter pow remainder rint round scalbn sin sinh sqrt tan tanh "
    "tgamma trunc"
)

# Functions of libc that T.call_extern may call.
_PLAIN = (
    "abs atof atoi bsearch clock fflush isalnum isalpha isdigit islower isspace isupper labs "
    "llabs memchr memcmp memmove printf putchar puts qsort rand srand strcat strcpy strncpy "
    "strtod strtoll time tolower toupper"
)

# soname -> symbols. Their version is GLIBC_2.2.5 on x86-64, but for those in _X86_VERSIONS, and
# GLIBC_2.17 on aarch64.
STUB_LIBRARIES: Mapping[str, str] = {
    "libc.so.6": (
        "__cxa_atexit __cxa_finalize __errno_location __register_atfork abort calloc clock_gettime "
        "close dl_iterate_phdr free getauxval getenv getpid lseek madvise malloc mmap munmap open "
        "posix_memalign pthread_attr_destroy pthread_self read realloc realpath sched_getaffinity "
        "sigfillset snprintf strchr strcmp strerror strlen strncmp strrchr strtol syscall sysconf "
        "vsnprintf write " + _PLAIN
    ),
    "libm.so.6": " ".join(f"{name} {name}f" for name in _MATHEMATICS.split()),
    "libpthread.so.0": (
        "pthread_attr_getstack pthread_create pthread_getattr_np pthread_join "
        "pthread_mutex_lock pthread_mutex_unlock pthread_sigmask"
    ),
    "libdl.so.2": "dladdr dlclose dlopen dlsym",
}
_CALLABLE = frozenset(f"{_PLAIN} {STUB_LIBRARIES['libm.so.6']}".split())
# Functions that the runtime itself calls: no kernel may have one of these names.
RUNTIME_CALLS = frozenset(" ".join(STUB_LIBRARIES.values()).split()) - _CALLABLE
_LOADER: Mapping[str, tuple[str, str]] = {
    "x86_64": ("ld-linux-x86-64.so.2", "__tls_get_addr"),
    "aarch64": ("ld-linux-aarch64.so.1", ""),
}
# All symbols that a link against the stubs can find outside the library.
SYSTEM_SYMBOLS = frozenset(
    [*" ".join(STUB_LIBRARIES.values()).split(), *(name for _, name in _LOADER.values() if name)]
)
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
    loader, loader_names = _LOADER[arch]
    tables = {**STUB_LIBRARIES, **({loader: loader_names} if loader_names else {})}
    for soname, text in tables.items():
        names = text.split()
        source, script = _assembler(names), _version_script(arch, names)
        parts = {"kind": "libc stub", "tool": identity, "source": source, "script": script}
        key = key_of({**parts, "soname": soname})
        found = cache.get(key)
        if found is None:
            (folder / "stub.s").write_text(source)
            (folder / "stub.map").write_text(script)
            build("stub.s", soname, "stub.map", folder)
            cache.put(key, (folder / soname).read_bytes(), parts)
        else:
            (folder / soname).write_bytes(found)
    return list(tables)
