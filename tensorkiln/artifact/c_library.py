"""The C libraries of systems: a row each, with the functions that libraries may use by the file
that provides them.

The linker's stubs are generated from these tables (`link/elf/stubs.py`), and the list of a
library's dependencies is read with them (`artifact/components.py`). Metadata says which one, and
which version at least, a library needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from tensorkiln.base.record import JsonRecord, word
from tensorkiln.base.schema import Reader

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

_MATHEMATICAL = " ".join(f"{name} {name}f" for name in _MATHEMATICS.split())

# What the runtime calls: in all C libraries, from files, from threads and from the dynamic loader.
_RUNTIME = (
    "abort calloc clock_gettime close free getauxval getenv getpid getrlimit lseek madvise malloc "
    "mmap munmap open posix_memalign read realloc realpath sched_getaffinity sigfillset snprintf "
    "strchr strcmp strerror strlen strncmp strrchr strtol syscall vsnprintf write"
)
_THREADS = (
    "pthread_attr_getstack pthread_create pthread_getattr_np pthread_getspecific pthread_join "
    "pthread_key_create pthread_key_delete pthread_mutex_lock pthread_mutex_unlock "
    "pthread_setspecific pthread_sigmask"
)
_LOADER = "dladdr dlclose dlopen dlsym"


@dataclass(frozen=True, slots=True)
class SystemNeed(JsonRecord):
    """What a library needs of the system: the C library `name`, of `version` or newer."""

    name: str
    version: Annotated[str, word(r"\d{1,9}(\.\d{1,9}){0,3}", "a version, such as 2.17")]

    def __str__(self) -> str:
        return f"{self.name} {C_LIBRARIES[self.name].counted}{self.version} or newer"

    @property
    def order(self) -> tuple[int, ...]:
        """Equal and greater for newer versions."""
        return tuple(map(int, self.version.split(".")))

    def validate(self, reader: Reader) -> None:
        """See `JsonRecord`."""
        if self.name not in C_LIBRARIES:
            raise reader.unknown(self.name, C_LIBRARIES, "name")


@dataclass(frozen=True, slots=True)
class CLibrary:
    """A C library: its name, what triples call it, the oldest version that linked libraries run on,
    by architecture (of all others under ''), its license, and what is written before its versions
    (`API 24`).

    `files` are the symbols that libraries may use, by the name of the file (DT_NEEDED) that has
    them, `loaders` name and symbols of the dynamic loader's file, by architecture, and
    `other_files` names of further files. `versions` are those of symbols, by architecture, without
    the `version_prefix`; that of all symbols which are not named is under ''.
    """

    name: str
    environment: str
    oldest: Mapping[str, str]
    license: str
    counted: str
    files: Mapping[str, str]
    loaders: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    other_files: tuple[str, ...] = ()
    version_prefix: str = ""
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def need(self, arch: str) -> SystemNeed:
        """What libraries of an architecture need at least that are linked with it."""
        return SystemNeed(self.name, self.oldest.get(arch, self.oldest[""]))

    @property
    def symbols(self) -> frozenset[str]:
        """All symbols that a link against its stubs can find outside the library."""
        texts = [*self.files.values(), *(names for _, names in self.loaders.values())]
        return frozenset(" ".join(texts).split())

    @property
    def file_names(self) -> frozenset[str]:
        """Names of its files, also those that only other linkers name."""
        loaders = (loader for loader, _ in self.loaders.values())
        return frozenset((*self.files, *loaders, *self.other_files))

    def stubs(self, arch: str) -> Mapping[str, str]:
        """The files that a link for an architecture needs, with their symbols."""
        loader, names = self.loaders.get(arch, ("", ""))
        return {**self.files, **({loader: names} if names else {})}

    def version_of(self, arch: str, symbol: str) -> str:
        """The version of a symbol; empty for a C library without any."""
        versions = self.versions.get(arch)
        return self.version_prefix + versions.get(symbol, versions[""]) if versions else ""


GLIBC = CLibrary(
    "glibc",
    "gnu",
    {"": "2.17", "riscv64": "2.27"},
    "LGPL-2.1-or-later",
    "",
    {
        "libc.so.6": (
            "__cxa_atexit __cxa_finalize __errno_location __register_atfork dl_iterate_phdr "
            f"pthread_attr_destroy pthread_self sysconf {_RUNTIME} {_PLAIN}"
        ),
        "libm.so.6": _MATHEMATICAL,
        "libpthread.so.0": _THREADS,
        "libdl.so.2": _LOADER,
    },
    {
        "x86_64": ("ld-linux-x86-64.so.2", "__tls_get_addr"),
        "aarch64": ("ld-linux-aarch64.so.1", ""),
        "riscv64": ("ld-linux-riscv64-lp64d.so.1", "__tls_get_addr"),
    },
    ("librt.so.1", "libutil.so.1"),
    "GLIBC_",
    {
        "x86_64": {
            "": "2.2.5",
            "__register_atfork": "2.3.2",
            "__tls_get_addr": "2.3",
            "clock_gettime": "2.17",
            "getauxval": "2.16",
            "realpath": "2.3",
            "sched_getaffinity": "2.3.4",
        },
        "aarch64": {"": "2.17"},
        "riscv64": {"": "2.27"},
    },
)
# One file, which every musl knows by this name, whatever a distribution calls it.
MUSL = CLibrary(
    "musl",
    "musl",
    {"": "1.1"},
    "MIT",
    "",
    {
        "libc.so": (
            "__errno_location __tls_get_addr dl_iterate_phdr pthread_atfork pthread_attr_destroy "
            f"pthread_self sysconf {_RUNTIME} {_THREADS} {_LOADER} {_PLAIN} {_MATHEMATICAL}"
        )
    },
    other_files=(
        *("libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1", "libc.musl-riscv64.so.1"),
        *("ld-musl-x86_64.so.1", "ld-musl-aarch64.so.1", "ld-musl-riscv64.so.1"),
    ),
)
# Android's. C is compiled for it with musl's headers (link/object_format.py): here is only what
# these declare as bionic does, so that a call of anything else is an error of the link.
BIONIC = CLibrary(
    "bionic",
    "android",
    {"": "24"},
    "BSD-2-Clause",
    "API ",
    {
        "libc.so": (
            "__cxa_atexit __cxa_finalize __errno __register_atfork pthread_attr_destroy "
            f"ldexp pthread_self {_RUNTIME} {_THREADS} {_PLAIN}"
        ),
        "libm.so": _MATHEMATICAL.replace(" ldexp ", " "),
        "libdl.so": f"dl_iterate_phdr {_LOADER}",
    },
)
# What a library needs whose metadata does not say it: that of the first architectures.
GLIBC_NEED = GLIBC.need("")
C_LIBRARIES: Mapping[str, CLibrary] = {row.name: row for row in (GLIBC, MUSL, BIONIC)}

MATHEMATICS = frozenset(_MATHEMATICAL.split())
# All symbols that a link can find outside the library, on any system: code has the same names
# everywhere.
SYSTEM_SYMBOLS = frozenset().union(*(row.symbols for row in C_LIBRARIES.values()))
# Functions that the runtime itself calls: no kernel may have one of these names.
RUNTIME_CALLS = SYSTEM_SYMBOLS - MATHEMATICS - frozenset(_PLAIN.split())
