"""`link_shared`: kernel objects, the host entry file, weights and the C runtime into one `.so`.

The runtime (crt/) is compiled with hidden symbols; a version script exports the documented ones
only. Stub libraries bind what is used of the C library to its oldest versions (`elf/stubs.py`).
Files of the runtime for devices are compiled only into libraries whose C includes `crt/device.h`,
and those of one kind of device only where its table is named (`device_kinds`): other libraries keep
their bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorkiln.artifact.artifact import (
    Content,
    FileContent,
    content_size,
    write_at,
    write_content,
)
from tensorkiln.artifact.digest import SIZE as DIGEST_SIZE
from tensorkiln.artifact.digest import digest_of
from tensorkiln.artifact.metadata import ConstantInfo
from tensorkiln.artifact.sections import WEIGHTS_PAD
from tensorkiln.artifact.weights_check import hash_of_pieces
from tensorkiln.artifact.weights_file import weights_beside, write_weights
from tensorkiln.base.cache import key_of, user_cache
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_path, folder_beside, made_folder, plain_path
from tensorkiln.base.folders import write_files
from tensorkiln.base.plugin import plugin
from tensorkiln.base.threads import beside
from tensorkiln.base.tools import ToolFailure
from tensorkiln.link.audit import audit_symbols, audit_weights
from tensorkiln.link.isolate import isolate
from tensorkiln.link.libraries import found_libraries, symbols_of_libraries
from tensorkiln.link.object_format import ELF, ObjectFormat, driver_format, library_arch
from tensorkiln.link.toolchain import (
    Toolchain,
    ZigToolchain,
    blamed,
    choose_toolchain,
    tool_error,
)

# Free bytes below which a tool's failure is blamed on a full disk: some tools just abort then.
_NEARLY_FULL = 1 << 20

# Called with the output path, the files to link (C sources among them) and compiler options.
Fcompile = Callable[[str, list[str], list[str]], object]

CRT = Path(__file__).resolve().parent.parent / "crt"

RUNTIME_EXPORTS: tuple[str, ...] = (
    "kiln_abi_version",
    "kiln_call",
    "kiln_check_function",
    "kiln_executor_create",
    "kiln_executor_destroy",
    "kiln_executor_run",
    "kiln_executor_set_num_threads",
    "kiln_executor_workspace_bytes",
    "kiln_function_index",
    "kiln_get_num_threads",
    "kiln_last_error",
    "kiln_metadata",
    "kiln_open",
    "kiln_output_shape",
    "kiln_python_call",
    "kiln_python_calls",
    "kiln_python_open",
    "kiln_set_num_threads",
    "kiln_use_pool",
    "kiln_use_weights",
)


# Files of the runtime, and functions of kiln.h, that only libraries with devices have, and files
# that only those with devices of a kind have.
_DEVICE_SOURCES = ("device.c", "driver.c", "session.c")
_KIND_SOURCES = {
    "cuda": ("cuda.c", "cuda_graph.c", "cuda_launch.c", "cuda_maps.c"),
    "opencl": ("opencl.c", "opencl_launch.c"),
}
DEVICE_EXPORTS = (
    "kiln_executor_graph_count",
    "kiln_executor_run_in_stream",
    "kiln_executor_set_device",
    "kiln_executor_set_graphs",
    "kiln_executor_set_stream",
)
# What libraries with kernels for several processors export too.
LEVEL_EXPORTS = ("kiln_processor_level",)
_DEVICE_HEADER = '#include "device.h"\n'
_DEFINES = re.compile(
    r"^#define (?:KILN_MAX_PARAMS \d{1,4}|KILN_FLUSHES_DENORMALS 1|KILN_LEVELS \d{1,2})$",
    re.MULTILINE,
)


# The kinds of all devices; without a library's sources it is not known which it has.
ALL_KINDS = tuple(_KIND_SOURCES)


def device_kinds(sources: Mapping[str, str]) -> tuple[str, ...]:
    """The kinds in the table of devices (crt/device.h) that the C sources of a library, by file
    name, have; empty if they have none."""
    text = "".join(text for text in sources.values() if _DEVICE_HEADER in text)
    return tuple(kind for kind in ALL_KINDS if f"&kiln_{kind}" in text)


def crt_sources(*, devices: Sequence[str] = (), row: ObjectFormat = ELF) -> list[Path]:
    """The runtime's C files for a format, sorted; those for devices only if the library has kinds
    `devices`."""
    unused = {name for kind in ALL_KINDS if kind not in devices for name in _KIND_SOURCES[kind]}
    unused |= {path.name for path in CRT.glob("os_*.c")} - {row.os_source}
    if not devices:
        unused.update(_DEVICE_SOURCES)
    return [path for path in sorted(CRT.glob("*.c")) if path.name not in unused]


def runtime_source(
    *, devices: Sequence[str] = (), defines: Sequence[str] = (), row: ObjectFormat = ELF
) -> str:
    """C text that includes all sources of the runtime, with those of the kinds `devices`, behind
    the lines `defines`: they are compiled as one translation unit. The headers of the system come
    before all else, with no macro of ours."""
    names = [path.name for path in crt_sources(devices=devices, row=row)]
    names.sort(key=lambda name: name != row.os_source)
    lines = [f'#include "{name}"\n' for name in names]
    if devices:
        lines[:1] = ["#define KILN_DEVICES 1\n", *lines[:1], _DEVICE_HEADER]
    return "".join([*(f"{d}\n" for d in defines), *lines])


def runtime_defines(sources: Mapping[str, str]) -> tuple[str, ...]:
    """The definitions in the C sources of a library that its runtime needs too: of KILN_MAX_PARAMS,
    where a function has more parameters than usual, of KILN_FLUSHES_DENORMALS, and of KILN_LEVELS,
    the number of processors that it has kernels for."""
    return tuple(sorted({d for text in sources.values() for d in _DEFINES.findall(text)}))


def link_shared(
    objects: Sequence[Path | bytes | memoryview],
    c_sources: Mapping[str, str],
    weights: Content | None,
    output: str | Path,
    *,
    triple: str,
    exports: Sequence[str] = (),
    libraries: Sequence[str] = (),
    fcompile: Fcompile | str | None = None,
    workspace_dir: str | Path | None = None,
    owners: Sequence[str] = (),
    authors: Mapping[str, str] | None = None,
    beside: Sequence[ConstantInfo] | None = None,
    compact: bool = False,
) -> Path:
    """Link one self-contained shared library and return its path.

    `objects` are relocatable files, as paths or bytes; `c_sources` maps file names to C text
    (`entry.c`); `weights` are appended to the linker's output; `exports` are the symbols to export
    besides the runtime's. `fcompile` is a command (`"gcc"`) or a callable `(output, files,
    options)`; without it $CC is used, else the packaged tools. Intermediate files are kept in
    `workspace_dir` if it is given. If `beside`, the table of constants, is given, weights go into a
    separate file (`net.safetensors` for `net.so`). If `compact`, weights begin at the next page,
    not at a huge one. The output appears whole or not at all. `owners` and `authors` name the
    artifact of each object and C source, for messages.

    Raises UserError (folder not writable, disk full, no tool, a symbol with two definitions, one
    that an artifact needs and nothing defines, an object of another machine, failure of a tool: the
    message holds the command and its output), and InternalError where the runtime is to blame.
    """
    target, row = plain_path(output), driver_format(triple)
    contents = [FileContent(item).view if isinstance(item, Path) else item for item in objects]
    names = [*owners, *(f"object {i}" for i in range(len(owners), len(objects)))]
    if weights is not None and content_size(weights):
        contents.append(row.placeholder(library_arch(triple)))
        names.append("the weights")
    else:
        weights = None
    further = [*(DEVICE_EXPORTS if device_kinds(c_sources) else ()), *exports]
    if any(line.startswith("#define KILN_LEVELS ") for line in runtime_defines(c_sources)):
        further += LEVEL_EXPORTS
    exports = sorted({*RUNTIME_EXPORTS, *further})
    job = _Link(row, contents, names, c_sources, exports, tuple(libraries), authors or {})
    with ExitStack() as files:  # both are renamed at the end, the weights first
        temporary = files.enter_context(atomic_path(target, mode=0o777))
        code = _linked(job, triple, fcompile, target, workspace_dir)
        audit_weights(code, content_size(weights) if weights is not None else 0)
        if weights is not None and beside is not None:
            file = files.enter_context(atomic_path(weights_beside(target)))
            sha256 = write_weights(file, weights, beside, compact)
            code = bytes(row.place_weights(code, content_size(weights), sha256, compact).head)
        _write(row, temporary, code, weights if beside is None else None, compact)
    return target


@dataclass(frozen=True, slots=True)
class _Link:
    """The inputs of a link besides the runtime, which is part of every link."""

    format: ObjectFormat
    objects: Sequence[bytes | memoryview]
    owners: Sequence[str]  # of `objects`, in the same order
    sources: Mapping[str, str]
    exports: Sequence[str]
    libraries: tuple[str, ...]
    authors: Mapping[str, str]  # file name of a source -> the artifact it is from

    @property
    def library(self) -> str:
        """The name of what the linker writes."""
        return f"library{self.format.shared_suffix}"

    def key(self, tools: Toolchain) -> dict[str, str]:
        """Components of the linked code's cache key. Libraries are not part of it: a link with
        libraries is never cached."""
        digest = hashlib.sha256()
        for item in self.objects:
            digest.update(len(item).to_bytes(8, "little"))
            digest.update(item)
        return {
            **runtime_sources_key(tools),
            "kind": "library",
            "objects": digest.hexdigest(),
            "owners": json.dumps([*self.owners, dict(self.authors)]),
            "sources": json.dumps(dict(self.sources)),
            "exports": " ".join(self.exports),
            "link_flags": " ".join(self.format.link_flags),
        }


def _linked(
    job: _Link,
    triple: str,
    fcompile: Fcompile | str | None,
    target: Path,
    workspace_dir: str | Path | None,
) -> bytes:
    """The library without its weights, linked now or from the cache. It is cached only if the
    packaged tools link no other libraries: then it depends on the arguments alone."""
    tools = None if callable(fcompile) else choose_toolchain(triple, fcompile)
    key, cache = None, user_cache()
    if isinstance(tools, ZigToolchain) and cache is not None and not job.libraries:
        key = job.key(tools)
        code = cache.get(key_of(key)) if workspace_dir is None else None
        if code is not None:
            return code
    with work_folder(target, workspace_dir) as folder:
        try:
            if tools is None:
                assert callable(fcompile)
                _link_by_callable(fcompile, _written(job, folder), job, folder)
            else:
                _link_by_tools(tools, _written(job, folder), job, folder)
        except ToolFailure as failure:
            raise explained(failure, tools, folder, job.libraries) from failure
        code = (folder / job.library).read_bytes()
    if key is not None and cache is not None:
        cache.put(key_of(key), code, key)
    return code


def _written(job: _Link, folder: Path) -> list[str]:
    """Write the objects, C sources and the list of exports to `folder`; return the file names of
    the objects, in their order."""
    names = []
    for i, item in enumerate(job.objects):
        names.append(f"kernel_{i:04d}{job.format.object_suffix}")
        (folder / names[-1]).write_bytes(item)
    for name, text in job.sources.items():
        (folder / name).write_text(text)
    (folder / job.format.export_file).write_text(job.format.export_list(job.exports))
    return names


def _write(
    row: ObjectFormat, path: Path, code: bytes, weights: Content | None, compact: bool
) -> None:
    """Write the linked code to the existing file `path`, with a digest, followed by the weights,
    and their hash into the code."""
    with path.open("r+b", buffering=0) as stream:
        file = stream.fileno()
        if weights is None:
            write_at(file, memoryview(code + digest_of(code, len(code) + DIGEST_SIZE)), 0)
            return
        placed = row.place_weights(code, content_size(weights), compact=compact)
        head, end = placed.head, placed.start + content_size(weights) + WEIGHTS_PAD
        stream.truncate(end)
        write_content(weights, file, placed.start)
        sha256 = hash_of_pieces(file, placed.start, content_size(weights))
        head[placed.hash_at : placed.hash_at + len(sha256)] = sha256
        write_at(file, memoryview(head + digest_of(head, end)), 0)


def explained(
    failure: ToolFailure, tools: Toolchain | None, folder: Path, libraries: Sequence[str] = ()
) -> Exception:
    """The error to raise for a failed tool. Tools report a full disk in many ways, so that becomes
    an OSError with ENOSPC; a failure of a link with the caller's `libraries` is a UserError."""
    if failure.full or shutil.disk_usage(folder).free < _NEARLY_FULL:
        return OSError(errno.ENOSPC, str(failure))
    return tool_error(failure, None if libraries else tools)


@contextmanager
def work_folder(output: Path, keep: str | Path | None) -> Iterator[Path]:
    """Yield a temporary folder for intermediate files, beside the output; it is always removed. If
    `keep` names a folder, the files are copied there, also after an error. UserError if a copy
    would replace a file that no former run wrote; after an error, that is a note of the error."""
    copies = made_folder(keep) if keep is not None else None
    with folder_beside(output) as folder:
        try:
            yield folder.resolve()
        except Exception as error:
            try:
                _keep(folder, copies)
            except UserError as refusal:
                error.add_note(f"intermediate files are not kept: {refusal.message}")
            raise
        _keep(folder, copies)


def _keep(folder: Path, copies: Path | None) -> None:
    if copies is not None:
        write_files(copies, {f.name: f for f in sorted(folder.iterdir()) if f.is_file()})


def _link_by_tools(tools: Toolchain, files: Sequence[str], job: _Link, folder: Path) -> None:
    names = _compiled(tools, files, job, folder, ())
    is_packaged = isinstance(tools, ZigToolchain)
    libraries = found_libraries(job.libraries, job.format) if is_packaged else job.libraries
    tools.link(names, job.library, job.format.export_file, libraries, folder)


def compiled_objects(
    tools: Toolchain,
    objects: Sequence[tuple[str, bytes | memoryview]],
    sources: Mapping[str, str],
    authors: Mapping[str, str],
    libraries: Sequence[str],
    folder: Path,
    exports: Sequence[str] = (),
    later: Sequence[str] = (),
) -> list[str]:
    """Write all objects of a library to `folder`, those compiled from `sources` and the runtime's
    included, check their symbols, and return the file names.

    `objects` are (owner, bytes) pairs, and `authors` maps sources to artifacts; each symbol of
    `exports` must be defined; `later` are symbols that the caller's further objects will define.
    """
    owners = [owner for owner, _ in objects]
    code = [data for _, data in objects]
    job = _Link(tools.format, code, owners, sources, exports, tuple(libraries), authors)
    return _compiled(tools, _written(job, folder), job, folder, later)


def _compiled(
    tools: Toolchain, files: Sequence[str], job: _Link, folder: Path, later: Sequence[str]
) -> list[str]:
    """Compile sources and runtime, and check the symbols of all objects; return their file names.
    With the packaged tools every reference must resolve inside or to a named library. A compiler
    driver links a C library whose symbols are not known here, so there the linker checks that."""
    try:
        host = tools.compile(list(job.sources), CRT, folder) if job.sources else []
    except ToolFailure as failure:
        mistake = blamed(failure, job.authors)
        if mistake is None:
            raise
        raise mistake from failure
    devices, defines = device_kinds(job.sources), runtime_defines(job.sources)
    runtime = _runtime_object(tools, folder, devices=devices, defines=defines)
    compiled = [
        *((job.authors.get(s, f"host/{s}"), o) for s, o in zip(job.sources, host, strict=True)),
        ("the runtime", runtime),
    ]
    names = [*files, *(name for _, name in compiled)]
    objects = [*zip(job.owners, job.objects, strict=True)]
    objects += [(owner, (folder / name).read_bytes()) for owner, name in compiled]
    objects = _isolated(objects, names, job.exports, folder)
    provided = None
    if isinstance(tools, ZigToolchain):
        brought = symbols_of_libraries(found_libraries(job.libraries, job.format))
        provided = None if brought is None else {*brought, *job.format.c_library.symbols, *later}
    audit_symbols(objects, provided, job.exports)
    return [*host, *files, runtime]


def _isolated(
    objects: Sequence[tuple[str, bytes | memoryview]],
    names: Sequence[str],
    exports: Sequence[str],
    folder: Path,
) -> list[tuple[str, bytes | memoryview]]:
    """Rename conflicting symbols (link/isolate.py); the files `names` of changed objects are
    written again."""
    settled = []
    for (owner, data), name, content in zip(objects, names, isolate(objects, exports), strict=True):
        if content is not data:
            (folder / name).write_bytes(content)
        settled.append((owner, content))
    return settled


def _link_by_callable(fcompile: Fcompile, files: Sequence[str], job: _Link, folder: Path) -> None:
    """Let the caller's function link. It gets absolute paths, since it may run in any folder."""
    paths = [str(folder / name) for name in [*job.sources, *files]]
    devices = device_kinds(job.sources)
    paths += [str(path) for path in crt_sources(devices=devices, row=job.format)]
    options = [
        *job.format.c_flags,
        f"-I{CRT}",
        f"-ffile-prefix-map={folder}=.",
        f"-ffile-prefix-map={CRT}=.",
    ]
    if devices:
        options.append("-DKILN_DEVICES=1")
    options += ["-D{1}={2}".format(*line.split()) for line in runtime_defines(job.sources)]
    options += job.format.driver_options(str(folder / job.format.export_file))
    options += [*job.libraries, *job.format.libraries]
    name = getattr(fcompile, "__name__", type(fcompile).__name__)
    with plugin(f"fcompile {name!r}"):
        fcompile(str(folder / job.library), paths, options)
    if not (folder / job.library).is_file():
        raise UserError(
            f"fcompile {name!r} returned, but wrote no output",
            code="link-failed",
            hint="its first argument is the file to write",
        )


def runtime_sources_key(tools: Toolchain) -> dict[str, str]:
    """Cache key components for objects compiled from the runtime's sources or with its headers."""
    digest = hashlib.sha256()
    for path in sorted([*CRT.glob("*.h"), *crt_sources(devices=ALL_KINDS, row=tools.format)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    compiler = {"tool": tools.identity, "c_flags": " ".join(tools.format.c_flags)}
    return {"kind": "crt", "crt": digest.hexdigest(), **compiler}


@contextmanager
def runtime_ahead(triple: str) -> Iterator[None]:
    """Compile the runtime of libraries for CPUs into the cache meanwhile, where their link finds
    it: it takes a fifth of the first compile on a machine. Nothing without a cache; what fails here
    fails at the link too, which says why."""

    def run() -> None:
        with suppress(Exception), TemporaryDirectory(prefix="kiln-runtime-") as folder:
            _runtime_object(choose_toolchain(triple), Path(folder), devices=(), defines=())

    result = beside(run) if user_cache() is not None else None
    try:
        yield
    finally:
        if result is not None:
            result()


def _runtime_object(
    tools: Toolchain, folder: Path, *, devices: Sequence[str], defines: Sequence[str]
) -> str:
    """Put the C runtime into `folder` as one object, compiled now or from the cache; return its
    file name."""
    parts, cache = runtime_sources_key(tools), user_cache()
    if devices:
        parts["devices"] = " ".join(devices)
    if defines:
        parts["defines"] = " ".join(defines)
    code = cache.get(key_of(parts)) if cache is not None else None
    if code is not None:
        name = f"runtime{tools.format.object_suffix}"
        (folder / name).write_bytes(code)
        return name
    text = runtime_source(devices=devices, defines=defines, row=tools.format)
    (folder / "runtime.c").write_text(text)
    (name,) = tools.compile(["runtime.c"], CRT, folder)
    if cache is not None:
        cache.put(key_of(parts), (folder / name).read_bytes(), parts)
    return name
