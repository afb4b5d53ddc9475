"""The artifacts of a module's external functions, and who provides their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tensorkiln.artifact import Artifact, ArtifactSet, Group, InMemoryArtifact
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.external.external import External, named
from tensorkiln.ir.module import IRModule

_SUFFIXES = (".c", ".o")
_OURS = ("host", "ir")  # code generators whose code is trusted with names (link/isolate.py)


@dataclass(frozen=True, slots=True)
class Emitted:
    """What code generators made for some kernels.

    `imported` says for kernels without host code which group's module has them; `fallible` are
    all whose call may fail, since a device has a part in them.
    """

    artifacts: ArtifactSet = field(default_factory=ArtifactSet)
    imported: tuple[tuple[str, Group], ...] = ()
    fallible: tuple[str, ...] = ()

    def add(self, other: Emitted) -> Emitted:
        """Both, `other` behind."""
        return Emitted(
            ArtifactSet(
                (*self.artifacts, *other.artifacts),
                self.artifacts.imports + other.artifacts.imports,
            ),
            self.imported + other.imported,
            self.fallible + other.fallible,
        )


def emit_externals(mod: IRModule, externals: Sequence[External]) -> Emitted:
    """What the externals emit for their functions, in the functions' order.

    Raises UserError for a function of an external that is not given, and for what it emits being
    no artifacts, or host code that is neither C source nor object.
    """
    by_name = named(externals)
    made = Emitted()
    for f in mod.externals:
        external = by_name.get(f.external)
        if external is None:
            raise UserError(
                f"function {f.name!r} is compiled by external {f.external!r}, which was not given",
                code="unknown-external",
                hint=nearest(f.external, by_name) or "compile(..., externals=[...])",
            )
        where = f"external {external.name!r}, function {f.name!r}"
        made = made.add(checked(partial(external.emit, f, f.name), [f.name], where))
    return made


def checked(emit: Callable[[], object], kernels: Sequence[str], where: str) -> Emitted:
    """What somebody else's code generator emits for `kernels`, if it can be used.

    With host code (loader `native`) that defines the kernels; without any, the module made of the
    first artifact's group has them.
    """
    with plugin(where):
        emitted = emit()
        if isinstance(emitted, Iterable) and not isinstance(emitted, ArtifactSet | str | bytes):
            emitted = tuple(emitted)
    if not isinstance(emitted, ArtifactSet | tuple):
        raise bad_answer(where, emitted, "a sequence of Artifacts", "bad-external")
    imports = emitted.imports if isinstance(emitted, ArtifactSet) else ()
    artifacts: list[Artifact | InMemoryArtifact] = []
    for a in emitted:
        if not isinstance(a, Artifact | InMemoryArtifact):
            message = f"it emitted {type(a).__name__}, expected Artifact"
            raise UserError(message, code="bad-external", where=where)
        if a.codegen_id in _OURS:
            raise UserError(
                f"{a.name} names code generator {a.codegen_id!r}, which is the compiler's own",
                code="bad-external",
                where=where,
                hint="another codegen_id",
            )
        if a.loader == "native" and not a.file_name.endswith(_SUFFIXES):
            raise UserError(
                f"{a.name} is neither C source nor object",
                code="bad-external",
                where=where,
                hint="a name ending in .c or .o, or another loader",
            )
        artifacts.append(a)
    if not artifacts:
        raise UserError("it emitted nothing", code="bad-external", where=where)
    others = [a for a in artifacts if a.loader not in ("native", "header", "text")]
    has_code = any(a.loader == "native" for a in artifacts)
    if not has_code and not others:
        raise UserError("it emitted nothing that can run", code="bad-external", where=where)
    return Emitted(
        ArtifactSet(tuple(artifacts), imports),
        ()
        if has_code
        else tuple((k, Group(others[0].loader, others[0].target_key)) for k in kernels),
        tuple(kernels) if others else (),
    )
