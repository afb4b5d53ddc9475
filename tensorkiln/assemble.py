"""Assemble an Executable: the kernels' code plus entry file, header, weights and metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tensorkiln.artifact import Artifact, ArtifactSet, LoaderGroup, TextContent
from tensorkiln.artifact.dependency import ExternalDependency, merge_dependencies
from tensorkiln.artifact.metadata import KernelInfo, Metadata, artifact_infos, constants_text
from tensorkiln.base.debug import SOURCES, say
from tensorkiln.base.errors import UserError
from tensorkiln.base.version import VERSION
from tensorkiln.codegen.host.call_plan import (
    graph_host_function,
    sizes_read,
    tensor_host_function,
)
from tensorkiln.codegen.host.entry_c import entry_c, exported_symbols
from tensorkiln.codegen.host.function import HostFunction, OuterCode, c_name
from tensorkiln.codegen.host.header import header_h
from tensorkiln.codegen.host.import_c import import_info, imports_c
from tensorkiln.codegen.host.plan_text import plan_text
from tensorkiln.codegen.host.system_lib_c import check_prefix, system_lib_c
from tensorkiln.codegen.host.weights import WeightArena, WeightsContent
from tensorkiln.executable import Executable
from tensorkiln.external import Emitted, External
from tensorkiln.ir.module import IRModule
from tensorkiln.link.artifacts import LINK_PLAN, LOADER_EXPORTS, LinkPlan, is_embedded
from tensorkiln.link.jit_objects import for_jit
from tensorkiln.link.shared import RUNTIME_EXPORTS, SYSTEM_LIBRARIES, Fcompile
from tensorkiln.target import Target


def assemble(
    mod: IRModule,
    target: Target,
    cpu: Target,
    externals: Sequence[External],
    code: Emitted,
    texts: Sequence[Artifact],
    linker: Fcompile | str | None,
    system_lib_prefix: str | None = None,
) -> Executable:
    """Return the Executable made of the kernels' `code`, an entry file, a header and the weights.

    `cpu` is the target of host code: `target` itself or its host. `texts` are artifacts for people
    to read, such as the text of `mod`; nothing is derived from them. With `system_lib_prefix` the
    names of C entries begin with it instead of the library's name: with `"net_"`, `main` is
    `net_main`.
    Raises UserError for a module without public functions and for public names that cannot be
    symbols of the library.
    """
    arena = WeightArena()
    functions, outer = _host_functions(mod, arena, code.fallible)
    name = c_name(mod.name)
    prefix = check_prefix(system_lib_prefix).rstrip("_") if system_lib_prefix is not None else name
    artifacts = list(code.artifacts)
    if arena.size:
        artifacts.append(Artifact("host", "native", "weights.bin", WeightsContent(arena)))
    plans = (*functions, *(outer.helpers if outer else ()))
    infos = _kernel_infos(mod, plans, code.imported)
    used = [e for e in externals if any(f.external == e.name for f in mod.externals)]
    needs = merge_dependencies(_dependencies(mod, used))
    outers = outer.infos if outer else ()
    metadata = Metadata(
        name,
        prefix,
        VERSION,
        target.to_json(),
        tuple(cpu.required_features),
        arena.size,
        (*(f.info for f in functions), *outers),
        infos,
        artifact_infos(artifacts),
        tuple(needs),
        tuple(arena.constants),
    )
    loaded = any(is_embedded(group) for group in code.artifacts.groups())
    entry = entry_c(functions, metadata, outer=outer, imports=loaded)
    say(SOURCES, f"entry.c\n{entry}")
    if arena.size:
        listed = constants_text(arena.constants)
        artifacts.append(Artifact("host", "text", "weights.json", listed.encode()))
    kernels = {a.file_name.rpartition(".")[0]: a.codegen_id for a in (*texts, *code.artifacts)}
    libraries = tuple(dict.fromkeys(x for e in used for x in e.libraries))
    header = header_h(
        functions,
        library_name=name,
        prefix=prefix,
        outers=[f.name for f in outers],
        libraries=(*libraries, *SYSTEM_LIBRARIES),
        identity=hashlib.sha256(f"{entry}{arena.identity}".encode()).hexdigest()[:16],
    )
    shown = exported_symbols(functions, prefix=prefix, outer=outer)
    plan = LinkPlan(name, cpu.mtriple, shown, libraries, prefix, system_lib_prefix or "")
    artifacts += [
        Artifact("host", "native", "entry.c", entry.encode()),
        *_link_files(mod, code, plan, loaded),
        Artifact("host", "header", f"{name}.h", header.encode()),
        *_plan(mod, plans, arena, kernels),
        *texts,
    ]
    if target.kind == "llvmjit":
        artifacts = for_jit(artifacts, cpu.mtriple)
    made = ArtifactSet(tuple(artifacts), code.artifacts.imports)
    return Executable(made, target, functions, name, mod, infos, linker, outer)


def _dependencies(
    mod: IRModule, externals: Iterable[External]
) -> Iterator[tuple[str, ExternalDependency]]:
    """Yield each dependency of an external or a function, after the name of what declares it."""
    for e in externals:
        for dependency in e.dependencies:
            yield f"external {e.name!r}", dependency
    for f in mod.functions:
        for row in f.attrs.get("kExternalDependency", ()):
            yield f"function {f.name!r}", ExternalDependency(*row)


def _host_functions(
    mod: IRModule, arena: WeightArena, fallible: Collection[str]
) -> tuple[tuple[HostFunction, ...], OuterCode | None]:
    """The public functions of the library, and the code of outer functions (control flow) if any.

    Raises UserError: `nothing-to-compile` without a public function, `bad-name`, `name-clash`.
    """
    _require_own_names(mod)
    graphs = [graph_host_function(f, mod, arena) for f in mod.graphs if not f.is_private]
    programs = [f for f in mod.prim_funcs if f.public]
    tensors = [tensor_host_function(f, f.public_name, mod, sizes_read(f)) for f in programs]
    outer = _outer_code(mod, arena)
    if outer is not None:
        outer = replace(outer, helpers=tuple(_fallible(f, fallible) for f in outer.helpers))
    elif not graphs and not tensors:
        raise UserError(
            "the module has no public function",
            code="nothing-to-compile",
            where="compile",
            hint="a function without private=True is public",
        )
    return tuple(_fallible(f, fallible) for f in (*graphs, *tensors)), outer


def _require_own_names(mod: IRModule) -> None:
    """Raise UserError for a public name that is not a C identifier, too long, or used twice."""
    owners: dict[str, str] = {}
    graphs = [f for f in (*mod.graphs, *mod.outers) if not f.is_private]
    named = [(f.name, f.name) for f in graphs]
    named += [(f.public_name, f.name) for f in mod.prim_funcs if f.public]
    for name, function in named:
        if name != c_name(name) or len(name) > _LONGEST_NAME:
            short = name if len(name) <= 40 else f"{name[:40]}..."
            raise UserError(
                f"function {short!r}: its name in the library is that of a C function, which is "
                f"letters, digits and '_', {_LONGEST_NAME} at most",
                code="bad-name",
                where="compile",
                hint=f"such as {c_name(name)[:_LONGEST_NAME]!r}" if len(short) == len(name) else "",
            )
        if owners.setdefault(name, function) != function:
            raise UserError(
                f"{owners[name]} and {function} are both {name!r} in the library",
                code="name-clash",
                where=f"{function}.attrs.global_symbol",
                hint="another global_symbol",
            )


_LONGEST_NAME = 200


def _link_files(mod: IRModule, code: Emitted, plan: LinkPlan, loaded: bool) -> Iterator[Artifact]:
    """Yield the artifacts for the linker beside the entry file.

    `imports.c` defines kernels as calls into a loader's module, `system_lib.c` registers a library
    that is linked statically into a program, and `link.json` is the link plan.
    """
    if code.imported:
        yield Artifact("host", "native", "imports.c", imports_c(mod, code.imported).encode())
    if plan.system_lib_prefix:
        listed = [*RUNTIME_EXPORTS, *(LOADER_EXPORTS if loaded else ()), *plan.exports]
        announced = system_lib_c(plan.system_lib_prefix, tuple(dict.fromkeys(listed)))
        yield Artifact("host", "native", "system_lib.c", announced.encode())
    yield Artifact("host", "native", LINK_PLAN, plan.to_bytes())


def _plan(
    mod: IRModule,
    functions: Sequence[HostFunction],
    arena: WeightArena,
    kernels: Mapping[str, str],
) -> Iterator[Artifact]:
    """Yield `plan.txt`, for people: the kernel calls of graph functions and the memory they use."""
    if any(f.info.kind == "graph" for f in functions):
        text = TextContent(lambda: plan_text(functions, mod, arena.constants, kernels))
        yield Artifact("host", "text", "plan.txt", text)


def _fallible(function: HostFunction, kernels: Collection[str]) -> HostFunction:
    """The function with `may_fail` set on calls of `kernels`: host code checks each for errors."""
    calls = tuple(replace(c, may_fail=True) if c.symbol in kernels else c for c in function.calls)
    return replace(function, calls=calls) if calls != function.calls else function


def _outer_code(mod: IRModule, arena: WeightArena) -> OuterCode | None:
    if not mod.outers:
        return None
    from tensorkiln.codegen.outer.code import outer_code

    return outer_code(mod, arena)


def _kernel_infos(
    mod: IRModule, functions: Sequence[HostFunction], imported: Sequence[tuple[str, LoaderGroup]]
) -> tuple[KernelInfo, ...]:
    """Per kernel: the model's nodes that it computes, the class of its schedule and, for an
    imported kernel, the loader whose module provides it."""
    spans: dict[str, list[str]] = {}
    calls = {f.info.name: f.calls for f in functions}
    for f in mod.graphs:
        for call in calls[f.name]:
            spans.setdefault(call.symbol, []).append(call.span)
    classes = {k.name: k.op_class for k in mod.kernels}
    classes |= {f.name: f"external:{f.external}" for f in mod.externals}
    provided = {name: import_info(mod, name, group) for name, group in imported}
    return tuple(
        replace(
            provided.get(name, KernelInfo(name)),
            nodes=tuple(filter(None, spans.get(name, ()))),
            kernel_class=kernel_class,
        )
        for name, kernel_class in classes.items()
    )
