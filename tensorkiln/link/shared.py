"""`link_shared`: kernel objects, the host entry file, weights and the C runtime into one `.so`."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.artifact import (
    Content,
    FileContent,
    content_size,
    write_at,
    write_content,
)
from tensorkiln.artifact.metadata import ConstantInfo
from tensorkiln.artifact.sections import WEIGHTS_PAD
from tensorkiln.artifact.weights_check import hash_of_pieces
from tensorkiln.artifact.weights_file import weights_beside, write_weights
from tensorkiln.base.cache import key_of, user_cache
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_path, folder_beside, made_folder, plain_path
from tensorkiln.base.folders import write_files
from tensorkiln.base.plugin import plugin
from tensorkiln.link.audit import audit_symbols, audit_weights
from tensorkiln.link.isolate import isolate
from tensorkiln.link.libraries import found_libraries, symbols_of_libraries
from tensorkiln.link.stubs import SYSTEM_SYMBOLS
from tensorkiln.link.toolchain import (
    C_FLAGS,
    LINK_FLAGS,
    Toolchain,
    ToolFailure,
    ZigToolchain,
    blamed,
    choose_toolchain,
    link_options,
    linux_arch,
    tool_error,
)
from tensorkiln.link.weights_segment import place_weights, placeholder

_NEARLY_FULL = 1 << 20  # a tool that dies with less than this left died of it: some just abort

# Called with the output path, the files to link (C sources among them) and compiler options.
Fcompile = Callable[[str, list[str], list[str]], object]

CRT = Path(__file__).resolve().parent.parent / "crt"

# Where glibc is older than 2.34; newer ones have them as empty files.
SYSTEM_LIBRARIES = ("-lpthread", "-ldl", "-lm")

RUNTIME_EXPORTS: tuple[str, ...] = (
    "kiln_abi_version",
    "kiln_call",
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
)


def crt_sources() -> list[Path]:
    """The runtime's C files, sorted."""
    return sorted(CRT.glob("*.c"))


def runtime_source() -> str:
    """C that includes all of them: the runtime is compiled as one file."""
    return "".join(f'#include "{path.name}"\n' for path in crt_sources())


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
) -> Path:
    """Link one self-contained shared library and return its path.

    `objects` are relocatable files, as paths or bytes; `c_sources` maps file names to C text
    (`entry.c`); `weights` go behind what is linked; `exports` are the symbols to show besides the
    runtime's. `fcompile` is a command (`"gcc"`) or a callable `(output, files, options)`; without
    it $CC, then the packaged tools. Intermediate files stay in `workspace_dir` when one is named.
    With `beside`, the table of constants, weights go into a file of their own (`net.safetensors`
    for `net.so`). The output appears whole or not at all. `owners` and `authors` say for messages
    where each object and C source is from.

    Raises UserError (folder not writable, disk full, no tool, a symbol that two files define or
    that the caller's lack, the caller's own tool failed), InternalError (our code lacks a symbol,
    the packaged tools failed: its message holds the command and what the tool wrote).
    """
    target = plain_path(output)
    given = [FileContent(item).view if isinstance(item, Path) else item for item in objects]
    names = [*owners, *(f"object {i}" for i in range(len(owners), len(objects)))]
    if weights is not None and content_size(weights):
        given.append(placeholder(linux_arch(triple)))
        names.append("the weights")
    else:
        weights = None
    shown = sorted({*RUNTIME_EXPORTS, *exports})
    job = _Link(given, names, c_sources, shown, tuple(libraries), authors or {})
    with ExitStack() as files:  # both are renamed at the end, the weights first
        temporary = files.enter_context(atomic_path(target, mode=0o777))
        code = _linked(job, triple, fcompile, target, workspace_dir)
        audit_weights(code, content_size(weights) if weights is not None else 0)
        if weights is not None and beside is not None:
            other = files.enter_context(atomic_path(weights_beside(target)))
            digest = write_weights(other, weights, beside)
            code = place_weights(code, content_size(weights), digest).head
        _write(temporary, code, weights if beside is None else None)
    return target


@dataclass(frozen=True, slots=True)
class _Link:
    """What is linked, but for the runtime, which always is."""

    objects: Sequence[bytes | memoryview]
    owners: Sequence[str]  # of objects
    sources: Mapping[str, str]
    shown: Sequence[str]
    libraries: tuple[str, ...]
    authors: Mapping[str, str]  # of sources

    def key(self, tools: Toolchain) -> dict[str, str]:
        """Components of the key of the library."""
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
            "shown": " ".join(self.shown),
            "link_flags": " ".join(LINK_FLAGS),
        }


