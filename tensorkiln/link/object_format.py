"""Formats of object files and libraries: a row of the table `FORMATS` for each.

All that depends on the format of a machine is in its row, and in what the row refers to
(`link/elf/`); the rest of `link` asks. A triple gives the row. Reading has a table of its own,
since files of any format are read on any machine: `artifact/read_binary.py`. Symbols have the names
of C everywhere: a format that puts something before them does so in its reader and its row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tensorkiln.artifact import read_binary
from tensorkiln.artifact.c_library import BIONIC, GLIBC, MUSL, CLibrary, SystemNeed
from tensorkiln.base.cache import Cache
from tensorkiln.base.errors import InternalError, UnsupportedError
from tensorkiln.link.data_section import DataSection, SectionUse, WeightsPlacement
from tensorkiln.link.elf.data_object import SECTION_NAMES, object_chunks
from tensorkiln.link.elf.rename import rename_elf_symbols
from tensorkiln.link.elf.stubs import AssembleAndLink, make_stubs
from tensorkiln.link.elf.weights_segment import place_weights, placeholder
from tensorkiln.target.triple import (
    LIBRARIES,
    canonical_triple,
    library_system,
    require_library,
)


class PlaceWeights(Protocol):
    """Lay out a library and its weights: `place_weights` in `link/elf/weights_segment.py`."""

    def __call__(
        self, linked: bytes, size: int, beside: bytes | None = None, compact: bool = False
    ) -> WeightsPlacement:
        """The bytes around `size` bytes of weights in the linker's output."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectFormat:
    """A format, as compilers and linkers are asked for it. Suffixes begin with a dot."""

    name: str  # in artifact/read_binary.py
    shared_suffix: str
    object_suffix: str
    archive_suffix: str
    os_source: str  # the file of crt that asks the system

    # The packaged compiler's name of an architecture, and of the version of the system's C library
    # that libraries need at least, with further options for it; flags of every compile and link;
    # how commands of the packaged linker begin.
    compiler_target: Callable[[str, str], tuple[str, ...]]
    c_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    linker: tuple[str, ...]
    merger: tuple[str, ...]

    # What a compiler driver of the caller's gets besides, and the C library of the system.
    driver_flags: tuple[str, ...]
    libraries: tuple[str, ...]
    c_library: CLibrary

    # The file that lists exported symbols, how the linker's option that names it begins, its text.
    export_file: str
    export_flag: str
    export_list: Callable[[Sequence[str]], str]

    # Write what a link has in place of the C library: `make_stubs` in link/elf/stubs.py.
    write_stubs: Callable[[CLibrary, str, Cache, str, AssembleAndLink, Path], list[str]]

    # Names of sections; an object of sections (architecture, sections, its symbol, the number of
    # that symbol's section, its size); another object in which symbols are renamed (old -> new).
    section_names: Mapping[SectionUse, str]
    data_object: Callable[[str, Sequence[DataSection], str, int, int], Iterator[bytes | memoryview]]
    rename_symbols: Callable[[bytes | bytearray | memoryview, Mapping[str, str]], bytes]

    # The object that is linked in place of weights, for an architecture; then weights in its place.
    placeholder: Callable[[str], bytes]
    place_weights: PlaceWeights

    def driver_options(self, export_file: str) -> list[str]:
        """The linker's flags, and the list of exports, as a compiler driver takes them."""
        flags = ",".join([*self.link_flags, f"{self.export_flag}{export_file}"])
        return [*self.driver_flags, f"-Wl,{flags}"]


def _version_script(exports: Sequence[str]) -> str:
    lines = "".join(f"    {name};\n" for name in exports)
    return f"{{\n  global:\n{lines}  local: *;\n}};\n"


