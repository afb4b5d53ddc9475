"""Collect the artifacts of a module's external functions, and find which has each kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact, LoaderGroup
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.external.external import External, named
from tensorkiln.ir.module import IRModule

_SUFFIXES = (".c", ".o")
_OURS = ("host", "ir")  # codegen_ids of the compiler itself (see link/isolate.py)


@dataclass(frozen=True, slots=True)
class Emitted:
    """The output of code generators for some kernels. `imported` pairs each kernel without host
    code with the loader group whose module provides it. `fallible` are the kernels whose calls may
    fail, because a loaded module (a device) takes part or the external says so."""

    artifacts: ArtifactSet = field(default_factory=ArtifactSet)
    imported: tuple[tuple[str, LoaderGroup], ...] = ()
    fallible: tuple[str, ...] = ()

    def add(self, addition: Emitted) -> Emitted:
        """Return the concatenation, `addition` last."""
        return Emitted(
            ArtifactSet(
                (*self.artifacts, *addition.artifacts),
                self.artifacts.imports + addition.artifacts.imports,
            ),
            self.imported + addition.imported,
            self.fallible + addition.fallible,
        )


def with_key(emitted: Emitted, key: str) -> Emitted:
    """The output for the device of a composite with this target key: its artifacts get the key,
    unless they have another one."""

    def group(g: LoaderGroup) -> LoaderGroup:
        return LoaderGroup(g.loader, g.target_key or key)

    artifacts = tuple(replace(a, target_key=a.target_key or key) for a in emitted.artifacts)
    imports = tuple((group(above), group(below)) for above, below in emitted.artifacts.imports)
    imported = tuple((name, group(g)) for name, g in emitted.imported)
    return Emitted(ArtifactSet(artifacts, imports), imported, emitted.fallible) if key else emitted


def emit_externals(mod: IRModule, externals: Sequence[External]) -> Emitted:
    """Return what the externals emit for their functions, in the functions' order.

    Raises UserError: code `unknown-external` if a function's external is not among `externals`, and
    those of `checked`.
    """
    by_name = named(externals)
    emitted = Emitted()
    for f in mod.externals:
        external = by_name.get(f.external)
        if external is None:
            raise UserError(
                f"function {f.name!r} is compiled by external {f.external!r}, which was not given",
                code="unknown-external",
                hint=nearest(f.external, by_name) or "compile(..., externals=[...])",
            )
        label = f"external {external.name!r}, function {f.name!r}"
        function_code = checked(partial(external.emit, f, f.name), [f.name], label)
        emitted = emitted.add(with_key(function_code, external.device))
        if external.fallible and f.name not in emitted.fallible:
            emitted = replace(emitted, fallible=(*emitted.fallible, f.name))
    return emitted


def checked(emit: Callable[[], object], kernels: Sequence[str], label: str) -> Emitted:
    """Run a user's code generator for `kernels` and check its output.

    Host code (loader `native`), if any, must define the kernels. Otherwise they must be functions
    of the module that the loader creates from the group of the first artifact that is not a header
    or text. Raises UserError: code `bad-external` unless the output is a non-empty sequence of
    artifacts, with host code in `.c` or `.o` files, under a codegen_id of its own; `plugin-failed`
    if the generator raises.
    """
    with plugin(label):
        emitted = emit()
        if isinstance(emitted, Iterable) and not isinstance(emitted, ArtifactSet | str | bytes):
            emitted = tuple(emitted)
    if not isinstance(emitted, ArtifactSet | tuple):
        raise bad_answer(label, emitted, "a sequence of Artifacts", "bad-external")
    imports = emitted.imports if isinstance(emitted, ArtifactSet) else ()
    artifacts: list[Artifact | InMemoryArtifact] = []
    for a in emitted:
        if not isinstance(a, Artifact | InMemoryArtifact):
            message = f"it emitted {type(a).__name__}, expected Artifact"
            raise UserError(message, code="bad-external", where=label)
        if a.codegen_id in _OURS:
            raise UserError(
                f"{a.name} names code generator {a.codegen_id!r}, which is the compiler's own",
                code="bad-external",
                where=label,
                hint="another codegen_id",
            )
        if a.loader == "native" and not a.file_name.endswith(_SUFFIXES):
            raise UserError(
                f"{a.name} is neither C source nor object",
                code="bad-external",
                where=label,
                hint="a name ending in .c or .o, or another loader",
            )
        artifacts.append(a)
    if not artifacts:
        raise UserError("it emitted nothing", code="bad-external", where=label)
    loader_artifacts = [a for a in artifacts if a.loader not in ("native", "header", "text")]
    has_code = any(a.loader == "native" for a in artifacts)
    if not has_code and not loader_artifacts:
        raise UserError("it emitted nothing that can run", code="bad-external", where=label)
    return Emitted(
        ArtifactSet(tuple(artifacts), imports),
        ()
        if has_code
        else tuple(
            (k, LoaderGroup(loader_artifacts[0].loader, loader_artifacts[0].target_key))
            for k in kernels
        ),
        tuple(kernels) if loader_artifacts else (),
    )
