"""The functions of the system's C library that libraries may use, by the file that provides them.

The linker's stubs are generated from these tables (`link/elf/stubs.py`), and the list of a
library's dependencies is read with them (`artifact/components.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

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

OLDEST_GLIBC = "2.17"  # that linked libraries run on

# soname -> symbols. Their version is GLIBC_2.2.5 on x86-64, but for those in _X86_VERSIONS, and
# GLIBC_2.17 on aarch64.
STUB_LIBRARIES: Mapping[str, str] = {
    "libc.so.6": (
        "__cxa_atexit __cxa_finalize __errno_location __register_atfork abort calloc clock_gettime "
        "close dl_iterate_phdr free getauxval getenv getpid getrlimit lseek madvise malloc mmap "
        "munmap open posix_memalign pthread_attr_destroy pthread_self read realloc realpath "
        "sched_getaffinity sigfillset snprintf strchr strcmp strerror strlen strncmp strrchr "
        "strtol syscall sysconf vsnprintf write " + _PLAIN
    ),
    "libm.so.6": " ".join(f"{name} {name}f" for name in _MATHEMATICS.split()),
    "libpthread.so.0": (
        "pthread_attr_getstack pthread_create pthread_getattr_np pthread_getspecific pthread_join "
        "pthread_key_create pthread_key_delete pthread_mutex_lock pthread_mutex_unlock "
        "pthread_setspecific pthread_sigmask"
    ),
    "libdl.so.2": "dladdr dlclose dlopen dlsym",
}
_CALLABLE = frozenset(f"{_PLAIN} {STUB_LIBRARIES['libm.so.6']}".split())
# Functions that the runtime itself calls: no kernel may have one of these names.
RUNTIME_CALLS = frozenset(" ".join(STUB_LIBRARIES.values()).split()) - _CALLABLE
LOADERS: Mapping[str, tuple[str, str]] = {
    "x86_64": ("ld-linux-x86-64.so.2", "__tls_get_addr"),
    "aarch64": ("ld-linux-aarch64.so.1", ""),
}
# All symbols that a link against the stubs can find outside the library.
SYSTEM_SYMBOLS = frozenset(
    [*" ".join(STUB_LIBRARIES.values()).split(), *(name for _, name in LOADERS.values() if name)]
)