def _linked(
    job: _Link,
    triple: str,
    fcompile: Fcompile | str | None,
    target: Path,
    workspace_dir: str | Path | None,
) -> bytes:
    """The library up to its weights: linked, or from the cache where only packaged tools and
    nothing outside the arguments has a say in it."""
    tools = None if callable(fcompile) else choose_toolchain(triple, fcompile)
    key, cache = None, user_cache()
    if isinstance(tools, ZigToolchain) and cache is not None and not job.libraries:
        key = job.key(tools)
        found = cache.get(key_of(key)) if workspace_dir is None else None
        if found is not None:
            return found
    with work_folder(target, workspace_dir) as folder:
        try:
            if tools is None:
                assert callable(fcompile)
                _link_by_callable(fcompile, _written(job, folder), job, folder)
            else:
                _link_by_tools(tools, _written(job, folder), job, folder)
        except ToolFailure as failure:
            raise why(failure, tools, folder, job.libraries) from failure
        made = (folder / "library.so").read_bytes()
    if key is not None and cache is not None:
        cache.put(key_of(key), made, key)
    return made


def _written(job: _Link, folder: Path) -> list[str]:
    """Names, relative to `folder`, of the objects in their order; sources and exports beside."""
    names = []
    for i, item in enumerate(job.objects):
        names.append(f"kernel_{i:04d}.o")
        (folder / names[-1]).write_bytes(item)
    for name, text in job.sources.items():
        (folder / name).write_text(text)
    lines = "".join(f"    {name};\n" for name in job.shown)
    (folder / "exports.map").write_text(f"{{\n  global:\n{lines}  local: *;\n}};\n")
    return names


def _write(path: Path, code: bytes, weights: Content | None) -> None:
    """What was linked, and the weights behind it."""
    with path.open("r+b", buffering=0) as stream:
        if weights is None:
            write_at(stream.fileno(), memoryview(code), 0)
            return
        placed = place_weights(code, content_size(weights))
        end = placed.start + content_size(weights) + WEIGHTS_PAD
        stream.truncate(end)
        write_at(stream.fileno(), memoryview(placed.head), 0)
        write_content(weights, stream.fileno(), placed.start)
        write_at(stream.fileno(), memoryview(placed.tail), end)
        digest = hash_of_pieces(stream.fileno(), placed.start, content_size(weights))
        write_at(stream.fileno(), memoryview(digest), placed.hash_at)


def why(
    failure: ToolFailure, tools: Toolchain | None, folder: Path, libraries: Sequence[str] = ()
) -> Exception:
    """The error to show: tools have many words for a full disk. What fails with libraries of the
    caller's is the caller's to mend."""
    if failure.full or shutil.disk_usage(folder).free < _NEARLY_FULL:
        return OSError(errno.ENOSPC, str(failure))
    return tool_error(failure, None if libraries else tools)


@contextmanager
def work_folder(output: Path, keep: str | Path | None) -> Iterator[Path]:
    """A folder for intermediate files on the output's disk, so that the last step is a rename. It
    goes in any case; its files are left in the folder that the caller names to keep them, also
    after an error. UserError where they would take the place of what no former run left there."""
    kept = made_folder(keep) if keep is not None else None
    with folder_beside(output) as folder:
        try:
            yield folder.resolve()
        except Exception:
            with suppress(UserError):
                _keep(folder, kept)
            raise
        _keep(folder, kept)


def _keep(folder: Path, kept: Path | None) -> None:
    if kept is not None:
        write_files(kept, {f.name: f for f in sorted(folder.iterdir()) if f.is_file()})


def _link_by_tools(tools: Toolchain, files: Sequence[str], job: _Link, folder: Path) -> None:
    names = _compiled(tools, files, job, folder, ())
    own = isinstance(tools, ZigToolchain)
    libraries = found_libraries(job.libraries) if own else job.libraries
    tools.link(names, "library.so", "exports.map", libraries, folder)


