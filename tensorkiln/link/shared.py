"""`link_shared`: kernel objects, the host entry file, weights and the C runtime into one `.so`."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tensorkiln.base.cache import Cache, key_of
from tensorkiln.base.config import read_config
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_path
from tensorkiln.link.toolchain import (
    C_FLAGS,
    Toolchain,
    ToolFailure,
    choose_toolchain,
    link_options,
    linux_arch,
    tool_error,
)
from tensorkiln.link.weights_object import Buffer, weights_size, write_weights_object

_NEARLY_FULL = 1 << 20  # a tool that dies with less than this left died of it: some just abort

# Called with the output path, the files to link (C sources among them) and compiler options.
Fcompile = Callable[[str, list[str], list[str]], object]

CRT = Path(__file__).resolve().parent.parent / "crt"

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
    "kiln_pool_v1",
    "kiln_python_call",
    "kiln_python_open",
    "kiln_set_num_threads",
    "kiln_use_pool",
)


def crt_sources() -> list[Path]:
    """The runtime's C files, sorted."""
    return sorted(CRT.glob("*.c"))


def link_shared(
    objects: Sequence[Path | Buffer],
    c_sources: Mapping[str, str],
    weights: Path | Sequence[Buffer] | None,
    output: str | Path,
    *,
    triple: str,
    exports: Sequence[str] = (),
    libraries: Sequence[str] = (),
    fcompile: Fcompile | str | None = None,
    workspace_dir: str | Path | None = None,
) -> Path:
    """Link one self-contained shared library and return its path.

    `objects` are relocatable files, as paths or bytes; `c_sources` maps file names to C text
    (`entry.c`); `weights` is a file, or buffers that are written end to end; `exports` are the
    symbols to show besides the runtime's. `fcompile` is a command (`"gcc"`) or a callable
    `(output, files, options)`; without it $CC, then the packaged tools. Intermediate files stay in
    `workspace_dir` when one is named. The output appears whole or not at all.

    Raises UserError (folder not writable, disk full, no tool), InternalError (the link failed; its
    message holds the command and what the tool wrote).
    """
    target = Path(output)
    arch = linux_arch(triple)
    with atomic_path(target) as temporary, _work_folder(target, workspace_dir) as folder:
        files = _write_objects(folder, objects)
        for name, text in c_sources.items():
            (folder / name).write_text(text)
        if weights is not None and weights_size(weights):
            write_weights_object(folder / "weights.o", weights, arch)
            files.append("weights.o")
        shown = sorted({*RUNTIME_EXPORTS, *exports})
        lines = "".join(f"    {name};\n" for name in shown)
        (folder / "exports.map").write_text(f"{{\n  global:\n{lines}  local: *;\n}};\n")
        try:
            if callable(fcompile):
                _link_by_callable(fcompile, files, c_sources, libraries, folder)
            else:
                tools = choose_toolchain(triple, fcompile)
                _link_by_tools(tools, files, c_sources, libraries, folder)
        except ToolFailure as failure:
            if failure.full or shutil.disk_usage(folder).free < _NEARLY_FULL:
                raise OSError(errno.ENOSPC, str(failure)) from failure
            raise tool_error(failure) from failure
        if workspace_dir is None:
            (folder / "library.so").replace(temporary)
        else:
            shutil.copyfile(folder / "library.so", temporary)
        temporary.chmod(temporary.stat().st_mode | 0o111 & ~_umask())
    return target


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _work_folder(output: Path, keep: str | Path | None) -> Iterator[Path]:
    """A folder for intermediate files on the output's disk, so that the last step is a rename;
    it goes in any case, unless the caller named one to keep."""
    if keep is not None:
        folder = Path(keep).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name[:80]}.", dir=output.parent)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_objects(folder: Path, objects: Sequence[Path | Buffer]) -> list[str]:
    """Names, relative to `folder`, of the objects in their order."""
    names = []
    for i, item in enumerate(objects):
        name = f"kernel_{i:04d}.o"
        if isinstance(item, Path):
            shutil.copyfile(item, folder / name)
        else:
            (folder / name).write_bytes(item)
        names.append(name)
    return names


def _link_by_tools(
    tools: Toolchain,
    files: Sequence[str],
    c_sources: Mapping[str, str],
    libraries: Sequence[str],
    folder: Path,
) -> None:
    own = tools.compile(list(c_sources), CRT, folder) if c_sources else []
    runtime = _runtime_object(tools, folder)
    tools.link([*own, *files, runtime], "library.so", "exports.map", libraries, folder)


def _link_by_callable(
    fcompile: Fcompile,
    files: Sequence[str],
    c_sources: Mapping[str, str],
    libraries: Sequence[str],
    folder: Path,
) -> None:
    """The callable gets absolute paths: nobody promised it our working folder."""
    paths = [str(folder / name) for name in [*c_sources, *files]]
    paths += [str(path) for path in crt_sources()]
    options = [*C_FLAGS, f"-I{CRT}", f"-ffile-prefix-map={folder}=.", f"-ffile-prefix-map={CRT}=."]
    options += link_options(str(folder / "exports.map"))
    options += [*libraries, "-lpthread", "-ldl", "-lm"]
    fcompile(str(folder / "library.so"), paths, options)
    if not (folder / "library.so").is_file():
        raise UserError("fcompile returned, but wrote no output", code="link-failed")


def _runtime_object(tools: Toolchain, folder: Path) -> str:
    """The C runtime as one object, compiled as one file, once per tool and source."""
    digest = hashlib.sha256()
    for path in sorted([*CRT.glob("*.h"), *crt_sources()]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    flags = " ".join(C_FLAGS)
    parts = {"kind": "crt", "source": digest.hexdigest(), "tool": tools.identity, "flags": flags}
    config = read_config()
    cache, key = Cache(config.cache_dir), key_of(parts)
    found = cache.get(key) if config.cache else None
    if found is None:
        lines = "".join(f'#include "{path.name}"\n' for path in crt_sources())
        (folder / "runtime.c").write_text(lines)
        tools.compile(["runtime.c"], CRT, folder)
        if config.cache:
            cache.put(key, (folder / "runtime.o").read_bytes(), parts)
    else:
        (folder / "runtime.o").write_bytes(found)
    return "runtime.o"
