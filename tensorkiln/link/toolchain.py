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

from tensorkiln.artifact.c_library import STUB_LIBRARIES
from tensorkiln.base.cache import Cache
from tensorkiln.base.config import read_config
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.base.packages import install_line
from tensorkiln.base.tools import ToolFailure, run_tool
from tensorkiln.link.audit import EDITED
from tensorkiln.link.stubs import make_stubs
from tensorkiln.target.triple import LIBRARIES, canonical_triple, require_library

GLIBC = "2.17"  # the oldest glibc that linked libraries run on
C_FLAGS = (
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
)
LINK_FLAGS = (
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
)
_PRIVATE = 0o077  # umask of tools whose files are cached: others may not write them (base/trust.py)


class Toolchain(Protocol):
    """What a link needs of a tool chain. `identity` is part of cache keys: two tool chains whose
    output may differ have different ones."""

    @property
    def identity(self) -> str:
        """Name and version of the tool, and the machine it compiles for."""
        ...

    def compile(
        self, sources: Sequence[str], include: Path, folder: Path, more: Sequence[str] = ()
    ) -> list[str]:
        """Compile C files of `folder`, with `more` flags; return the names of the objects, in the
        order of `sources`."""
        ...

    def link(
        self,
        objects: Sequence[str],
        output: str,
        exports: str,
        libraries: Sequence[str],
        folder: Path,
    ) -> None:
        """Link objects into a shared library; `exports` is a version script in `folder`."""
        ...

    def merge(self, objects: Sequence[str], output: str, folder: Path) -> None:
        """Link objects into one relocatable object."""
        ...


def _object_name(source: str) -> str:
    return Path(source).stem + ".o"


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


def linux_arch(triple: str) -> str:
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


@dataclass(frozen=True, slots=True)
class ZigToolchain:
    """`zig cc` for C and the bare lld beside it for the link, which is some 200 times quicker than
    `zig cc -shared` on a cold cache. Links against stubs of the C library (link/stubs.py)."""

    triple: str
    cache_dir: Path

    @property
    def identity(self) -> str:
        """Version and target."""
        return f"zig {_zig_version(zig_path())} {self._target}"

    @property
    def _target(self) -> str:
        return f"{linux_arch(self.triple)}-linux-gnu.{GLIBC}"

    def _zig(self, arguments: Sequence[str], folder: Path) -> None:
        run_zig(arguments, folder, Cache(self.cache_dir), _PRIVATE)

    def compile(
        self, sources: Sequence[str], include: Path, folder: Path, more: Sequence[str] = ()
    ) -> list[str]:
        """Run once per source: given several, `zig cc -c` writes the first object only."""
        flags = [*C_FLAGS, *more, "-fno-sanitize=undefined", f"-ffile-prefix-map={folder}=."]
        command = ["cc", "-target", self._target, *flags, "-I", str(include), "-c"]
        for source in sources:
            self._zig([*command, source, "-o", _object_name(source)], folder)
        return [_object_name(source) for source in sources]

    def assemble(self, source: str, folder: Path) -> str:
        """Assemble one file of `folder`; return the object's name."""
        self._zig(["cc", "-target", self._target, "-c", source], folder)
        return _object_name(source)

    def link(
        self,
        objects: Sequence[str],
        output: str,
        exports: str,
        libraries: Sequence[str],
        folder: Path,
    ) -> None:
        """Link a shared library that needs no symbol newer than glibc 2.17."""
        arch = linux_arch(self.triple)
        cache = Cache(self.cache_dir)
        stubs = make_stubs(arch, cache, self.identity, self._assemble_and_link, folder)
        arguments = ["ld.lld", "-shared", *LINK_FLAGS, f"--version-script={exports}"]
        self._zig([*arguments, "-o", output, *objects, *_for_linker(libraries), *stubs], folder)

    def merge(self, objects: Sequence[str], output: str, folder: Path) -> None:
        """Merge with `ld.lld -r`."""
        self._zig(["ld.lld", "-r", "-o", output, *objects], folder)

    def _assemble_and_link(self, source: str, soname: str, script: str, folder: Path) -> None:
        made = self.assemble(source, folder)
        arguments = ["ld.lld", "-shared", "--build-id=none", f"-soname={soname}"]
        self._zig([*arguments, f"--version-script={script}", "-o", soname, made], folder)


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
    """A compiler driver such as `gcc` or `clang --target=...`, for C and for the link."""

    command: str

    @property
    def identity(self) -> str:
        """The command and the first line of its --version."""
        version = run_tool([*self._argv, "--version"], Path.cwd()).split("\n")[0]
        return f"{self.command}: {version}"

    @property
    def _argv(self) -> list[str]:
        return shlex.split(self.command)

    def compile(
        self, sources: Sequence[str], include: Path, folder: Path, more: Sequence[str] = ()
    ) -> list[str]:
        """Compile all sources in one run."""
        flags = [*C_FLAGS, *more, f"-ffile-prefix-map={folder}=."]
        run_tool([*self._argv, *flags, "-I", str(include), "-c", *sources], folder)
        return [_object_name(source) for source in sources]

    def link(
        self,
        objects: Sequence[str],
        output: str,
        exports: str,
        libraries: Sequence[str],
        folder: Path,
    ) -> None:
        """Link with the C library of the command; the output then needs its symbol versions."""
        flags = link_options(exports)
        system = [f"-l{name}" for name in ("pthread", "dl", "m")]
        run_tool([*self._argv, *flags, "-o", output, *objects, *libraries, *system], folder)

    def merge(self, objects: Sequence[str], output: str, folder: Path) -> None:
        """Merge without the start-up files and libraries that the driver would add."""
        run_tool([*self._argv, "-r", "-nostdlib", "-o", output, *objects], folder)


def link_options(exports: str) -> list[str]:
    """LINK_FLAGS as a compiler driver takes them."""
    wl = ",".join([*LINK_FLAGS, f"--version-script={exports}"])
    return ["-shared", "-fPIC", f"-Wl,{wl}"]


def choose_toolchain(triple: str, command: str | None = None) -> Toolchain:
    """The tool chain of `command`, else of the environment's $CC, else the packaged one."""
    config = read_config()
    if command or config.cc:
        return CommandToolchain(command or config.cc)
    return ZigToolchain(triple, config.cache_dir)


def blamed(failure: ToolFailure, authors: Mapping[str, str]) -> UserError | None:
    """The UserError for C text that does not compile and that an external code generator emitted;
    None if the failure is not about such a file. `authors` maps file names to artifacts; those in
    `host/` are ours."""
    for line in failure.stderr.splitlines():
        name, _, rest = line.partition(":")
        author = authors.get(name.rpartition("/")[2], "")
        if " error:" in rest and author and not author.startswith("host/"):
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


__all__ = [
    "STUB_LIBRARIES",
    "CommandToolchain",
    "Toolchain",
    "ZigToolchain",
    "blamed",
    "choose_toolchain",
    "link_options",
    "linux_arch",
    "tool_error",
    "zig_path",
]
