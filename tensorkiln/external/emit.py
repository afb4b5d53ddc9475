"""The artifacts of a module's external functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.external.external import External, named
from tensorkiln.ir.module import IRModule

_SUFFIXES = (".c", ".o")


def emit_externals(mod: IRModule, externals: Sequence[External]) -> tuple[Artifact, ...]:
    """What the externals emit for their functions, in the functions' order.

    Raises UserError for a function of an external that is not given, or what it emits being no
    C source or object of loader `native`; UnsupportedError for other loaders.
    """
    by_name = named(externals)
    artifacts: list[Artifact] = []
    for f in mod.externals:
        external = by_name.get(f.external)
        if external is None:
            raise UserError(
                f"function {f.name!r} is compiled by external {f.external!r}, which was not given",
                code="unknown-external",
                hint=nearest(f.external, by_name) or "compile(..., externals=[...])",
            )
        where = f"external {external.name!r}, function {f.name!r}"
        artifacts += checked_artifacts(external.emit(f, f.name), where)
    return tuple(artifacts)


def checked_artifacts(emitted: Iterable[object], where: str) -> list[Artifact]:
    """What somebody else's code generator emitted, if it can be linked; errors as above."""
    made, artifacts = tuple(emitted), list[Artifact]()
    if not made:
        raise UserError("it emitted nothing", code="bad-external", where=where)
    for a in made:
        if not isinstance(a, Artifact):
            message = f"it emitted {type(a).__name__}, expected Artifact"
            raise UserError(message, code="bad-external", where=where)
        if a.loader != "native":
            raise UnsupportedError(
                f"{a.name} is for loader {a.loader!r}", where=where, hint="loader 'native'"
            )
        if not a.file_name.endswith(_SUFFIXES):
            raise UserError(
                f"{a.name} is neither C source nor object",
                code="bad-external",
                where=where,
                hint="a name ending in .c or .o",
            )
        artifacts.append(a)
    return artifacts