ELF = ObjectFormat(
    name=read_binary.ELF.name,
    shared_suffix=read_binary.ELF.shared_suffix,
    object_suffix=read_binary.ELF.object_suffix,
    archive_suffix=".a",
    os_source="os_posix.c",
    compiler_target=lambda arch, version: (f"{arch}-linux-gnu.{version}",),
    c_flags=(
        "-std=c99",
        "-O2",
        "-g0",
        "-fPIC",
        "-fvisibility=hidden",
        "-ffunction-sections",
        "-fdata-sections",
        "-fno-builtin",
        "-fno-stack-protector",
        "-fomit-frame-pointer",
        "-fno-ident",
    ),
    link_flags=(
        "-Bsymbolic",
        "--gc-sections",
        "--build-id=none",
        "--hash-style=gnu",
        "-z",
        "defs",
        "-z",
        "relro",
        "-z",
        "now",
        "-z",
        "noexecstack",
        "--as-needed",
    ),
    linker=("ld.lld", "-shared"),
    merger=("ld.lld", "-r"),
    driver_flags=("-shared", "-fPIC"),
    # Since glibc 2.34 libpthread and libdl are part of libc; the files of these names are empty.
    libraries=("-lpthread", "-ldl", "-lm"),
    c_library=GLIBC,
    export_file="exports.map",
    export_flag="--version-script=",
    export_list=_version_script,
    write_stubs=make_stubs,
    section_names=SECTION_NAMES,
    data_object=object_chunks,
    rename_symbols=rename_elf_symbols,
    placeholder=placeholder,
    place_weights=place_weights,
)
MUSL_ELF = replace(
    ELF,
    compiler_target=lambda arch, _version: (f"{arch}-linux-musl",),
    libraries=(),  # its compilers find all in libc
    c_library=MUSL,
)
# The packaged compiler has no headers of bionic. Musl's declare the same functions, constants and
# structs, with the exceptions that crt/os_posix.c names; what Android asks of code besides is that
# x18 is not used. (As `-android` it would call functions of a library of compilers for each atomic
# operation.) Pages of Android 15 may have 16 KiB.
_RESERVED = {"aarch64": ("-mcpu=generic+reserve_x18",)}
ANDROID_ELF = replace(
    ELF,
    compiler_target=lambda arch, _version: (f"{arch}-linux-musl", *_RESERVED.get(arch, ())),
    c_flags=(*ELF.c_flags, "-D__ANDROID__=1"),
    link_flags=(*ELF.link_flags, "-z", "max-page-size=16384"),
    libraries=("-ldl", "-lm"),
    c_library=BIONIC,
)
# Systems and environments of triples (`library_system` in target/triple.py) -> their format.
FORMATS: Mapping[str, ObjectFormat] = {
    "linux-gnu": ELF,
    "linux-musl": MUSL_ELF,
    "linux-android": ANDROID_ELF,
}


def library_arch(triple: str) -> str:
    """`"x86_64"` or `"aarch64"`, the architecture of a triple. Raises UserError if the text is not
    a triple, UnsupportedError if no library can be linked for it."""
    arch = canonical_triple(triple, "triple").partition("-")[0]
    if arch not in LIBRARIES:
        raise UnsupportedError(
            f"no library is linked for {arch}, as triple {triple!r} asks",
            where="triple",
            hint=f"architectures that work: {', '.join(LIBRARIES)}; "
            "export_model_library_format() gives the sources for others",
        )
    return require_library(triple, "triple")


def format_of(triple: str) -> ObjectFormat:
    """The format of libraries for a triple. Errors of `library_arch`."""
    library_arch(triple)
    return driver_format(canonical_triple(triple, "triple"))


def driver_format(triple: str) -> ObjectFormat:
    """The format of what a compiler driver of the caller's makes for a triple of any machine. It
    may know systems that have no row, whose format is taken to be ELF."""
    return FORMATS.get(library_system(triple), ELF)


def system_need(triple: str) -> SystemNeed:
    """What libraries for a triple need of the system at least."""
    need = driver_format(triple).c_library.need(triple.partition("-")[0])
    level = re.search(r"android(\d+)\Z", triple)
    return replace(need, version=level[1]) if level else need


def rename_symbols(data: bytes | bytearray | memoryview, names: Mapping[str, str]) -> bytes:
    """Return a copy of an object file, of whatever format it is, in which symbols are renamed as
    `names` (old -> new) says. InternalError unless the file is one that we make."""
    form = read_binary.binary_format(bytes(data[:8]))
    row = next((f for f in FORMATS.values() if form is not None and f.name == form.name), None)
    if row is None:
        raise InternalError("an object of no format that is written")
    return row.rename_symbols(data, names)
