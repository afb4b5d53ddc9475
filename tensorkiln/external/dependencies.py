"""Find what external software a compiled module needs: `declared_dependencies` yields every
declaration with its place, `settled_dependencies` makes one list of them without contradictions.

    attribute `kExternalDependency`    of a function or of a call in a graph
    `T.call_extern(dependencies=)`     a C function of that software
    `External.dependencies`            of the functions that an external compiles
    `InMemoryArtifact.dependencies`    what a module needs that has no form as a file
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tensorkiln.artifact import Artifact, InMemoryArtifact
from tensorkiln.artifact.dependency import merge_dependencies
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.base.licenses import RUNTIME_LICENSE, LicensePolicy
from tensorkiln.base.origin import Use
from tensorkiln.base.text import listed
from tensorkiln.base.version import VERSION
from tensorkiln.external.external import External
from tensorkiln.ir.expr import CallExtern
from tensorkiln.ir.known_attrs import DEPENDENCIES
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.ir.visit_graph import bindings_in

# A declaration: its place, for messages, and what is needed there.
Declared = tuple[str, ExternalDependency]
# What every library embeds, as the policy sees it.
RUNTIME = ExternalDependency(
    "tensorkiln-runtime", "pkg:pypi/tensorkiln", "url", VERSION, RUNTIME_LICENSE
)
_MOST_NODES = 3  # of the model, in a message


def declared_dependencies(mod: IRModule, externals: Sequence[External]) -> list[Declared]:
    """All dependencies that a planned module declares, with their places, and those that
    `externals` declare for the functions that they compile, in the order of the module's functions.
    Raises the UserErrors of `External.dependencies_of`."""
    by_name = {e.name: e for e in externals}
    declared = [
        ((f"external {f.external!r}, ", f.name), d)
        for f in mod.externals
        if f.external in by_name
        for d in by_name[f.external].dependencies_of(f)
    ]
    declared += [(("", f.name), d) for f in mod.functions for d in f.attrs.get(DEPENDENCIES, ())]
    declared += [(("", name), d) for name, d in _of_calls(mod)]
    spans = mod.nodes() if declared else {}
    nodes = {name: f" ({listed(names, _MOST_NODES)})" for name, names in spans.items()}
    return [(f"{owner}function {name!r}{nodes.get(name, '')}", d) for (owner, name), d in declared]


def in_memory_dependencies(
    artifacts: Iterable[Artifact | InMemoryArtifact],
) -> list[Declared]:
    """The dependencies of artifacts that exist only in memory."""
    in_memory = [a for a in artifacts if isinstance(a, InMemoryArtifact)]
    return [(f"artifact {a.name!r}", d) for a in in_memory for d in a.dependencies]


def _of_calls(mod: IRModule) -> Iterator[tuple[str, ExternalDependency]]:
    """The dependencies of calls in tensor programs, each with the name of the calling function.
    Kernels that the compiler's own schedules made, which have a key, call no foreign functions."""
    for f in mod.prim_funcs:
        if f.name in mod.kernel_keys:
            continue
        for s in walk_stmt(f.body):
            for e in (x for root in stmt_exprs(s) for x in walk(root)):
                if isinstance(e, CallExtern):
                    yield from ((f.name, d) for d in e.dependencies)
    yield from _of_packed(mod)


def _of_packed(mod: IRModule) -> Iterator[tuple[str, ExternalDependency]]:
    """The dependencies of calls in graphs of functions that the host program registers."""
    for g in (f for f in mod.functions if isinstance(f, Function)):
        for b in bindings_in(g.bindings):
            if isinstance(b.value, Call):
                yield from ((g.name, d) for d in b.value.attrs.get(DEPENDENCIES, ()))


def uses_of(
    mod: IRModule, declared: Sequence[Declared], artifacts: Iterable[Artifact | InMemoryArtifact]
) -> tuple[Use, ...]:
    """How the library uses each dependency in `declared`, sorted by name; the place of the first
    declaration is the reason. `artifacts` are those that external code generators made."""
    packed_names = {d.short_name for place, d in _of_packed(mod)}
    loaded = {a.codegen_id for a in artifacts if a.loader not in ("native", "llvmjit")}
    loaded -= {a.codegen_id for a in artifacts if a.loader in ("native", "llvmjit")}
    uses: dict[str, Use] = {}
    for place, d in declared:
        if d.build_time:
            kind = "build"
        elif d.libraries:
            kind = "linked"
        elif d.short_name in packed_names or place.startswith("artifact "):
            kind = "host"
        elif any(place.startswith(f"external {name!r},") for name in loaded):
            kind = "host"  # its loader
        else:
            kind = "embedded"
        uses.setdefault(d.short_name, Use(d.short_name, kind, place))
    return tuple(use for _, use in sorted(uses.items()))


def settled_dependencies(
    declared: Sequence[Declared], policy: LicensePolicy
) -> tuple[ExternalDependency, ...]:
    """Return each dependency once, sorted by name.

    Raises UserError: code `dependency-clash`, naming both places, if two of one name differ;
    `license-refused`, naming the place, if the policy does not permit a license, that of the
    runtime which is part of every library included.
    """
    dependencies = merge_dependencies(declared)
    for place, d in [*declared, ("its C runtime (crt/)", RUNTIME)] if policy else ():
        reason = policy.reason(d.license)
        if reason:
            raise UserError(
                f"dependency {d.short_name!r} has the license {d.license!r}, {reason}",
                code="license-refused",
                where=place,
                hint="every library has it: allow its license, too"
                if d is RUNTIME
                else "compile without what needs it"
                if d.license != "NOASSERTION"
                else "state its license where it is declared",
            )
    return dependencies
