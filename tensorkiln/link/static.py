"""`link_static`: a set of artifacts into one archive or object, for programs that link it in.

Several such libraries may be in one program, so all symbols but the exported ones get the prefix of
their library. One compiled with `system_lib_prefix` also registers itself when the program starts
(`kiln_find_system_library` in kiln_system.h).
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.artifact import FileContent, content_size
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.artifact.sections import WEIGHTS_SYMBOL
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_path, plain_path
from tensorkiln.base.tools import ToolFailure
from tensorkiln.link.artifacts import LinkPlan, parts_of
from tensorkiln.link.audit import audit_weights
from tensorkiln.link.object_format import rename_symbols
from tensorkiln.link.shared import Fcompile, compiled_objects, explained, work_folder
from tensorkiln.link.toolchain import choose_toolchain
from tensorkiln.link.weights_object import write_weights_object

SHARED_BY_ALL = "kiln_system_libraries"  # one per program, so its name is the same in all libraries
_FFI = "__tvm_ffi_"
_MEMBER = struct.Struct("<16s12s6s6s8s10s2s")


def link_static(
    artifacts: ArtifactSet,
    output: str | Path,
    *,
    fcompile: Fcompile | str | None = None,
    workspace_dir: str | Path | None = None,
    addons: Sequence[str | Path | bytes] = (),
    exports: Sequence[str] = (),
) -> Path:
    """Write `output`, an archive (`.a`) or one relocatable object (`.o`), and return its path.

    Errors are those of `link_artifacts`, and UserErrors for a callable `fcompile`, which can only
    link shared libraries, and for an archive of 4 GiB or more.
    """
    if callable(fcompile):
        raise UserError(
            "fcompile links shared libraries; a static one takes a command or nothing",
            code="bad-argument",
            hint='fcompile="gcc"',
        )
    plan, target = LinkPlan.of(artifacts), plain_path(output)
    parts = parts_of(artifacts, plan, addons)
    tools = choose_toolchain(plan.triple, fcompile)
    archive_suffix = tools.format.archive_suffix
    if target.suffix == archive_suffix and parts.weights is not None:
        _check_size(content_size(parts.weights))
    with atomic_path(target) as temporary, work_folder(target, workspace_dir) as folder:
        try:
            objects = compiled_objects(
                tools,
                parts.objects,
                parts.sources,
                parts.authors,
                plan.libraries,
                folder,
                exports,
                (WEIGHTS_SYMBOL,),
            )
            tools.merge(objects, "merged.o", folder)
        except ToolFailure as failure:
            raise explained(failure, tools, folder, plan.libraries) from failure
        code = (folder / "merged.o").read_bytes()
        audit_weights(code, content_size(parts.weights) if parts.weights is not None else 0)
        names = _other_names(code, {*plan.exports, *exports, SHARED_BY_ALL}, plan)
        (folder / "code.o").write_bytes(rename_symbols(code, names))
        members = [folder / "code.o"]
        if parts.weights is not None and parts.has_weights:
            members.append(folder / "weights.o")
            symbol = names[WEIGHTS_SYMBOL]
            write_weights_object(members[-1], parts.weights, plan.triple, symbol)
        if target.suffix == archive_suffix:
            _write_archive(temporary, members)
        else:
            tools.merge([m.name for m in members], "whole.o", folder)
            shutil.copyfile(folder / "whole.o", temporary)
    return target


def _other_names(code: bytes, exported: set[str], plan: LinkPlan) -> Mapping[str, str]:
    """Map symbols that `code` defines to new names. Those not in `exported` get the library's
    prefix: `net_kiln_open`, and for all others `net_kernel_dense`. Entries of tvm-ffi, which have
    the same names in all shared libraries, get it after their own: `__tvm_ffi_net_main`."""
    defined = {
        s.name
        for s in binary_of(memoryview(code), "merged.o").symbols()
        if s.is_global and s.is_defined and s.name
    }
    names: dict[str, str] = {}
    listed = plan.system_lib_prefix or f"{plan.prefix}_"
    for name in sorted({*defined, WEIGHTS_SYMBOL}):
        if name.startswith(_FFI):
            names[name] = f"{_FFI}{listed}{name.removeprefix(_FFI)}"
        elif name not in exported:
            names[name] = f"{plan.prefix}_{'' if name.startswith('kiln_') else 'kernel_'}{name}"
    return names


def _write_archive(path: Path, members: Sequence[Path]) -> None:
    """Write a System V archive with a symbol index; timestamps and owners are 0, so that equal
    members give equal archives."""
    symbols = [
        (s.name, i)
        for i, member in enumerate(members)
        for s in binary_of(FileContent(member).view, member.name).symbols()
        if s.is_global and s.is_defined and s.name
    ]
    names = b"".join(name.encode() + b"\0" for name, _ in symbols)
    index_size = 4 + 4 * len(symbols) + len(names)
    position, starts = 8 + _MEMBER.size + index_size + index_size % 2, list[int]()
    for member in members:
        starts.append(position)
        size = member.stat().st_size
        position += _MEMBER.size + size + size % 2
    _check_size(position)
    offsets = struct.pack(f">{len(symbols) + 1}I", len(symbols), *(starts[i] for _, i in symbols))
    with path.open("wb") as stream:
        stream.write(b"!<arch>\n" + _head("/", index_size) + offsets + names)
        stream.write(b"\n" * (index_size % 2))
        for member in members:
            size = member.stat().st_size
            stream.write(_head(f"{member.name}/", size))
            with member.open("rb") as source:
                shutil.copyfileobj(source, stream, 1 << 20)
            stream.write(b"\n" * (size % 2))


def _check_size(size: int) -> None:
    """UserError (code `too-large`) for a size that the 32-bit offsets of an archive's index cannot
    express."""
    if size >= 1 << 32:
        raise UserError(
            f"an archive of {size} bytes: its index has offsets of 32 bits",
            code="too-large",
            hint="export_library to a name ending in .so, or .o",
        )


def _head(name: str, size: int) -> bytes:
    fields = (name, "0", "0", "0", "644", str(size))
    padded = [f.encode().ljust(n) for f, n in zip(fields, (16, 12, 6, 6, 8, 10), strict=True)]
    return _MEMBER.pack(*padded, b"`\n")