def compiled_objects(
    tools: Toolchain,
    objects: Sequence[tuple[str, bytes | memoryview]],
    sources: Mapping[str, str],
    authors: Mapping[str, str],
    libraries: Sequence[str],
    folder: Path,
    shown: Sequence[str] = (),
    later: Sequence[str] = (),
) -> list[str]:
    """Names of all objects of a library, the runtime's too, written to `folder` and audited.

    `objects` come with their owners, sources with `authors`; `shown` must be among their symbols;
    `later` are symbols of objects that the caller adds.
    """
    owners = [owner for owner, _ in objects]
    job = _Link([data for _, data in objects], owners, sources, shown, tuple(libraries), authors)
    return _compiled(tools, _written(job, folder), job, folder, later)


def _compiled(
    tools: Toolchain, files: Sequence[str], job: _Link, folder: Path, later: Sequence[str]
) -> list[str]:
    """Sources become objects. Every call resolves inside, or in a library that is named; a compiler
    driver brings a C library of its own, which we cannot look into: there the linker decides."""
    try:
        own = tools.compile(list(job.sources), CRT, folder) if job.sources else []
    except ToolFailure as failure:
        theirs = blamed(failure, job.authors)
        if theirs is None:
            raise
        raise theirs from failure
    runtime = _runtime_object(tools, folder)
    compiled = [
        *((job.authors.get(s, f"host/{s}"), o) for s, o in zip(job.sources, own, strict=True)),
        ("the runtime", runtime),
    ]
    names = [*files, *(name for _, name in compiled)]
    objects = [*zip(job.owners, job.objects, strict=True)]
    objects += [(owner, (folder / name).read_bytes()) for owner, name in compiled]
    objects = _isolated(objects, names, job.shown, folder)
    provided = None
    if isinstance(tools, ZigToolchain):
        brought = symbols_of_libraries(found_libraries(job.libraries))
        provided = None if brought is None else {*brought, *SYSTEM_SYMBOLS, *later}
    audit_symbols(objects, provided, job.shown)
    return [*own, *files, runtime]


def _isolated(
    objects: Sequence[tuple[str, bytes | memoryview]],
    names: Sequence[str],
    shown: Sequence[str],
    folder: Path,
) -> list[tuple[str, bytes | memoryview]]:
    """Objects that do not take the symbols of others for their own, as files `names` too."""
    settled = []
    for (owner, data), name, made in zip(objects, names, isolate(objects, shown), strict=True):
        if made is not data:
            (folder / name).write_bytes(made)
        settled.append((owner, made))
    return settled


def _link_by_callable(fcompile: Fcompile, files: Sequence[str], job: _Link, folder: Path) -> None:
    """The callable gets absolute paths: nobody promised it our working folder."""
    paths = [str(folder / name) for name in [*job.sources, *files]]
    paths += [str(path) for path in crt_sources()]
    options = [*C_FLAGS, f"-I{CRT}", f"-ffile-prefix-map={folder}=.", f"-ffile-prefix-map={CRT}=."]
    options += link_options(str(folder / "exports.map"))
    options += [*job.libraries, *SYSTEM_LIBRARIES]
    name = getattr(fcompile, "__name__", type(fcompile).__name__)
    with plugin(f"fcompile {name!r}"):
        fcompile(str(folder / "library.so"), paths, options)
    if not (folder / "library.so").is_file():
        raise UserError(
            f"fcompile {name!r} returned, but wrote no output",
            code="link-failed",
            hint="its first argument is the file to write",
        )


def runtime_sources_key(tools: Toolchain) -> dict[str, str]:
    """What an object of the runtime, or one that includes its headers, depends on."""
    digest = hashlib.sha256()
    for path in sorted([*CRT.glob("*.h"), *crt_sources()]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    compiler = {"tool": tools.identity, "c_flags": " ".join(C_FLAGS)}
    return {"kind": "crt", "crt": digest.hexdigest(), **compiler}


def _runtime_object(tools: Toolchain, folder: Path) -> str:
    """The C runtime as one object, compiled as one file, once per tool and source."""
    parts, cache = runtime_sources_key(tools), user_cache()
    found = cache.get(key_of(parts)) if cache is not None else None
    if found is not None:
        (folder / "runtime.o").write_bytes(found)
        return "runtime.o"
    (folder / "runtime.c").write_text(runtime_source())
    tools.compile(["runtime.c"], CRT, folder)
    if cache is not None:
        cache.put(key_of(parts), (folder / "runtime.o").read_bytes(), parts)
    return "runtime.o"
