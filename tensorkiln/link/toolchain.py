"""The tools that compile C and link: the packaged ones, or a command of the caller's.

A tool chain can `compile`, `link` and `merge`. All three run in a folder that holds their files and
use relative names, so that no path gets into the output.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tensorkiln.artifact.binary import BinaryFile
from tensorkiln.artifact.c_library import C_LIBRARIES
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.cache import Cache
from tensorkiln.base.config import read_config
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.base.packages import install_line
from tensorkiln.base.tools import ToolFailure, run_tool
from tensorkiln.link.audit import EDITED
from tensorkiln.link.object_format import (
    LIBRARIES,
    ObjectFormat,
    driver_format,
    format_of,
    library_arch,
    system_need,
)

_PRIVATE = 0o077  # umask of tools whose files are cached: others may not write them (base/trust.py)


class Toolchain(Protocol):
    """What a link needs of a tool chain. `identity` is part of cache keys: two tool chains whose
    output may differ have different ones."""

    @property
    def identity(self) -> str:
        """Name and version of the tool, and the machine it compiles for."""
        ...

    @property
    def format(self) -> ObjectFormat:
        """The format of what is compiled and linked."""
        ...

    def compile(
        self, sources: Sequence[str], include: Path, folder: Path, options: Sequence[str] = ()
    ) -> list[str]:
        """Compile C files of `folder`, with further `options`; return the names of the objects, in
        the order of `sources`."""
        ...

    def link(
        self,
        objects: Sequence[str],
        output: str,
        exports: str,
        libraries: Sequence[str],
        folder: Path,
    ) -> None:
        """Link objects into a shared library; `exports` is the file in `folder` that lists its
        exported symbols."""
        ...

    def merge(self, objects: Sequence[str], output: str, folder: Path) -> None:
        """Link objects into one relocatable object."""
        ...


def _object_name(source: str, row: ObjectFormat) -> str:
    return Path(source).stem + row.object_suffix


@functools.cache
def zig_path() -> Path:
    """Path of the compiler in package ziglang; UserError (code `no-tool`) if it is not
    installed."""
    spec = importlib.util.find_spec("ziglang")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        for name in ("zig", "zig.exe"):
            if (Path(place) / name).is_file():
                return Path(place) / name
    raise UserError(
        "linking needs a C compiler and linker",
        code="no-tool",
        hint=f"{install_line('ziglang')}, or set CC=gcc, or pass fcompile='gcc'",
    )


def run_zig(arguments: Sequence[str], folder: Path, cache: Cache | None, umask: int = -1) -> None:
    """Run zig in `folder`, with its own cache in `cache`; where that is full or cannot be written,
    with one in `folder`. Errors of `run_tool`."""

    def run(place: Path) -> None:
        text = str(place)
        environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": text, "ZIG_LOCAL_CACHE_DIR": text}
        run_tool([str(zig_path()), *arguments], folder, environ, umask)

    store = None if cache is None else cache.folder("zig")
    if store is not None:
        try:
            return run(store)
        except ToolFailure as failure:
            if not failure.refused:
                raise
    return run(folder / "zig-cache")


@dataclass(frozen=True, slots=True)
class ZigToolchain:
    """`zig cc` for C and the bare lld beside it for the link, which is some 200 times quicker than
    `zig cc -shared` on a cold cache. Links against stubs of the C library (link/elf/stubs.py)."""

    triple: str
    cache_dir: Path

    @property
    def identity(self) -> str:
        """Version and target."""
        return f"zig {_zig_version(zig_path())} {' '.join(self._target)}"

    @property
    def format(self) -> ObjectFormat:
        """That of the triple."""
        return format_of(self.triple)

    @property
    def _target(self) -> tuple[str, ...]:
        version = system_need(self.triple).version
        return self.format.compiler_target(library_arch(self.triple), version)

    def _zig(self, arguments: Sequence[str], folder: Path) -> None:
        run_zig(arguments, folder, Cache(self.cache_dir), _PRIVATE)

    def compile(
        self, sources: Sequence[str], include: Path, folder: Path, options: Sequence[str] = ()
    ) -> list[str]:
        """Run once per source: given several, `zig cc -c` writes the first object only."""
        flags = [*self.format.c_flags, *options, "-fno-sanitize=undefined"]
        flags.append(f"-ffile-prefix-map={folder}=.")
        command = ["cc", "-target", *self._target, *flags, "-I", str(include), "-c"]
        objects = [_object_name(source, self.format) for source in sources]
        for source, output in zip(sources, objects, strict=True):
            self._zig([*command, source, "-o", output], folder)
        return objects

    def assemble(self, source: str, folder: Path) -> str:
        """Assemble one file of `folder`; return the object's name."""
        self._zig(["cc", "-target", *self._target, "-c", source], folder)
        return _object_name(source, self.format)

    def link(
        self,
        objects: Sequence[str],
        output: str,
        exports: str,
        libraries: Sequence[str],
        folder: Path,
    ) -> None:
        """Link a shared library that needs no symbol newer than the C library of the row."""
        arch, row, cache = library_arch(self.triple), self.format, Cache(self.cache_dir)
        build = self._assemble_and_link
        stubs = row.write_stubs(row.c_library, arch, cache, self.identity, build, folder)
        arguments = [*row.linker, *row.link_flags, f"{row.export_flag}{exports}"]
        self._zig([*arguments, "-o", output, *objects, *_for_linker(libraries), *stubs], folder)

    def merge(self, objects: Sequence[str], output: str, folder: Path) -> None:
        """Merge with the bare linker."""
        self._zig([*self.format.merger, "-o", output, *objects], folder)

    def _assemble_and_link(self, source: str, soname: str, script: str, folder: Path) -> None:
        code, row = self.assemble(source, folder), self.format
        arguments = [*row.linker, "--build-id=none", f"-soname={soname}"]
        self._zig([*arguments, f"{row.export_flag}{script}", "-o", soname, code], folder)


