"""What a compiled model embeds and needs: each piece of software with its license.

Nothing of this is stored. Metadata says what was compiled (compiler, devices, dependencies and
their use), and its binary what was linked: the list is read from both, and costs no byte.

    embedded  tensorkiln-runtime: the C sources of crt/ in every library
    linked    the C library; libraries of dependencies; any other file that it needs (DT_NEEDED)
    opened    drivers of devices (dlopen)
    embedded, linked, host, build   the external dependencies

What is generated from a model is the model's, and no component.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.artifact.artifact import Artifact
from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.artifact.binary import BinaryFile
from tensorkiln.artifact.c_library import C_LIBRARIES, SYSTEM_SYMBOLS, CLibrary, SystemNeed
from tensorkiln.artifact.metadata import Metadata
from tensorkiln.artifact.mlf.metadata import Model
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.artifact.sections import METADATA
from tensorkiln.base.errors import UserError
from tensorkiln.base.licenses import RUNTIME_LICENSE, UNSTATED
from tensorkiln.base.origin import Use
from tensorkiln.base.record import JsonRecord

RUNTIME = "tensorkiln-runtime"
_GCC_LICENSE = "GPL-3.0-or-later WITH GCC-exception-3.1"
# Drivers by the kind of device: name, file, license. The OpenCL loader may be any vendor's.
DRIVERS: Mapping[str, tuple[str, str, str]] = {
    "cuda": ("nvidia-driver", "libcuda.so.1", "LicenseRef-NVIDIA-driver"),
    "opencl": ("opencl-loader", "libOpenCL.so.1", UNSTATED),
}
# Functions that compilers add to what they compile: of libgcc and compiler-rt, and start files.
_HELPER = re.compile(
    r"__(u?(div|mod|divmod)[hsdt]i[34]|(mul|neg|cmp|ucmp|ashl|ashr|lshr|ffs|clz|ctz|popcount|parity|"
    r"bswap)[sdt]i[234]|(add|sub|mul|div|neg|pow|extend|trunc|fix|fixuns|float|floatun|eq|ne|lt|le|gt|"
    r"ge|unord)([hsdtx]f|[bhsdtx]f[sdti]+)[2i3]?)"
)
_START_FILES = ("frame_dummy", "__do_global_dtors_aux")
_OF_LINKERS = ("_GLOBAL_OFFSET_TABLE_", "_TLS_MODULE_BASE_")
_SHOWN = 6  # functions in `why`


@dataclass(frozen=True, slots=True)
class Component(JsonRecord):
    """A piece of software: `version` is empty if it is not known, `license` an expression of SPDX,
    `how` one of USES (base/origin.py), `why` what needs it, `files` names of libraries that must be
    there, or of the parts that are embedded, and `url` where to get it."""

    name: str
    version: str
    license: str
    how: str
    why: str
    files: tuple[str, ...] = ()
    url: str = ""


def components(metadata: Metadata, objects: Sequence[BinaryFile] = ()) -> tuple[Component, ...]:
    """The components of a library, sorted by how and name. `objects` is the shared library, or the
    relocatable objects of a static one; without any, of artifacts that nobody linked, what they
    will need follows from the metadata alone.

    Raises UserError (code `bad-library`) for damaged objects.
    """
    linked = _Linked(objects, metadata.system)
    rows = [_runtime(metadata, linked)]
    if objects:
        system, foreign = linked.divided()
        if system or any(name in linked.c_library.file_names for name in linked.needed):
            rows.append(_c_library(linked, system))
        rows += _compiler(linked)
    else:
        foreign = ()
        rows.append(_c_library(linked, (), "the C runtime: memory, threads, files"))
    kinds = dict.fromkeys(d.kind for d in metadata.devices if d.number)
    for name, file, license_ in (DRIVERS[kind] for kind in kinds if kind in DRIVERS):
        rows.append(Component(name, "", license_, "opened", "code for devices", (file,)))
    rows += _dependencies(metadata, linked, foreign)
    named_files = {file for c in rows for file in c.files}
    for file in linked.needed:
        if file not in named_files and file not in linked.c_library.file_names:
            rows.append(_unknown(file, foreign))
    return tuple(sorted(rows, key=lambda c: (_ORDER.index(c.how), c.name)))


_ORDER = ("embedded", "linked", "opened", "host", "build")


class _Linked:
    """The symbols that binaries define and need; `needed` are the libraries that they need, in
    order, and `system` what they need of the system: what metadata says, or the newer version that
    a compiler of the caller's has linked."""

    def __init__(self, objects: Sequence[BinaryFile], system: SystemNeed):
        self.c_library: CLibrary = C_LIBRARIES[system.name]
        self.is_shared = bool(objects) and not objects[0].relocatable
        self.needed = tuple(dict.fromkeys(n for binary in objects for n in binary.needed()))
        self.symbols, undefined = set[str](), dict[str, None]()
        self.comments = ""
        for binary in objects:
            self.symbols |= {s.name for s in binary.symbols() if s.is_defined}
            for s in binary.symbols(dynamic=not binary.relocatable):
                if s.name and not s.is_defined and not s.is_weak and s.name not in _OF_LINKERS:
                    undefined[s.name] = None
            section = binary.section(".comment")
            if section is not None:
                self.comments += bytes(binary.content(section)[:4096]).decode("ascii", "replace")
        self.system = linked_need(system, objects)
        self.undefined = tuple(n for n in undefined if n not in self.symbols)

    def divided(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The undefined symbols of the C library, and those of others."""
        libraries = [n for n in self.needed if n not in self.c_library.file_names]
        if self.is_shared and not libraries:  # whatever the caller's linker found there
            return self.undefined, ()
        system = tuple(n for n in self.undefined if n in SYSTEM_SYMBOLS)
        return system, tuple(n for n in self.undefined if n not in SYSTEM_SYMBOLS)


def linked_need(system: SystemNeed, objects: Sequence[BinaryFile]) -> SystemNeed:
    """What linked files need of the system: `system`, or the newer version of the C library whose
    symbols they name. Raises UserError (code `bad-library`) for damaged files."""
    sections = [(binary, binary.section(".dynstr")) for binary in objects]
    names = b"".join(bytes(b.content(section)) for b, section in sections if section is not None)
    prefix = C_LIBRARIES[system.name].version_prefix
    if not prefix:
        return system
    versions = re.findall(rf"\b{prefix}(\d+(?:\.\d+)+)".encode(), names)
    needs = [system, *(SystemNeed(system.name, v.decode()) for v in versions)]
    return max(needs, key=lambda need: need.order)


def _runtime(metadata: Metadata, linked: _Linked) -> Component:
    parts = ["crt"]
    kinds = dict.fromkeys(d.kind for d in metadata.devices if d.number)
    if kinds:
        parts += ["crt/device", *(f"crt/{kind}" for kind in kinds)]
    reason = "kiln_call, kiln_open, ...: calls, tensors, threads"
    version = metadata.compiler_version
    return Component(RUNTIME, version, RUNTIME_LICENSE, "embedded", reason, tuple(parts))


def archive_components(
    models: Mapping[str, Model], own_files: Sequence[str], version: str
) -> tuple[Component, ...]:
    """The components of an archive in Model Library Format, sorted by how and name: Tensorkiln's
    files (paths `own_files`), what the objects need of the C library, and the dependencies,
    embedded where their sources are in the archive. The program links the rest."""
    component_of_name = dict[str, Component]()
    if own_files:
        reason = "headers and templates of projects"
        component_of_name["Tensorkiln"] = Component(
            "Tensorkiln", version, RUNTIME_LICENSE, "embedded", reason, tuple(own_files)
        )
    needed = sorted({name for m in models.values() for name in m.undefined_symbols})
    system = [name for name in needed if name in SYSTEM_SYMBOLS]
    if system:
        component_of_name["libc"] = Component("libc", "", UNSTATED, "linked", _listed(system))
    for model in models.values():
        for d in model.external_dependencies:
            bundled = model.bundled.get(d.short_name)
            kind = "build" if d.build_time else "linked"
            files, reason = d.libraries, f"model {model.model_name}"
            if bundled is not None:
                kind, files = "embedded", (bundled.path,)
            component_of_name.setdefault(
                d.short_name,
                Component(d.short_name, d.version_spec, d.license, kind, reason, files, d.url),
            )
    return tuple(sorted(component_of_name.values(), key=lambda c: (_ORDER.index(c.how), c.name)))


def _c_library(linked: _Linked, symbols: Sequence[str], reason: str = "") -> Component:
    row, version = linked.c_library, f">={linked.system.version}"
    files = tuple(sorted(n for n in linked.needed if n in row.file_names))
    return Component(row.name, version, row.license, "linked", reason or _listed(symbols), files)


def _compiler(linked: _Linked) -> Iterable[Component]:
    """The components that a compiler driver has linked into the file; the packaged linker adds
    none."""
    version = next(iter(re.findall(r"GCC: \([^)]*\) ([\d.]+)", linked.comments)), "")
    helpers = sorted(n for n in linked.symbols if _HELPER.fullmatch(n))
    if helpers:
        yield Component("libgcc", version, _GCC_LICENSE, "embedded", _listed(helpers))
    if any(n in linked.symbols for n in _START_FILES):
        files = ("crtbeginS.o", "crtendS.o")
        reason = "the compiler that linked it adds them"
        yield Component("gcc-start-files", version, _GCC_LICENSE, "embedded", reason, files)
        if "_init" in linked.symbols:
            files = ("crti.o", "crtn.o")
            row = linked.c_library
            name = f"{row.name}-start-files"
            yield Component(name, "", row.license, "embedded", reason, files)


def _dependencies(
    metadata: Metadata, linked: _Linked, foreign: Sequence[str]
) -> Iterable[Component]:
    uses = {u.short_name: u for u in metadata.origin.uses}
    for d in metadata.dependencies:
        plain = "build" if d.build_time else "linked" if d.libraries else "embedded"
        use = uses.get(d.short_name, Use(d.short_name, plain, "metadata does not say"))
        kind = use.how
        if kind == "embedded" and not linked.is_shared and foreign:
            kind = "linked"  # by the program that this is linked into
        yield Component(d.short_name, d.version_spec, d.license, kind, use.why, d.libraries, d.url)


def _unknown(file: str, foreign: Sequence[str]) -> Component:
    name = re.sub(r"\.so[.\d]*\Z", "", file)
    return Component(name, "", UNSTATED, "linked", _listed(foreign), (file,))


def _listed(symbols: Sequence[str]) -> str:
    hidden = len(symbols) - _SHOWN
    tail = f", ... and {hidden} more" if hidden > 0 else ""
    return ", ".join(sorted(symbols)[:_SHOWN]) + tail


# -- metadata of what is not a library -----------------------------------------------------------


_METADATA = re.compile(r"^(?:static )?const char \w+\[\] =\n((?:    \".*\"\n?)+);", re.MULTILINE)


def set_metadata(artifacts: ArtifactSet) -> Metadata:
    """The metadata of a whole compile, from its entry file. Raises UserError (code `bad-artifact`)
    where there is none."""
    for a in artifacts:
        if isinstance(a, Artifact) and a.name == "host/entry.c":
            match = _METADATA.search(a.text())
            if match:
                return Metadata.from_bytes(_unquoted(match[1]), a.name)
        if isinstance(a, Artifact) and a.name == "host/entry.o":
            binary = binary_of(a.view, a.name)
            section = binary.section(METADATA)
            if section is not None:
                return Metadata.from_bytes(binary.content(section), a.name)
    raise UserError("no entry file with metadata: these are not all artifacts", code="bad-artifact")


def _unquoted(lines: str) -> bytes:
    """The bytes of C string literals, one per line, as `quote` (codegen/host/header.py) writes
    them."""
    text = "".join(line.strip().rstrip(";")[1:-1] for line in lines.splitlines())
    whole = re.sub(r"\\([0-7]{3}|.)", lambda m: chr(int(m[1], 8)) if len(m[1]) == 3 else m[1], text)
    return whole.encode("latin-1")
