"""Find what external software a compiled module needs: `declared_dependencies` yields every
declaration with its place, `settled_dependencies` makes one list of them without contradictions.

    attribute `kExternalDependency`    of a function or of a call in a graph
    `T.call_extern(dependencies=)`     a C function of that software
    `External.dependencies`            of the functions that an external compiles
    `InMemoryArtifact.dependencies`    what a module needs that has no form as a file
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tensorkiln.artifact import Artifact, InMemoryArtifact
from tensorkiln.artifact.dependency import merge_dependencies
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.base.licenses import LicensePolicy
from tensorkiln.base.text import listed
from tensorkiln.external.external import External
from tensorkiln.ir.expr import CallExtern
from tensorkiln.ir.known_attrs import DEPENDENCIES
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function
from tensorkiln.ir.stmt import CallKernel, PrimFunc
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.ir.visit_graph import bindings_in

# A declaration: its place, for messages, and what is needed there.
Declared = tuple[str, ExternalDependency]
_MOST_NODES = 3  # of the model, in a message


def declared_dependencies(mod: IRModule, externals: Sequence[External]) -> list[Declared]:
    """Every dependency that a planned module declares, and what the `externals` that compile
    functions of it declare for these, in that order of the module's functions. Raises the
    UserErrors of `External.dependencies_of`."""
    by_name = {e.name: e for e in externals}
    found = [
        ((f"external {f.external!r}, ", f.name), d)
        for f in mod.externals
        if f.external in by_name
        for d in by_name[f.external].dependencies_of(f)
    ]
    found += [(("", f.name), d) for f in mod.functions for d in f.attrs.get(DEPENDENCIES, ())]
    found += [(("", name), d) for name, d in _of_calls(mod)]
    nodes = _nodes(mod) if found else {}
    return [(f"{owner}function {name!r}{nodes.get(name, '')}", d) for (owner, name), d in found]


def in_memory_dependencies(
    artifacts: Iterable[Artifact | InMemoryArtifact],
) -> list[Declared]:
    """What the artifacts that have no form as bytes need."""
    own = [a for a in artifacts if isinstance(a, InMemoryArtifact)]
    return [(f"artifact {a.name!r}", d) for a in own for d in a.dependencies]


def _of_calls(mod: IRModule) -> Iterator[tuple[str, ExternalDependency]]:
    """Dependencies of calls, after the name of the function that calls. Kernels that the compiler's
    own schedules made, those with a key, call no foreign functions."""
    for f in mod.prim_funcs:
        if f.name in mod.kernel_keys:
            continue
        for s in walk_stmt(f.body):
            for e in (x for root in stmt_exprs(s) for x in walk(root)):
                if isinstance(e, CallExtern):
                    yield from ((f.name, d) for d in e.dependencies)
    for g in (f for f in mod.functions if isinstance(f, Function)):
        for b in bindings_in(g.bindings):
            if isinstance(b.value, Call):
                yield from ((g.name, d) for d in b.value.attrs.get(DEPENDENCIES, ()))


def _nodes(mod: IRModule) -> Mapping[str, str]:
    """By kernel, the nodes of the model that it computes, as the end of a place."""
    spans: dict[str, list[str]] = {}
    for f in mod.functions:
        if isinstance(f, PrimFunc) and f.is_host:
            for s in walk_stmt(f.body):
                if isinstance(s, CallKernel) and s.span:
                    spans.setdefault(s.name, []).append(s.span)
    return {name: f" ({listed(found, _MOST_NODES)})" for name, found in spans.items()}


def settled_dependencies(
    declared: Sequence[Declared], policy: LicensePolicy
) -> tuple[ExternalDependency, ...]:
    """Return each dependency once, sorted by name.

    Raises UserError: code `dependency-clash`, naming both places, if two of one name differ;
    `license-refused`, naming the place, if the policy does not permit a license.
    """
    found = merge_dependencies(declared)
    for place, d in declared if policy else ():
        reason = policy.reason(d.license)
        if reason:
            raise UserError(
                f"dependency {d.short_name!r} has the license {d.license!r}, {reason}",
                code="license-refused",
                where=place,
                hint="compile without what needs it"
                if d.license != "NOASSERTION"
                else "state its license where it is declared",
            )
    return found