def _for_linker(options: Sequence[str]) -> list[str]:
    """Options of a compiler as the linker takes them: `-Wl,-rpath,/x` is `-rpath /x`."""
    prefix = "-Wl,"
    return [
        part
        for option in options
        for part in (option[len(prefix) :].split(",") if option.startswith(prefix) else [option])
    ]


@functools.cache
def _zig_version(zig: Path) -> str:
    return run_tool([str(zig), "version"], Path.cwd()).strip()


@dataclass(frozen=True, slots=True)
class CommandToolchain:
    """A compiler driver such as `gcc` or `clang --target=...`, for C and for the link, which is to
    make code for `triple`: UserError (code `wrong-compiler`) where it makes code for another
    architecture, or links another C library. `format` is that of what it makes."""

    command: str
    triple: str
    format: ObjectFormat

    @property
    def identity(self) -> str:
        """The command and the first line of its --version."""
        version = run_tool([*self._argv, "--version"], Path.cwd()).split("\n")[0]
        return f"{self.command}: {version}"

    @property
    def _argv(self) -> list[str]:
        return shlex.split(self.command)

    def compile(
        self, sources: Sequence[str], include: Path, folder: Path, options: Sequence[str] = ()
    ) -> list[str]:
        """Compile all sources in one run."""
        flags = [*self.format.c_flags, *options, f"-ffile-prefix-map={folder}=."]
        run_tool([*self._argv, *flags, "-I", str(include), "-c", *sources], folder)
        names = [_object_name(source, self.format) for source in sources]
        for name in names[:1]:
            self._require_machine((folder / name).read_bytes())
        return names

    def link(
        self,
        objects: Sequence[str],
        output: str,
        exports: str,
        libraries: Sequence[str],
        folder: Path,
    ) -> None:
        """Link with the C library of the command; the output then needs its symbol versions."""
        flags, system = self.format.driver_options(exports), self.format.libraries
        run_tool([*self._argv, *flags, "-o", output, *objects, *libraries, *system], folder)
        self._require_c_library((folder / output).read_bytes())

    def _require_machine(self, code: bytes) -> None:
        machine, arch = _binary(code).machine, self.triple.partition("-")[0]
        if arch in LIBRARIES and machine != arch:
            raise self._unsuited(f"compiles for {machine}")

    def _require_c_library(self, code: bytes) -> None:
        expected, needed = self.format.c_library, {*_binary(code).needed()}
        for row in C_LIBRARIES.values():
            if row is not expected and needed & row.file_names - expected.file_names:
                raise self._unsuited(f"links {row.name}")

    def _unsuited(self, fact: str) -> UserError:
        return UserError(
            f"{self.command!r} {fact}; the library is for {self.triple}",
            code="wrong-compiler",
            hint="name a compiler for that system, by CC or fcompile, or none: "
            "those of package ziglang make code for all",
        )

    def merge(self, objects: Sequence[str], output: str, folder: Path) -> None:
        """Merge without the start-up files and libraries that the driver would add."""
        run_tool([*self._argv, "-r", "-nostdlib", "-o", output, *objects], folder)


def _binary(code: bytes) -> BinaryFile:
    return binary_of(memoryview(code), "what the compiler wrote")


def choose_toolchain(triple: str, command: str | None = None) -> Toolchain:
    """The tool chain of `command`, else of the environment's $CC, else the packaged one."""
    config = read_config()
    if command or config.cc:
        return CommandToolchain(command or config.cc, triple, driver_format(triple))
    return ZigToolchain(triple, config.cache_dir)


def blamed(failure: ToolFailure, authors: Mapping[str, str]) -> UserError | None:
    """The UserError for C text that does not compile and that an external code generator emitted;
    None if the failure is not about such a file. `authors` maps file names to artifacts; those in
    `host/` are ours."""
    for line in failure.stderr.splitlines():
        name, _, text = line.partition(":")
        author = authors.get(name.rpartition("/")[2], "")
        if " error:" in text and author and not author.startswith("host/"):
            owner = author.partition("/")[0]
            return UserError(
                f"the C of {owner!r} does not compile: {failure.stderr.strip()[:4000]}",
                code="external-source",
                where=author,
                hint=f"code generator {owner!r} emitted this file",
            )
    return None


def tool_error(failure: ToolFailure, tools: Toolchain | None) -> Exception:
    """The error to raise: one that names the undefined symbols, else the tool's output. It is an
    InternalError where the packaged tools refuse the runtime, else a UserError: artifacts may have
    been edited, and commands are the caller's choice."""
    packaged = isinstance(tools, ZigToolchain)
    kind = InternalError if packaged and "runtime.c" in failure.command else UserError
    hint = EDITED if packaged and kind is UserError else ""
    names = sorted(
        {
            line.split("undefined symbol:")[1].strip()
            for line in failure.stderr.splitlines()
            if "undefined symbol:" in line
        }
        | {
            line.split("undefined reference to")[1].strip(" `'")
            for line in failure.stderr.splitlines()
            if "undefined reference to" in line
        }
    )
    if names:
        return kind(
            f"no linked object defines {', '.join(names)}\n{failure}",
            code="undefined-symbol",
            hint=hint,
        )
    return kind(str(failure), code="link-failed", hint=hint)
