"""Externals that call a shared library of this machine: how it is found, what they all refuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.external.c_text import is_size
from tensorkiln.external.external import Emit, External
from tensorkiln.external.match import Refused
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.target import Target, cpu_target

# Where distributions of Linux keep libraries; the first has one folder per architecture.
_FOLDERS = ("/usr/local/lib", "/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64", "/lib")
_VERSION = re.compile(r"(\d+(\.\d+)+)")
Reason = Callable[[Call, Sequence[TensorType]], str]


@dataclass(frozen=True, slots=True)
class HostLibrary:
    """A shared library: its file, its version if the file's name has one, and its machine."""

    path: Path
    version: str
    machine: str

    def suits(self, target: Target) -> bool:
        """Whether the library is for the target's machine."""
        return cpu_target(target).arch == self.machine


@dataclass(frozen=True, slots=True)
class LibraryExternal:
    """An external that computes single operators by calling a library (a file such as `libx.so.1`).

    `reasons` has the operators for which there is code. Each maps to a function of the call and its
    operands' types, which returns why the library does not compute this call, or "". It is asked
    only if all operands are tensors of one of `dtypes` whose sizes are numbers or single symbols.
    `install` says how the library is installed.
    """

    name: str
    file: str
    install: str
    short_name: str
    url: str
    license: str
    dtypes: tuple[str, ...]
    reasons: Mapping[str, Reason]
    emit: Emit
    fallible: bool = False

    def external(self, folders: Sequence[str | Path] = ()) -> External:
        """The External, which uses the library of this machine or the one in `folders`. Raises
        UserError (code `missing-library`) if there is none."""
        library = find_library(self.file, self.install, folders or _FOLDERS)
        return External(
            self.name,
            lambda call, target: self.supports(call, target, library),
            self.emit,
            (self.dependency(library),),
            (str(library.path), *(f"-Wl,-rpath,{folder}" for folder in folders)),
            merge=False,
            fallible=self.fallible,
        )

    def dependency(self, library: HostLibrary) -> ExternalDependency:
        """The dependency on the library, for the metadata."""
        return ExternalDependency(
            self.short_name,
            self.url,
            "git" if library.version else "url",
            f"v{library.version}" if library.version else "",
            license=self.license,
            libraries=(self.file,),
        )

    def supports(self, call: Call, target: Target, library: HostLibrary) -> bool | Refused:
        """Whether the library computes a call; False for an operator that there is no code for."""
        if call.op not in self.reasons:
            return False
        reason = self._reason(call, target, library)
        return Refused(reason) if reason else True

    def _reason(self, call: Call, target: Target, library: HostLibrary) -> str:
        if not library.suits(target):
            return f"{library.path} is for {library.machine}"
        tensors = [a.type for a in call.args if isinstance(a.type, TensorType)]
        dtypes = dict.fromkeys(t.dtype.name for t in tensors)
        if len(tensors) < len(call.args) or len(dtypes) > 1 or not dtypes.keys() <= {*self.dtypes}:
            accepted = " or all ".join(self.dtypes)
            return f"its operands are {', '.join(dtypes)}, and must be all {accepted}"
        if not all(is_size(d) for t in tensors for d in t.shape):
            return "a size is an expression of symbols"
        return self.reasons[call.op](call, tensors)


def find_library(file: str, install: str, folders: Sequence[str | Path] = _FOLDERS) -> HostLibrary:
    """Find the library called `file`, as `libx.so.1`, in folders (patterns) of this machine.

    Raises UserError (code `missing-library`); `install` says how it is installed.
    """
    for folder in map(Path, folders):
        root = Path(folder.anchor)
        for place in sorted(root.glob(f"{folder.relative_to(root)}/{file}")):
            if place.is_file():
                match = _VERSION.search(place.resolve().name.partition("lib")[2])
                return HostLibrary(place, match[1] if match else "", read_binary(place).machine)
    raise UserError(
        f"library {file!r} is not installed: it is in none of {', '.join(map(str, folders))}",
        code="missing-library",
        hint=install,
    )
