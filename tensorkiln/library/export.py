"""`export_library`: artifacts as one file, by the suffix of its name."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.bundle import bundled_sources, with_sources
from tensorkiln.artifact.dependency import dependencies_of
from tensorkiln.artifact.tar import write_tar
from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.link.arguments import check_link_arguments
from tensorkiln.link.artifacts import link_artifacts
from tensorkiln.link.object_format import FORMATS
from tensorkiln.link.shared import Fcompile
from tensorkiln.link.static import link_static

_ROWS = FORMATS.values()
_SHARED = tuple(dict.fromkeys(row.shared_suffix for row in _ROWS))
_STATIC = tuple(dict.fromkeys(s for row in _ROWS for s in (row.archive_suffix, row.object_suffix)))
SUFFIXES = (*_SHARED, *_STATIC, ".tar")
_SYSTEMS = {".dylib": "macOS", ".dll": "Windows", ".wasm": "WebAssembly"}


def export_library(
    artifacts: ArtifactSet,
    file_name: str | Path,
    fcompile: Fcompile | str | None = None,
    workspace_dir: str | Path | None = None,
    addons: Sequence[str | Path | bytes] = (),
    exports: Sequence[str] = (),
    weights: str = "embedded",
    bundle: Mapping[str, str | Path] = MappingProxyType({}),
) -> Path:
    """Write the artifacts of a compile, such as `ArtifactSet.load` returns, as one file.

    Arguments, result and errors are those of `Executable.export_library`.
    """
    path = check_link_arguments(file_name, fcompile, workspace_dir, addons, exports)
    check_library_name(path)
    if weights not in ("embedded", "beside"):
        raise UserError(
            f"weights={weights!r}: they are 'embedded' in a library, or 'beside' it",
            code="bad-argument",
            hint=nearest(str(weights), ("embedded", "beside")),
        )
    beside = weights == "beside"
    if path.suffix not in _SHARED and beside:
        raise UserError(
            f"weights lie beside shared libraries, not beside {path.name!r}", code="bad-argument"
        )
    if path.suffix == ".tar":
        sources = bundled_sources(dependencies_of(artifacts), bundle)
        return write_tar(with_sources(artifacts, sources), path)
    if bundle:
        raise UserError(
            f"bundle: {path.name!r} is linked code, which has no place for sources",
            code="bad-bundle",
            hint=f"{path.with_suffix('.tar').name!r}: the artifacts as an archive",
        )
    addons, exports = tuple(addons), tuple(exports)
    is_shared = path.suffix in _SHARED
    link = functools.partial(link_artifacts, beside=beside) if is_shared else link_static
    return link(
        artifacts,
        path,
        fcompile=fcompile,
        workspace_dir=workspace_dir,
        addons=addons,
        exports=exports,
    )


def check_library_name(path: Path) -> None:
    """Raise unless a library can be written under this name: UnsupportedError for the suffix of
    another system's, UserError (code `unknown-suffix`) for any other but SUFFIXES."""
    if path.suffix in SUFFIXES:
        return
    if path.suffix in _SYSTEMS:
        raise UnsupportedError(
            f"cannot export {path.name!r}: no libraries for {_SYSTEMS[path.suffix]} yet",
            hint="a name ending in .so, .a, .o or .tar, for Linux",
        )
    near = nearest(path.suffix, SUFFIXES) if path.suffix else ""
    raise UserError(
        f"cannot export {path.name!r}: expected a name ending in .so, .a, .o or .tar",
        code="unknown-suffix",
        hint=near or f"did you mean {f'{path.stem}.so'!r}?" if path.name else "'net.so'",
    )
